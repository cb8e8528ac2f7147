"""The services of a platform: nginx, the broker, and everything that a timer runs. One table has the timers."""
from dataclasses import dataclass

from . import machine
from .layout import OWN

PREFIX = "ledge-platform"
WEB, BROKER, SERVERS = f"{PREFIX}-web.service", f"{PREFIX}-broker.service", f"{PREFIX}-servers"
QUOTA_GB = 20
MINUTELY, FIVE_MINUTELY = "*:0/1", "*:0/5"


@dataclass(frozen=True)
class Job:
    """A command that a timer runs."""

    name: str
    when: str
    words: tuple
    does: str
    user: str = "platform"
    # What it may write to: folders of the layout.
    writes: tuple = ()
    # Left out when this path is missing.
    needs: object = None
    capabilities: str = ""

    @property
    def service(self):
        return f"{PREFIX}-{self.name}.service"

    @property
    def timer(self):
        return f"{PREFIX}-{self.name}.timer"


def broker_options(layout):
    return (
        "--broker", layout.broker_url, "--ca", layout.ca / "root.pem",
        "--certificate", layout.platform_certificate, "--key", layout.platform_key)


def jobs(layout):
    here = ("--root", layout.root) if layout.is_trial else ()
    state = ("--state", layout.audit_state)
    found = [
        Job("boxes", MINUTELY, ("box", "answer", *here), "Answer boxes that ask for a certificate",
            writes=("boxes", "requests", "answers", "questions", "ca", "audit_state", "prometheus")),
        Job("refresh", "*:17", ("refresh", layout.repository, "--keys", layout.keys),
            "Sign the online roles again before they expire", writes=("repository",)),
        Job("verify", "04:40", ("verify", layout.repository), "Go through the repository as a box does"),
        Job("page", FIVE_MINUTELY,
            ("page", layout.repository, layout.fleet_page, "--quiet", *broker_options(layout), *state,
             "--boxes", layout.boxes),
            "Write the page of the fleet", writes=("fleet_page",)),
        Job("audit", "05,17:20", ("audit", "verify", layout.box_audit, "--quiet", *state),
            "Verify the new records of the boxes' audit logs", writes=("audit_state",)),
        Job("audit-full", "*-*-1 02:50", ("audit", "verify", layout.box_audit, "--quiet", "--full", *state),
            "Verify the boxes' audit logs from the first record on", writes=("audit_state",)),
        Job("quota", FIVE_MINUTELY, ("audit", "quota", layout.box_audit, "--most-gb", QUOTA_GB, "--quiet"),
            "Refuse the uploads of boxes whose logs take too much room", user="web", writes=("box_files",)),
        Job("tidy", "Sun 03:10", ("audit", "tidy", layout.box_audit), "Remove partial tiles that have become whole",
            user="web", writes=("box_files",)),
        Job("packages", "04:50", ("package", "publish", layout.packages, "--keys", layout.keys),
            "Sign the index of the packages again", writes=("packages", "keys"),
            needs=layout.packages / ".ledge-packages.json"),
    ]
    if layout.ca_kind == OWN:
        found += [
            Job("revoked", "03:25", ("ca", "refresh", layout.ca), "Sign the list of revoked certificates again",
                writes=("ca",)),
            # As root, because the key of the servers is not the platform's to read.
            Job("certificates", "03:35", ("certificates", "refresh", *here),
                "Renew the certificates of the platform's servers", user="root", writes=("ca", "tls", "prometheus"),
                capabilities="CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_SETUID CAP_SETGID"),
        ]
    found.append(
        Job("servers", MINUTELY, ("servers", "refresh", *here),
            "Let nginx and the broker read new certificates, and end connections of revoked ones",
            user="root", writes=("site_state",)))
    return found


def command(job):
    return " ".join(str(word) for word in (machine.tool(), *job.words))


