"""Boxes that write audit logs and sync them, in a few lines that share nothing with what verifies them."""
import base64
import hashlib
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def digest(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def root_of(leaves):
    """As RFC 6962 defines it."""
    if not leaves:
        return digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return digest(b"\x01", root_of(leaves[:split]), root_of(leaves[split:]))


def inclusion(index, leaves):
    """The path from a leaf to the root, as RFC 6962 defines it."""
    if len(leaves) == 1:
        return []
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    if index < split:
        return [*inclusion(index, leaves[:split]), root_of(leaves[split:])]
    return [*inclusion(index - split, leaves[split:]), root_of(leaves[:split])]


def text(content):
    return base64.b64encode(content).decode()


class Signer:
    """The audit key of a box."""

    def __init__(self, device):
        self.name, self.private = f"ledge.audit/{device}", Ed25519PrivateKey.generate()
        self.public = b"\x01" + self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = digest(self.name.encode(), b"\n", self.public)[:4]
        self.verifier_key = f"{self.name}+{self.id.hex()}+{text(self.public)}"

    def sign(self, origin, size, root):
        head = f"{origin}\n{size}\n{text(root)}\n"
        return f"{head}\n— {self.name} {text(self.id + self.private.sign(head.encode()))}\n"


class Log:
    """One log of a box."""

    def __init__(self, signer, generation=1, cause="new", previous=None):
        self.signer, self.generation, self.records = signer, generation, []
        self.origin = f"{signer.name}/{generation}"
        self.add({"action": "log_begun", "cause": cause, "previous": previous})

    def add(self, event, ts="2026-11-20T06:00:00.250Z", seq=None, v=1):
        record = {"v": v, "seq": len(self.records) if seq is None else seq, "ts": ts, "actor": {"kind": "local"},
                  "event": event}
        self.records.append(json.dumps(record, separators=(",", ":")).encode())
        return self

    def grow(self, size, model="minilm"):
        while len(self.records) < size:
            self.add({"action": "inference", "model": model, "version": 1, "digest": None, "outcome": "ok", "us": 7})
        return self

    def leaves(self, size=None):
        return [digest(b"\x00", record) for record in self.records[:size]]

    def head(self, size=None):
        leaves = self.leaves(size)
        return self.signer.sign(self.origin, len(leaves), root_of(leaves))

    def previous(self, size=None, found=None):
        """What the log after this one says of it."""
        leaves = self.leaves(size)
        return {"origin": self.origin, "size": len(leaves), "root": text(root_of(leaves)),
                "found": len(self.records) if found is None else found}

    def files(self, old=0):
        """What is uploaded when a log of `old` records has grown: {path: content}, the checkpoint last."""
        found, hashes = {}, self.leaves()
        size, before = len(hashes), old
        for level in range(8):
            if not size:
                break
            for index in range(before // 256, -(-size // 256)):
                width = min(256, size - 256 * index)
                name, number = f"{index % 1000:03}", index // 1000
                while number:
                    name, number = f"x{number % 1000:03}/{name}", number // 1000
                name += "" if width == 256 else f".p/{width}"
                part = slice(256 * index, 256 * index + width)
                if level == 0:
                    records = self.records[part]
                    found[f"tile/entries/{name}"] = b"".join(len(one).to_bytes(2, "big") + one for one in records)
                found[f"tile/{level}/{name}"] = b"".join(hashes[part])
            hashes = [root_of(hashes[at:at + 256]) for at in range(0, size - size % 256, 256)]
            size, before = len(hashes), before // 256
        return {**found, "checkpoint": self.head().encode()}

    def sync(self, folder, old=0):
        """Uploads to the folder of all boxes."""
        log = folder / self.origin.removeprefix("ledge.audit/")
        for path, content in self.files(old).items():
            (log / path).parent.mkdir(parents=True, exist_ok=True)
            (log / path).write_bytes(content)
        return log

    def proof(self, index, size=None, extra=True):
        lines = ["c2sp.org/tlog-proof@v1", *([f"extra {text(self.records[index])}"] if extra else []), f"index {index}",
                 *map(text, inclusion(index, self.leaves(size)))]
        return "\n".join(lines) + "\n\n" + self.head(size)
