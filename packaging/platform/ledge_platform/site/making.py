"""`ledge-platform init`: everything that a platform needs, each part only where it is missing.

A run that was killed is run again: platform.toml is the first file, and every later step finds what is there.
"""
import contextlib
import os
import shlex
from pathlib import Path

from .. import ceremony, files
from ..boxes import monitoring
from ..boxes.store import Store
from ..certificates import authority
from ..certificates.authority import Authority
from ..errors import Failure
from ..repository import Repository
from . import certificates, configuration, folders, machine, servers, units
from .layout import EXISTING, OWN, Layout
from .written import Written

# What an authority of the administrator brings, and where it goes.
BROUGHT = ("server.pem", "server.key", "platform.pem", "platform.key", "clients.pem")
OFFLINE = "offline-keys"
BROUGHT_TO_CA = ("root.pem", "crl.pem")


def begun(root, settings):
    """The layout by platform.toml, which is written from SETTINGS if there is none, and whether it was found."""
    layout = Layout(root)
    if layout.config_file.exists():
        layout = Layout.open(root)
        found = layout.table()
        for key, value in settings.items():
            if found[key] != value:
                raise Failure(
                    f"{layout.config_file} says {key} = {found[key]!r}: change it there, and run `init` again without that option")
        return layout, True
    layout.take(settings)
    return layout, False


def make(layout, found, offline, plain, brought, tell):
    """Every step. TELL prints a line."""
    refuse_others(layout.root)
    for server, program in ((layout.web_server, "nginx"), (layout.broker, "mosquitto")):
        if server == OWN:
            machine.program(program)
    for line in machine.make_user(layout):
        tell(line)
    users = machine.Users(layout)
    if not found:
        files.write(layout.config_file, layout.settings().encode())
    tell(f"{'found' if found else 'wrote'} {layout.config_file}")
    for line in folders.make(layout, users):
        tell(line)
    made_offline = [*repository(layout, offline, plain, tell), *own_authority(layout, offline, plain, tell)]
    for folder in dict.fromkeys(made_offline):
        give_key_of_models(folder, users)
    # A lock that root makes first would keep the timers out.
    (layout.repository / ".lock").touch()
    for line in folders.hand_over(layout, users):
        tell(line)
    left = []
    if layout.ca_kind == OWN:
        for line in certificates.ensure(layout, users):
            tell(line)
        monitoring_files(layout)
    else:
        left += take_certificates(layout, users, brought, tell)
    is_ready = not left
    replaced, by_hand = configure(layout, users, tell)
    for line in start(layout, replaced) if is_ready else []:
        tell(line)
    return made_offline, left + by_hand


def refuse_others(root):
    if not Layout(root).is_trial and os.geteuid() != 0:
        raise Failure("run it as root, or with --root DIR for a trial below a folder of your own")


def repository(layout, offline, plain, tell):
    there = Repository(layout.repository)
    if there.newest("root") and not there.unfinished:
        tell(f"found the repository {layout.repository}")
        return []
    remember_offline(layout, offline)
    ceremony.init(layout.repository, layout.keys, offline, {}, "none" if plain else "offline", {})
    tell(f"made the repository {layout.repository}, its online keys in {layout.keys} and its offline keys in {offline}")
    return [offline]


def give_key_of_models(folder, users):
    """The platform's user signs models, and reads their key from the stick. The file system of a stick may have no owners."""
    for path in [folder, *folder.glob("models.*")]:
        with contextlib.suppress(PermissionError):
            os.chown(path, *users.ids("platform", "platform"), follow_symlinks=False)


def remember_offline(layout, folder):
    """`doctor` looks there, in case nobody moves the keys away."""
    known = offline_folders(layout)
    if folder not in known:
        files.write(layout.site_state / OFFLINE, "".join(f"{path}\n" for path in [*known, folder]).encode())


def offline_folders(layout):
    path = layout.site_state / OFFLINE
    return [Path(line) for line in path.read_text().splitlines()] if path.exists() else []


def own_authority(layout, offline, plain, tell):
    if layout.ca_kind != OWN:
        return []
    there = Authority(layout.ca)
    if there.root_file.exists() and not there.unfinished:
        tell(f"found the certificate authority {layout.ca}")
        return []
    remember_offline(layout, offline)
    authority.init(layout.ca, offline, layout.name, {}, not plain)
    tell(f"made the certificate authority {layout.ca}, the key of its root in {offline}")
    return [offline]


