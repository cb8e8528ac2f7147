"""Files that are whole or not there: whoever serves the folder may read at any moment."""
import hashlib
import os
import tempfile
from pathlib import Path


def write(path, content, mode=0o644):
    """A new file in place of an old one, on the disk before it has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, mode)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    sync(path.parent)


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
