"""Names as a box takes them: anything else would be refused there, so it is refused here."""
import re
from dataclasses import dataclass

from .errors import Failure

FOLDERS = {"model": "models", "configuration": "configurations", "runtime": "runtimes"}
PACKAGES = "packages"  # of Ledge itself
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[1-9][0-9]{0,18}")


def name(text, what="name"):
    if not NAME.fullmatch(text):
        raise Failure(f"{what} {text!r}: 1 to 128 of A-Z a-z 0-9 . _ - and no dot in front")
    return text


def version(text):
    if not VERSION.fullmatch(str(text)):
        raise Failure(f"version {str(text)!r} is not a positive whole number without leading zeros")
    return int(text)


def role(text):
    """The role that signs a subject, or what begins with one."""
    return PACKAGES if str(text).startswith(f"{PACKAGES}/") else "models"


@dataclass(frozen=True, order=True)
class Release:
    """One version of one subject: `models/minilm/2`."""

    subject: str
    version: int

    def __str__(self):
        return f"{self.subject}/{self.version}"

    def path(self, file):
        return f"{self}/{file}"


def subject(text):
    """`models/NAME`, `configurations/NAME`, `runtimes/NAME` or `packages/NAME`."""
    folder, slash, rest = text.partition("/")
    if not slash or folder not in (*FOLDERS.values(), PACKAGES):
        raise Failure(f"{text!r} is not of the form models/NAME, configurations/NAME, runtimes/NAME or packages/NAME")
    name(rest)
    return text


def release(text):
    """`models/NAME/VERSION`; a file behind it is let go."""
    parts = text.split("/")
    if len(parts) not in (3, 4):
        raise Failure(f"{text!r} is not of the form models/NAME/VERSION")
    return Release(subject("/".join(parts[:2])), version(parts[2]))


def target(text):
    """Checks `models/NAME/VERSION/FILE`."""
    parts = text.split("/")
    if len(parts) != 4:
        raise Failure(f"{text!r} is not of the form models/NAME/VERSION/FILE")
    release(text)
    name(parts[3], "file name")
    return text