def monitoring_files(layout):
    """The list of boxes for Prometheus, which `box answer` keeps."""
    with layout.as_owner():
        store = Store(layout.boxes)
        with store.locked():
            monitoring.write(layout, store.load())


def take_certificates(layout, users, brought, tell):
    """Copies what another authority issued. Returns what is missing."""
    readers = {"server.key": "broker", "platform.key": "platform"}
    for names, folder in ((BROUGHT, layout.tls), (BROUGHT_TO_CA, layout.ca)):
        for name in names:
            source, place = brought and brought / name, folder / name
            if source and source.exists() and (not place.exists() or place.read_bytes() != source.read_bytes()):
                owner = users.ids("root", readers.get(name, "root"))
                files.write(place, source.read_bytes(), 0o640 if name in readers else 0o644, owner)
                tell(f"copied {place}")
    missing = [layout.tls / name for name in BROUGHT if not (layout.tls / name).exists()]
    missing += [path for path in [layout.ca / "root.pem"] if not path.exists()]
    return [f"put {path} there, by your authority: `init {layout.name} --domain {layout.domain} --ca FOLDER` copies it"
            for path in missing]


def configure(layout, users, tell):
    """Writes the files of nginx, mosquitto and systemd. Returns (the files that were others, what is left to do by hand)."""
    written, left = Written(layout), []
    tell(written.put(layout.nginx_conf, configuration.nginx(layout, users)))
    if layout.web_server == EXISTING:
        left.append(f"write `include {layout.nginx_conf};` into the block http of your nginx, and reload it")
        left.append(f"let your nginx write to {layout.box_files} and {layout.join}, as the user {users.web}")
    tell(written.put(layout.acl, configuration.acl()))
    if layout.ca_kind == OWN:
        tell(written.put(layout.prometheus / monitoring.JOB, monitoring.job(layout)))
    if "://" in layout.broker:
        left.append(
            f"give {layout.broker} the files {layout.acl}, {layout.clients} and {layout.ca}/crl.pem, the last one daily")
    else:
        tell(written.put(layout.mosquitto_conf, configuration.mosquitto(layout, users)))
    if layout.broker == EXISTING:
        left.append(f"`ln -s {layout.mosquitto_conf} /etc/mosquitto/conf.d/ledge-platform.conf`, and restart mosquitto")
    lines = [written.put(layout.units / name, text) for name, text in units.texts(layout, users).items()]
    written.save()
    for line in lines:
        if not line.startswith(("found", "wrote /")):
            tell(line)
    tell(f"{len(lines)} systemd units are in {layout.units}")
    return written.replaced, left


def start(layout, replaced):
    """Starts what is not running where systemd is, and again what is by files that were replaced. Returns lines to print."""
    if machine.has_systemd(layout):
        systemctl = machine.program("systemctl")
        machine.must_run(systemctl, "daemon-reload")
        wanted = units.started(layout)
        stopped = [unit for unit in wanted if machine.run(systemctl, "is-active", "--quiet", unit)[0]]
        servers.remember(layout)
        machine.must_run(systemctl, "enable", "--now", "--quiet", *wanted)
        again = [unit for unit in wanted if unit not in stopped and files_of(layout, unit) & replaced]
        for unit in again:
            machine.must_run(systemctl, "restart", unit)
        lines = [f"started {unit}" for unit in stopped] + [f"started {unit} again" for unit in again]
        return lines or [f"found {len(wanted)} units running"]
    lines = []
    if layout.web_server == OWN:
        lines.append(f"  {shlex.join([machine.program('nginx'), '-e', 'stderr', '-c', str(layout.nginx_conf)])}")
    if layout.broker == OWN:
        lines.append(f"  {shlex.join([machine.program('mosquitto'), '-c', str(layout.mosquitto_conf)])}")
    return ["systemd does not run here: start the servers by hand", *lines] if lines else []


def files_of(layout, unit):
    """What a unit reads when it starts."""
    read = {units.WEB: {layout.nginx_conf}, units.BROKER: {layout.mosquitto_conf, layout.acl}}
    return {layout.units / unit} | read.get(unit, set())


def offline_folder(layout, given):
    return Path(given).absolute() if given else layout.offline
