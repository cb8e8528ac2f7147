"""Signed notes and checkpoints (C2SP signed-note, tlog-checkpoint), with Ed25519."""
import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .. import names
from ..errors import Failure

ED25519 = b"\x01"  # the type of a key and of its signatures
KEY_NAME = "ledge.audit/"  # and the device behind it
LONGEST = 65_536  # bytes of a note that is read at all
NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


class Untrue(Exception):
    """Something is invalid; the text says in which way."""


def decode(text, what):
    """Base64 in its one form: another form of the same bytes would be another file of the same meaning."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Untrue(f"{what} is no base64") from None
    if base64.b64encode(content).decode() != text:
        raise Untrue(f"{what} is no base64 in its one form")
    return content


def encode(content):
    return base64.b64encode(content).decode()


@dataclass(frozen=True)
class VerifierKey:
    """Whose signature counts: `NAME+ID+KEY`."""

    name: str
    id: bytes
    public: bytes

    @classmethod
    def parse(cls, text):
        name, _, rest = text.strip().partition("+")
        digits, _, key = rest.partition("+")
        try:
            content = decode(key, "its last part")
            if not name or re.search(r"\s", name) or not re.fullmatch(r"[0-9a-f]{8}", digits):
                raise Untrue("it is not of the form NAME+ID+KEY")
            if content[:1] != ED25519 or len(content) != 33:
                raise Untrue("it is no Ed25519 key")
            found = cls(name, bytes.fromhex(digits), content[1:])
            if found.id != key_id(name, content):
                raise Untrue("its id is not that of its name and key: it was not copied whole")
        except Untrue as error:
            raise Failure(f"{text.strip()[:120]!r} is no verifier key: {error}") from None
        return found

    @classmethod
    def of(cls, device, text):
        """The key of a box: it bears the name of the box."""
        key = cls.parse(text)
        if key.name != KEY_NAME + names.name(device, "device"):
            raise Failure(f"this is the key of {key.name}, and not of {KEY_NAME}{device}")
        return key

    @property
    def device(self):
        return self.name.removeprefix(KEY_NAME)

    def __str__(self):
        return f"{self.name}+{self.id.hex()}+{encode(ED25519 + self.public)}"


def key_id(name, content):
    return hashlib.sha256(name.encode() + b"\n" + content).digest()[:4]


@dataclass(frozen=True)
class Checkpoint:
    """A signed tree head."""

    origin: str
    size: int
    root: bytes
    note: bytes


def open_note(note, key):
    """The text of a note, which has to be signed with the key. It may have other signatures, as of witnesses."""
    if len(note) > LONGEST:
        raise Untrue("it is longer than a note may be")
    try:
        whole = note.decode()
    except UnicodeDecodeError:
        raise Untrue("it is no text") from None
    text, gap, signatures = whole.rpartition("\n\n")
    if not gap or not signatures.endswith("\n") or any(ord(c) < 32 and c != "\n" for c in whole):
        raise Untrue("it is no signed note")
    text += "\n"
    by, is_signed = [], False
    for line in signatures[:-1].split("\n"):
        found = re.fullmatch(r"\u2014 (\S+) (\S+)", line)
        if not found:
            raise Untrue("a line of its signatures is none")
        signature = decode(found[2], "a signature")
        by.append(found[1])
        if found[1] == key.name and signature[:4] == key.id:
            try:
                Ed25519PublicKey.from_public_bytes(key.public).verify(signature[4:], text.encode())
            except InvalidSignature:
                raise Untrue(f"the signature of {key.name} is not of this text") from None
            is_signed = True
    if not is_signed:
        others = ", ".join(sorted({f"another key of {name}" if name == key.name else name[:140] for name in by[:4]}))
        raise Untrue(f"it is signed by {others}, and not with the enrolled key of {key.name}")
    return text


def open_checkpoint(note, key):
    """A checkpoint that is signed with the key."""
    lines = open_note(note, key).split("\n")
    if len(lines) < 4 or not lines[0] or not NUMBER.fullmatch(lines[1]):
        raise Untrue("it is no checkpoint")
    root = decode(lines[2], "its root hash")
    if len(root) != 32:
        raise Untrue("its root hash has not 32 bytes")
    return Checkpoint(lines[0], int(lines[1]), root, note)


def origin(device, generation):
    return f"{KEY_NAME}{device}/{generation}"