HARDENED = """\
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
PrivateDevices=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
RestrictNamespaces=true
RestrictRealtime=true
LockPersonality=true
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
"""
SERVICE = """\
[Unit]
Description=Ledge platform: {does}
After=network-online.target
Wants=network-online.target
{needs}
[Service]
Type=oneshot
User={user}
ExecStart={command}
{capabilities}{writes}{hardened}"""
TIMER = """\
[Unit]
Description=Ledge platform: {does}

[Timer]
OnCalendar={when}
AccuracySec=5s
Persistent=true

[Install]
WantedBy=timers.target
"""
# A file is replaced by a rename, which a path unit sees. The timer of the same service catches what falls into its run.
PATHS = """\
[Unit]
Description=Ledge platform: certificates have changed

[Path]
{changed}
Unit={service}

[Install]
WantedBy=paths.target
"""
WEB_SERVICE = """\
[Unit]
Description=Ledge platform: nginx for boxes
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStartPre={nginx} -e stderr -t -q -c {conf}
ExecStart={nginx} -e stderr -c {conf}
ExecReload={nginx} -e stderr -c {conf} -s reload
KillSignal=SIGQUIT
KillMode=mixed
TimeoutStopSec=15
Restart=on-failure
RestartSec=5
RuntimeDirectory=ledge-platform-web
ReadWritePaths={writes}
CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_SETUID CAP_SETGID CAP_CHOWN CAP_DAC_OVERRIDE CAP_KILL
{hardened}
[Install]
WantedBy=multi-user.target
"""
BROKER_SERVICE = """\
[Unit]
Description=Ledge platform: the broker of boxes
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
ExecStart={mosquitto} -c {conf}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
StateDirectory=ledge-platform-broker
StateDirectoryMode=0700
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
AmbientCapabilities=CAP_NET_BIND_SERVICE
{hardened}
[Install]
WantedBy=multi-user.target
"""
WATCH_SERVICE = """\
# Watches one rollout: systemctl start ledge-watch@r-42
[Unit]
Description=Ledge platform: watch the rollout %i
After=network-online.target
Wants=network-online.target

[Service]
User={user}
ExecStart={command}
# 0: the rollout is over, 1: it was paused. After another status, as for a broker that is down, systemd tries again.
Restart=on-failure
RestartPreventExitStatus=1
RestartSec=30
ReadWritePaths={writes}
{hardened}"""


def texts(layout, users):
    """{name of a unit: its text}."""
    found = {}
    for job in jobs(layout):
        writes = "".join(f"ReadWritePaths={getattr(layout, attribute)}\n" for attribute in job.writes)
        found[job.service] = SERVICE.format(
            does=job.does, user=getattr(users, job.user), command=command(job), writes=writes, hardened=HARDENED,
            needs=f"ConditionPathExists={job.needs}\n" if job.needs else "",
            capabilities=f"CapabilityBoundingSet={job.capabilities}\n" if job.user == "root" else "")
        found[job.timer] = TIMER.format(does=job.does, when=job.when)
    changed = "\n".join(f"PathChanged={path}" for path in watched(layout))
    found[f"{SERVERS}.path"] = PATHS.format(changed=changed, service=f"{SERVERS}.service")
    if layout.web_server == OWN:
        found[WEB] = WEB_SERVICE.format(
            nginx=machine.program("nginx"), conf=layout.nginx_conf, writes=f"{layout.box_files} {layout.join}",
            hardened=HARDENED)
    if layout.broker == OWN:
        found[BROKER] = BROKER_SERVICE.format(
            user=users.broker, mosquitto=machine.program("mosquitto"), conf=layout.mosquitto_conf, hardened=HARDENED)
    watch = ("watch", layout.repository, "--rollout", "%i", "--page", layout.fleet_page, "--keys", layout.keys,
             *broker_options(layout), "--state", layout.audit_state, "--boxes", layout.boxes)
    found["ledge-watch@.service"] = WATCH_SERVICE.format(
        user=users.platform, command=" ".join(str(word) for word in (machine.tool(), *watch)),
        writes=f"{layout.repository} {layout.fleet_page}", hardened=HARDENED)
    return found


def states(names):
    """{unit: {property: value}} by systemd."""
    properties = ("Id", "ActiveState", "Result", "ExecMainExitTimestamp")
    said = machine.must_run(machine.program("systemctl"), "show", f"--property={','.join(properties)}", *names)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in said.split("\n\n")]
    return {name: {**dict.fromkeys(properties, ""), **block} for name, block in zip(names, blocks)}


def watched(layout):
    """The files that nginx and the broker read when they are told to."""
    return [layout.ca / "crl.pem", layout.ca / "revoked", layout.server_certificate, layout.clients]


def started(layout):
    """The units that are started, and started again after a boot."""
    names = [WEB] if layout.web_server == OWN else []
    names += [BROKER] if layout.broker == OWN else []
    return [*names, f"{SERVERS}.path", *(job.timer for job in jobs(layout))]


def web_unit(layout):
    return WEB if layout.web_server == OWN else "nginx.service"


def broker_unit(layout):
    """None for a broker on another machine."""
    return BROKER if layout.broker == OWN else None if "://" in layout.broker else "mosquitto.service"
