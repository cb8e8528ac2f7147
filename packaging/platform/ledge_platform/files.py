"""Files that are complete or absent, because a server of the folder may read at any moment."""
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key

from .errors import Failure

PRIVATE = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|AGE-SECRET-KEY-(PQ-)?1", re.IGNORECASE)
LONGEST_KEY = 65_536
OPEN_MAX = 200


def write(path, content, mode=0o644, owner=None):
    """A new file in place of an old one, on the disk before it has its name.

    OWNER is (user id, group id): they have it before anybody else could read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if owner:
            os.chown(scratch, *owner)
        os.chmod(scratch, mode)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_all(contents, mode=0o644):
    """As `write` for {path: content}: all are on the disk before the first one has its name."""
    scratches, handles = {}, []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, scratches[path] = tempfile.mkstemp(prefix=".new-", dir=path.parent)
            handles.append(handle)
            os.fchmod(handle, mode)
            with open(handle, "wb", closefd=False) as file:
                file.write(content)
            if len(handles) >= OPEN_MAX:
                sync_all(handles)
        sync_all(handles)
        for path, scratch in list(scratches.items()):
            os.replace(scratch, path)
            del scratches[path]
    finally:
        for handle in handles:
            os.close(handle)
        for scratch in scratches.values():
            Path(scratch).unlink(missing_ok=True)
    for folder in {path.parent for path in contents}:
        sync(folder)


def sync_all(handles):
    """Files that are written first and synced then reach the disk together."""
    while handles:
        os.fsync(handles[-1])
        os.close(handles.pop())


def copy(source, path):
    """A copy that is whole when it has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, open(source, "rb") as content:
            for block in iter(lambda: content.read(1 << 20), b""):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    sync(path.parent)


def link(source, path):
    """A second name for a file that is there; a copy where the disk has no hard links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, path)
        sync(path.parent)
    except FileExistsError:
        pass
    except OSError:
        copy(source, path)


class Unfinished:
    """A mark in a folder that something is being made in it, so that a run after a kill or a power cut finishes it.

    It is written before the first key, and names all keys of the run: the next run uses those, and no others that it
    finds in the same place.
    """

    def __init__(self, folder, name=".unfinished"):
        self.file = folder / name

    def __bool__(self):
        return self.file.exists()

    def keys(self):
        return set(self.file.read_text().split()) if self else set()

    def begin(self, identities):
        write(self.file, "".join(f"{identity}\n" for identity in identities).encode())

    def end(self):
        self.file.unlink(missing_ok=True)
        sync(self.file.parent)


def sync(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def measure(path):
    """(length, SHA-256) without reading the whole into memory."""
    digest, length = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            length += len(block)
    return length, digest.hexdigest()


def inside(folder, path):
    """PATH, a regular file; never one that a link outside FOLDER leads to."""
    real = path.resolve()
    if not real.is_relative_to(folder.resolve()):
        raise Failure(f"{path} is a link that leads out of {folder}: what it leads to would be public")
    if not stat.S_ISREG(real.stat().st_mode):
        raise Failure(f"{path} is no regular file")
    return path


def refuse_private_key(content, name):
    """CONTENT is a path, or bytes. Everything that is signed goes to every box, and to every client."""
    if not isinstance(content, bytes):
        with open(content, "rb") as file:
            content = file.read(LONGEST_KEY)
    if PRIVATE.search(content) or is_der_key(content):
        raise Failure(f"{name} holds a private key: it is not published. If it was made public before, replace the key")


def is_der_key(content):
    if not content.startswith(b"\x30"):
        return False
    try:
        load_der_private_key(content, None)
    except TypeError:  # it has a passphrase
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True
