"""The folders of requests. The web server writes into them what strangers send, and it may itself be hostile.

Everything is opened by its name in an open folder and never through a link. What is no request is removed. One inbox
gets its share of a run and no more, so that nobody can keep the others waiting.
"""
import errno
import itertools
import os
import random
import re
import secrets
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import Failure
from . import requests

# The files of an inbox that one run reads; a batch has more.
FILES_MAX = 16
# The files of an inbox that one run lists at all.
LISTED_MAX = 50_000
# The web server writes to it by the group, which the folder above gives it.
MODE = 0o770
FILE = re.compile(r"([0-9a-f]{64})\.json")
# What nginx writes while it copies a request from another disk.
UNFINISHED = re.compile(r"[0-9a-f]{64}\.json\.[0-9]{10}")
UNFINISHED_S = 3_600
# Links, sockets, and files of others, where a request should be.
HOSTILE = (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class File:
    """A file in an inbox: it may be anything."""

    inbox: str
    name: str

    @property
    def id(self):
        found = FILE.fullmatch(self.name)
        return found and found[1]


class Inboxes:
    def __init__(self, folder):
        self.folder = folder
        self.stuck = []  # what could not be removed, and why

    def make(self, inbox):
        path = self.folder / inbox
        try:
            path.mkdir(parents=True)
            os.chmod(path, MODE)
        except FileExistsError:
            pass

    def names(self):
        """(the folders of inboxes, what else is there)."""
        inboxes, others = [], []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    is_inbox = requests.INBOX.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                    (inboxes if is_inbox else others).append(entry.name)
        except FileNotFoundError:
            pass
        return inboxes, others

    @contextmanager
    def opened(self, inbox):
        """A handle of an inbox; None if there is no such folder."""
        try:
            handle = os.open(self.folder / inbox, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            yield None
            return
        try:
            yield handle
        finally:
            os.close(handle)

    def list(self, inbox, most):
        """(up to MOST files of an inbox, what was removed since there were more). Which ones is left to chance."""
        with self.opened(inbox) as handle:
            if handle is None:
                return [], 0
            with os.scandir(handle) as entries:
                found = [entry.name for entry in itertools.islice(entries, LISTED_MAX)]
            if not found:
                return [], 0
            random.shuffle(found)
            found = [name for name in found if not self.is_unfinished(handle, name)] if len(found) <= most else found
            for name in found[most:]:
                self.remove_at(handle, name)
        return [File(inbox, name) for name in found[:most]], max(0, len(found) - most)

    def is_unfinished(self, handle, name):
        if not UNFINISHED.fullmatch(name):
            return False
        try:
            return 0 <= time.time() - os.stat(name, dir_fd=handle, follow_symlinks=False).st_mtime < UNFINISHED_S
        except OSError:
            return True

    def read(self, file):
        """(the content of a request, what tells it from a later one under the same name)."""
        if file.id is None:
            raise Failure("a file has the name of no request")
        with self.opened(file.inbox) as folder:
            if folder is None:
                raise FileNotFoundError(file.inbox)
            try:
                # A pipe would wait for who writes to it.
                handle = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except OSError as error:
                if error.errno not in HOSTILE:
                    raise
                raise Failure(f"a file cannot be read: {error.strerror}") from None
            try:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    raise Failure("a file is no regular file")
                if found.st_size > requests.LONGEST:
                    raise Failure(f"a file is larger than {requests.LONGEST} bytes")
                return os.read(handle, requests.LONGEST), mark_of(found)
            finally:
                os.close(handle)

    def remove(self, file, mark=None):
        """Removes a request; with MARK only if it is still the one that was read."""
        with self.opened(file.inbox) as handle:
            if handle is None:
                return
            if mark is not None:
                try:
                    found = os.stat(file.name, dir_fd=handle, follow_symlinks=False)
                except OSError:
                    return
                if mark_of(found) != mark:
                    return
            self.remove_at(handle, file.name)

    def remove_at(self, handle, name):
        try:
            try:
                os.unlink(name, dir_fd=handle)
            except IsADirectoryError:
                remove_tree(handle, name)
        except FileNotFoundError:
            pass
        except PermissionError as error:
            self.stuck.append(f"{name!r} cannot be removed ({error.strerror}): remove it by hand")

    def remove_inbox(self, inbox):
        """Removes the folder of an inbox if it is empty."""
        try:
            os.rmdir(self.folder / inbox)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def remove_stranger(self, name):
        """Removes what no platform has made."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.remove_at(handle, name)
        finally:
            os.close(handle)


def remove_tree(handle, name):
    """Removes a folder in an open one. Folders inside are moved up first, so that none is too deep."""
    left = [name]
    while left:
        name = left.pop()
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        try:
            with os.scandir(inner) as entries:
                found = list(entries)
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    left.append(f".removed-{secrets.token_hex(8)}")
                    os.rename(entry.name, left[-1], src_dir_fd=inner, dst_dir_fd=handle)
                else:
                    os.unlink(entry.name, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=handle)


def mark_of(found):
    return found.st_ino, found.st_mtime_ns, found.st_size
