"""A platform as `init` makes it on a machine of its own: users and folders, nginx and mosquitto with their own users, and
the commands of all timers as their users, with the rights and the folders that their units give them.

All of it happens in a mount and network namespace with copies of /etc and empty folders in the place of others, so
nothing of this machine changes. That needs root. systemd does not run there: the tests do what the units say.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from logs import Log, Signer
from packages import deb
from support import HERE, installed

from ledge_platform.site import units
from ledge_platform.site.layout import Layout

# What a platform and the packages of nginx and mosquitto write to. /etc is a copy.
REPLACED = ("/srv", "/opt", "/run", "/var/lib", "/var/log")
DOMAIN = "updates.example.com"
UNITS = Path("/etc/systemd/system")
LIMIT_S = 30
# As systemd mounts them for ProtectSystem=strict and ReadWritePaths, given in $WRITES.
SHUT = """
for folder in /etc /srv /var/lib /var/log; do mount --bind $folder $folder && mount -o remount,ro,bind $folder || exit 99; done
for folder in $WRITES; do mount --bind $folder $folder && mount -o remount,rw,bind $folder || exit 99; done
exec "$@"
"""


class Unit:
    """The lines of a unit, by key."""

    def __init__(self, text):
        self.lines = [line.partition("=")[::2] for line in text.splitlines() if "=" in line and not line.startswith("#")]

    def all(self, key):
        return [value for name, value in self.lines if name == key]

    def __getitem__(self, key):
        value, = self.all(key)
        return value


class Machine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise AssertionError("a platform has users of its own: run `make test-platform` as root")
        for path in (HERE, Path(sys.base_prefix), Path(sys.prefix)):
            if any(path.is_relative_to(replaced) for replaced in REPLACED):
                raise AssertionError(f"{path} is below one of {', '.join(REPLACED)}, which these tests replace: move it")
        folder = tempfile.TemporaryDirectory(prefix="ledge-machine-")
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name).resolve()
        cls.scratch.chmod(0o755)
        cls.enter()
        cls.install()

    @classmethod
    def enter(cls):
        """A process that keeps the namespaces."""
        keeper = subprocess.Popen(
            [installed("unshare"), "--mount", "--net", "--propagation", "private", installed("sleep"), "infinity"])
        cls.addClassCleanup(keeper.wait, 10)
        cls.addClassCleanup(keeper.kill)
        cls.keeper = keeper.pid
        ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + LIMIT_S
        while "sleep" not in Path(f"/proc/{cls.keeper}/comm").read_text() or os.readlink(f"/proc/{cls.keeper}/ns/net") == ours:
            if time.monotonic() > deadline:
                raise AssertionError("unshare made no namespaces")
            time.sleep(0.01)
        cls.root("ip", "link", "set", "lo", "up")
        cls.root("cp", "-a", "/etc", cls.scratch / "etc")
        with open(cls.scratch / "etc" / "hosts", "a") as hosts:
            hosts.write("\n127.0.0.1 updates.example.com\n")
        cls.root("mount", "--bind", cls.scratch / "etc", "/etc")
        for place in REPLACED:
            cls.root("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        # The packages of nginx and mosquitto bring these.
        cls.root("mkdir", "-p", "/var/log/nginx", "/var/lib/nginx")

    @classmethod
    def install(cls):
        # The kit of this checkout, where packaging/platform/setup would put it.
        kit = cls.scratch / "ledge-platform"
        kit.write_text(f"#!/bin/sh\nPYTHONPATH='{HERE.parent}' exec '{sys.executable}' -sB -m ledge_platform \"$@\"\n")
        cls.root("install", "-D", "-m", "0755", kit, "/opt/ledge-platform/bin/ledge-platform")
        cls.stick = cls.scratch / "stick"
        cls.root("mkdir", "-m", "700", cls.stick)
        cls.init()

    @classmethod
    def init(cls):
        return cls.root(
            "env", "LEDGE_PLATFORM_PASSPHRASE=open sesame, please", "/opt/ledge-platform/bin/ledge-platform", "init", "example",
            "--domain", DOMAIN, "--offline-keys", cls.stick)

    @classmethod
    def command(cls, *words):
        return [installed("nsenter"), "--target", str(cls.keeper), "--mount", "--net", "--", *map(str, words)]

    @classmethod
    def root(cls, *words):
        done = subprocess.run(cls.command(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @classmethod
    def as_user(cls, user, words, environment=()):
        """Runs it as USER with no other environment than that."""
        switch = [installed("setpriv"), f"--reuid={user}", f"--regid={user}", "--init-groups"]
        # By way of `env`: setpriv itself still may what root may.
        if subprocess.run(cls.command(*switch, "env", sys.executable, "-c", ""), capture_output=True).returncode:
            # Python lies where only root may look. With this the user may look everywhere, and write nowhere else.
            switch += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        variables = [f"{name}={value}" for name, value in dict(environment).items()]
        return subprocess.run(
            cls.command(*switch, "env", "-i", *variables, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def kit(self, *words, user="ledge-platform", **environment):
        done = self.as_user(user, ["/opt/ledge-platform/bin/ledge-platform", *map(str, words)], environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def serve(self, port, *words):
        log = open(self.scratch / f"{port}.log", "w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(process.wait, LIMIT_S)
        self.addCleanup(process.terminate)
        deadline = time.monotonic() + LIMIT_S
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        while subprocess.run(self.command(sys.executable, "-c", probe), capture_output=True).returncode:
            said = Path(log.name).read_text()
            self.assertIsNone(process.poll(), said)
            self.assertLess(time.monotonic(), deadline, said)
            time.sleep(0.1)

    def unit(self, name):
        return Unit(self.root("cat", UNITS / name))

    def run_unit(self, name, path=""):
        """What the command of a service does as its user, with its capabilities, where it may write only to its folders."""
        unit = self.unit(name)
        writes = " ".join(unit.all("ReadWritePaths"))
        command = [installed("unshare"), "--mount", "env", f"WRITES={writes}", "sh", "-c", SHUT, "sh", installed("setpriv")]
        if unit["User"] == "root":
            rights = [f"+{right.removeprefix('CAP_').lower()}" for right in unit["CapabilityBoundingSet"].split()]
            command += [f"--bounding-set={','.join(['-all', *rights])}"]
        else:
            command += [f"--reuid={unit['User']}", f"--regid={unit['User']}", "--init-groups"]
            if self.python_is_hidden:
                command += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        command += ["env", "-i", f"PATH={path}/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return subprocess.run(self.command(*command, *unit["ExecStart"].split()), capture_output=True, text=True, stdin=subprocess.DEVNULL)

    @property
    def python_is_hidden(self):
        """True if Python lies where only root may look: then users of the tests may look everywhere, and write nowhere else."""
        tried = self.command("setpriv", "--reuid=www-data", "--regid=www-data", "--init-groups", "env", sys.executable, "-c", "")
        return subprocess.run(tried, capture_output=True).returncode != 0

    def put(self, path, content):
        file = self.scratch / "body"
        file.write_bytes(content)
        return self.root(
            installed("curl"), "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", "/etc/ledge-platform/ca/root.pem",
            *(("--cert", self.scratch / "box-1/box-1.pem", "--key", self.scratch / "box-1/box-1.key") if path.startswith("audit") else ()),
            "-T", file, f"https://{DOMAIN}/{path}")

    def modes(self):
        """{path: owner, group and mode} of what there is."""
        places = ["/etc/ledge-platform", "/srv", "/var/lib/ledge-platform", "/var/lib/ledge-platform-broker"]
        found = self.root("find", *places, "-printf", "%p %u %g %m\n").splitlines()
        return {line.split()[0]: tuple(line.split()[1:]) for line in found}

    def start_servers(self):
        web, broker = self.unit(units.WEB), self.unit(units.BROKER)
        self.assertEqual(self.root(*web["ExecStartPre"].split()), "")
        self.serve(443, *web["ExecStart"].split())
        self.serve(8883, installed("setpriv"), f"--reuid={broker['User']}", f"--regid={broker['User']}", "--init-groups",
                   *broker["ExecStart"].split())

    def test_a_platform_runs_by_what_init_wrote(self):
        self.root("install", "-d", "-o", "ledge-platform", self.scratch / "box-1")
        self.kit("ca", "issue", "/etc/ledge-platform/ca", "box-1", "--out", self.scratch / "box-1")
        package = deb(self.scratch)
        self.kit("package", "init", "/srv/ledge-packages", "--keys", "/etc/ledge-platform/keys")
        self.kit("package", "add", "/srv/ledge-packages", package)
        self.start_servers()

        # nginx writes as its own user what the platform's user reads.
        log = Log(Signer("box-1")).grow(300)
        for path, content in log.files().items():
            self.assertEqual(self.put(f"audit/box-1/1/{path}", content), "201", path)
        self.kit("audit", "enroll", "box-1", log.signer.verifier_key)
        self.assertEqual(self.modes()["/srv/ledge-boxes/audit/box-1/1/checkpoint"], ("www-data", "www-data", "640"))

        # A request to join: the platform makes the inbox, nginx writes, the platform reads and removes.
        inbox, name = "0a" * 16, "1b" * 32 + ".json"
        path = f"/srv/ledge-join/requests/{inbox}"
        made = "import os, sys; os.mkdir(sys.argv[1]); os.chmod(sys.argv[1], 0o770)"
        taken = "import os, sys; print(open(sys.argv[1]).read()); os.remove(sys.argv[1]); os.rmdir(os.path.dirname(sys.argv[1]))"
        self.assertEqual(self.as_user("ledge-platform", [sys.executable, "-c", made, path]).returncode, 0)
        self.assertEqual(self.put(f"join/requests/{inbox}/{name}", b"{}"), "201")
        self.assertEqual(self.modes()[f"{path}/{name}"], ("www-data", "www-data", "640"))
        self.assertEqual(self.as_user("ledge-platform", [sys.executable, "-c", taken, f"{path}/{name}"]).stdout, "{}\n")
        answer = "import sys; open(sys.argv[1], 'w').write('{}')"
        self.assertEqual(self.as_user("ledge-platform", [sys.executable, "-c", answer, f"/srv/ledge-join/answers/{name}"]).returncode, 0)
        self.assertEqual(self.root(installed("curl"), "-sS", "--cacert", "/etc/ledge-platform/ca/root.pem", f"https://{DOMAIN}/join/answers/{name}"), "{}")

        self.run_timers()
        self.assertIn("box-1: whole", self.kit("audit", "verify", "/srv/ledge-boxes/audit"))
        self.assertEqual(self.modes()["/srv/ledge-fleet/index.html"][0], "ledge-platform")
        options = re.search(r"--ca \S+ --certificate \S+ --key \S+", self.unit("ledge-watch@.service")["ExecStart"])[0].split()
        self.assertIn("DEVICE", self.kit("fleet", "status", "--broker", f"mqtts://{DOMAIN}", *options))

        said = self.root("/opt/ledge-platform/bin/ledge-platform", "doctor")
        doubts = [line.split(":")[0] for line in said.splitlines() if not line.startswith("ok")]
        # This machine's own disk may be full.
        doubts = [line for line in doubts[:-1] if "free on the disk" not in line]
        self.assertEqual(doubts, [f"warning  {self.stick} has offline keys, on the disk of this machine", "warning  systemd does not run here"])

        # A folder that root made is in the way of timers, until `init` corrects it.
        self.root("mkdir", "-p", "/srv/ledge/targets/models/by-root")
        found = subprocess.run(self.command("/opt/ledge-platform/bin/ledge-platform", "doctor"), capture_output=True, text=True)
        self.assertIn("WRONG    /srv/ledge/targets/models", found.stdout)
        self.assertIn("gave 2 files to ledge-platform", self.init())

        # Again with everything in use: nothing changes.
        before = self.modes()
        said = self.init()
        self.assertNotRegex(said, "(?m)^(made|wrote|issued|corrected|gave)")
        self.assertEqual(self.modes(), before)

    def run_timers(self):
        """The command of every timer is silent, or ends well, while all is well."""
        stand_in = self.scratch / "systemctl"
        stand_in.write_text(f'#!/bin/sh\necho "$*" >> {self.scratch}/said\n')
        stand_in.chmod(0o755)
        for job in units.jobs(Layout()):
            with self.subTest(job.name):
                done = self.run_unit(job.service, path=f"{self.scratch}:")
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                if "--quiet" in job.words:
                    self.assertEqual(done.stdout, "")
        self.assertIn("reload ledge-platform-broker.service\n", (self.scratch / "said").read_text())

    def test_a_key_is_read_by_its_service_alone(self):
        for key, reader in (("server.key", "mosquitto"), ("platform.key", "ledge-platform")):
            for user in ("www-data", "mosquitto", "ledge-platform"):
                path = f"/etc/ledge-platform/tls/{key}"
                tried = self.command("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "cat", path)
                self.assertEqual(subprocess.run(tried, capture_output=True).returncode == 0, user == reader, (key, user))
        self.assertEqual({mode for path, mode in self.modes().items() if path.startswith("/etc/ledge-platform/keys/") and not path.endswith(".pub.pem")},
                         {("ledge-platform", "ledge-platform", "600")})

    def test_the_units_are_ones_that_systemd_takes(self):
        found = self.root("ls", UNITS).split()
        names = [name for name in found if name.startswith(("ledge-platform-", "ledge-watch@"))]
        self.assertEqual(len(names), len(units.texts(Layout(), _Users())))
        # An instance, because systemd-analyze takes no template.
        self.root("cp", UNITS / "ledge-watch@.service", UNITS / "ledge-watch@r-42.service")
        names.remove("ledge-watch@.service")
        paths = [UNITS / name for name in [*names, "ledge-watch@r-42.service"]]
        done = subprocess.run(
            self.command(installed("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", *paths), capture_output=True, text=True)
        self.root("rm", UNITS / "ledge-watch@r-42.service")
        said = [line for line in done.stderr.splitlines() if "ledge" in line]
        self.assertEqual((done.returncode, said), (0, []), done.stderr)


class _Users:
    root, platform, web, broker = "root", "ledge-platform", "www-data", "mosquitto"


if __name__ == "__main__":
    unittest.main()
