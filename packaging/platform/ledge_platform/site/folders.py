"""The folders of a platform: who owns each, and who may read and write it."""
import os
import stat

from .layout import OWN

# A folder of the layout, its mode, the user and the group. 2750 gives what is made inside the same group.
FOLDERS = (
    ("etc", 0o755, "root", "root"),
    ("keys", 0o700, "platform", "platform"),
    ("ca", 0o755, "platform", "platform"),
    ("tls", 0o755, "root", "root"),
    ("prometheus", 0o755, "platform", "platform"),
    ("var", 0o755, "root", "root"),
    ("audit_state", 0o750, "platform", "platform"),
    ("boxes", 0o750, "platform", "platform"),
    ("site_state", 0o755, "root", "root"),
    ("repository", 0o755, "platform", "platform"),
    ("packages", 0o755, "platform", "platform"),
    # People read the page by a web server of their own.
    ("fleet_page", 0o750, "platform", "web"),
    ("box_files", 0o750, "web", "web"),
    ("box_audit", 0o750, "web", "web"),
    ("box_incoming", 0o700, "web", "web"),
    ("box_full", 0o750, "web", "web"),
    ("join", 0o755, "root", "root"),
    ("requests", 0o2750, "platform", "web"),
    ("answers", 0o2750, "platform", "web"),
    ("questions", 0o2750, "platform", "web"),
    ("join_incoming", 0o700, "web", "web"),
    ("run", 0o755, "root", "root"),
)
BROKER_FOLDERS = (("broker_state", 0o700, "broker", "broker"),)
# What the platform's user writes to at any time, with all that is inside.
HANDED_OVER = ("keys", "ca", "repository", "packages", "audit_state", "boxes")


def wanted(layout):
    return FOLDERS + (BROKER_FOLDERS if layout.broker == OWN else ())


def differences(layout, users):
    """[(path, what is wrong)] of the folders."""
    found = []
    for attribute, mode, user, group in wanted(layout):
        path = getattr(layout, attribute)
        if not path.is_dir():
            found.append((path, "missing"))
            continue
        status = path.stat()
        if (status.st_uid, status.st_gid) != users.ids(user, group):
            found.append((path, f"does not belong to {getattr(users, user)}:{getattr(users, group)}"))
        elif stat.S_IMODE(status.st_mode) != mode:
            found.append((path, f"has mode {stat.S_IMODE(status.st_mode):o} and not {mode:o}"))
    return found


def make(layout, users):
    """Makes what is missing, and corrects the rest. Returns lines to print."""
    changed = differences(layout, users)
    for attribute, mode, user, group in wanted(layout):
        path = getattr(layout, attribute)
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, *users.ids(user, group))
        os.chmod(path, mode)
    made = [path for path, what in changed if what == "missing"]
    return [
        f"made {len(made)} folders below {layout.root}" if made else f"found all folders below {layout.root}",
        *(f"corrected {path}, which {what}" for path, what in changed if what != "missing"),
    ]


def foreign(layout, users):
    """What root made inside the folders of the platform's user."""
    own = users.ids("platform", "platform")[0]
    for attribute in HANDED_OVER:
        for folder, folders, files in os.walk(getattr(layout, attribute)):
            paths = (os.path.join(folder, name) for name in folders + files)
            yield from (path for path in paths if os.lstat(path).st_uid != own)


def hand_over(layout, users):
    """Gives that to the platform's user. Returns lines to print."""
    found = list(foreign(layout, users))
    for path in found:
        os.chown(path, *users.ids("platform", "platform"), follow_symlinks=False)
    return [f"gave {len(found)} files to {users.platform}"] if found else []
