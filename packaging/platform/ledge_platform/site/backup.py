"""All state of a platform in one tar file, and back onto an empty machine.

Owners are kept by name, because another machine gives them other numbers. Offline keys are never in it, also where
somebody left them on the platform's machine.
"""
import contextlib
import os
import tarfile

from .. import files
from ..boxes.store import Store
from ..certificates.authority import Authority
from ..errors import Failure
from ..repository import Repository
from . import making
from .layout import OWN, Layout

# Where state is, and what is left out of it: made again, or of one machine.
PLACES = (
    "etc", "repository", "packages", "fleet_page", "box_files", "join", "audit_state", "boxes", "site_state", "broker_state",
)
LEFT_OUT = (".lock", ".unfinished")
LEFT_OUT_PREFIX = ".new-"


def make(layout, path, with_logs):
    """Returns (files in it, bytes)."""
    if path.exists():
        raise Failure(f"{path} is there already")
    away = [layout.offline, *making.offline_folders(layout), layout.box_incoming, layout.join_incoming]
    away += [] if with_logs else [layout.box_audit]
    away = [str(folder.relative_to(layout.root)) for folder in away if folder.is_relative_to(layout.root)]
    count = 0

    def kept(member):
        nonlocal count
        name = member.name.rpartition("/")[2]
        is_state = member.isfile() or member.isdir() or member.islnk()
        if not is_state or name in LEFT_OUT or name.startswith(LEFT_OUT_PREFIX) or is_below(member.name, away):
            return None
        count += not member.isdir()
        return member

    scratch = path.with_name(f"{path.name}.part")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            # Nothing is signed meanwhile, so that the parts fit together.
            with all_locked(layout), tarfile.open(fileobj=file, mode="w") as archive:
                for attribute in PLACES:
                    place = getattr(layout, attribute)
                    if place.is_dir():
                        archive.add(place, str(place.relative_to(layout.root)), filter=kept)
            file.flush()
            os.fsync(file.fileno())
        os.rename(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    files.sync(path.absolute().parent)
    return count, path.stat().st_size


@contextlib.contextmanager
def all_locked(layout):
    """In the order of all verbs."""
    with contextlib.ExitStack() as locks:
        # Files of locks that are made now are the platform's own.
        with layout.as_owner():
            locks.enter_context(Repository.open(layout.repository).locked())
            locks.enter_context(Store(layout.boxes).locked())
            if layout.ca_kind == OWN:
                locks.enter_context(Authority.open(layout.ca).locked())
        yield


def is_below(name, places):
    return any(name == place or name.startswith(f"{place}/") for place in places)


def restore(root, path):
    """Puts everything back. Returns the layout; `init` then makes what this machine lacks."""
    layout = Layout(root)
    for attribute in PLACES:
        place = getattr(layout, attribute)
        if place.is_dir() and any(place.iterdir()) and attribute != "etc" or layout.config_file.exists():
            raise Failure(f"{layout.root} has a platform, or a part of one, in {place}: restore onto an empty machine")
    allowed = [str(getattr(layout, attribute).relative_to(layout.root)) for attribute in PLACES]
    try:
        with tarfile.open(path, "r:") as archive:
            members = archive.getmembers()
            for member in members:
                refuse_foreign(member, allowed)
            # platform.toml last: a restore that was killed is seen as none, and its remains are named.
            members.sort(key=lambda member: member.name == str(layout.config_file.relative_to(layout.root)))
            layout.root.mkdir(parents=True, exist_ok=True)
            archive.extractall(layout.root, members)
    except tarfile.TarError:
        raise Failure(f"{path} is no backup of a platform") from None
    return Layout.open(root)


def refuse_foreign(member, allowed):
    """A file that a backup does not have could be written anywhere."""
    names = [member.name, *([member.linkname] if member.islnk() else [])]
    is_inside = all(is_below(name, allowed) and ".." not in name.split("/") for name in names)
    if not is_inside or not (member.isfile() or member.isdir() or member.islnk()):
        raise Failure(f"{member.name} does not belong into a backup: nothing was restored")
