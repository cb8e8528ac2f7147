"""`init`, `doctor`, `backup`, `restore`, and what the timers of a platform run as root."""
import collections

from ..certificates import authority
from ..errors import DONE, REFUSED
from . import backup, certificates, doctor, machine, making, servers
from .layout import EXISTING, OWN, Layout


def init(given):
    settings = {"name": given.name, "domain": given.domain}
    optional = {
        "https_port": given.https_port, "mqtt_port": given.mqtt_port, "region": given.region, "addresses": given.address,
        "web_server": given.web_server, "broker": given.broker or given.broker_server, "ca": EXISTING if given.ca else None,
    }
    settings.update({key: value for key, value in optional.items() if value not in (None, [])})
    layout, found = making.begun(given.root, settings)
    offline = making.offline_folder(layout, given.offline_keys)
    made, left = making.make(layout, found, offline, given.plain, given.ca, print)
    if made:
        print(f"offline keys: move {offline} away from this machine, root1 to root3 to different places")
    for number, line in enumerate(left, 1):
        print(f"left to do, {number}: {line}")
    root = layout.ca / "root.pem"
    if root.exists():
        print(f"fingerprint of the root certificate: {certificates.fingerprint(authority.certificate_of(root))}")
    here = f" --root {layout.root}" if layout.is_trial else ""
    print(f"next: `ledge-platform doctor{here}`, then `ledge-platform box add NAME{here}`")
    return REFUSED if left and layout.ca_kind != OWN else DONE


def certificates_refresh(given):
    layout = Layout.open(given.root)
    for line in certificates.ensure(layout, machine.Users(layout)):
        print(line)


def servers_refresh(given):
    for line in servers.refresh(Layout.open(given.root)):
        print(line)


def doctor_verb(given):
    layout, counts = Layout.open(given.root), collections.Counter()
    for finding in doctor.findings(layout):
        counts[finding.state] += 1
        print(finding)
    warnings = f"{counts[doctor.WARNING]} warnings"
    print(f"{counts[doctor.WRONG]} wrong, {warnings}" if counts[doctor.WRONG] else f"nothing is wrong, {warnings}")
    return REFUSED if counts[doctor.WRONG] else DONE


def backup_verb(given):
    layout = Layout.open(given.root)
    count, size = backup.make(layout, given.file, not given.without_logs)
    print(f"{given.file} has {count} files, {size / 1e6:.3g} MB")
    print("in it: the online keys, without a passphrase: keep it as safe as this machine")
    logs = ", nor the boxes' audit logs" if given.without_logs else ""
    print(f"not in it: the offline keys (root, targets, models, ca-root){logs}")


def restore_verb(given):
    making.refuse_others(given.root)
    for line in machine.make_user(Layout(given.root)):
        print(line)
    layout = backup.restore(given.root, given.file)
    print(f"restored {layout.name} below {layout.root}")
    making.make(layout, True, layout.offline, False, None, print)
    print(f"next: `ledge-platform doctor`, then lead the name {layout.domain} to this machine, and never start the old one again")


VERBS = {
    "init": init,
    "doctor": doctor_verb,
    "backup": backup_verb,
    "restore": restore_verb,
    "certificates refresh": certificates_refresh,
    "servers refresh": servers_refresh,
}
