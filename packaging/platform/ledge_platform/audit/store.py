"""The platform's state of each box: its pinned key, and up to where its logs were verified.

One file a box, replaced as a whole: a run that is killed leaves what the run before found, and the next one goes on
from there. Whoever can write here can hide what was verified before, so boxes must not be able to.
"""
import fcntl
import json
from contextlib import contextmanager
from dataclasses import dataclass, field

from .. import files, moments, names
from ..errors import Failure, Refused
from .findings import PASSING, NOTICE, Finding
from .notes import VerifierKey, decode, encode
from .tree import HASH, WIDTH, Tree

FORMAT = 1


@dataclass
class Whole:
    """Up to here, by whole tiles, nothing is missing and everything was checked: the next run goes on behind it."""

    tree: Tree = field(default_factory=Tree)
    totals: dict = field(default_factory=dict)

    @property
    def size(self):
        return self.tree.tiles * WIDTH


@dataclass
class Log:
    """The verified part of one log."""

    key: str
    size: int
    root: bytes
    checkpoint: str
    begun: dict | None = None
    whole: Whole = field(default_factory=Whole)
    totals: dict = field(default_factory=dict)

    def to_json(self):
        return {
            "key": self.key, "size": self.size, "root": encode(self.root), "checkpoint": self.checkpoint,
            "begun": self.begun, "totals": self.totals,
            "whole": {"tiles": [encode(bytes(hashes)) for hashes in self.whole.tree.levels],
                      "totals": self.whole.totals},
        }

    @classmethod
    def of_json(cls, found):
        levels = [decode(hashes, "a tile") for hashes in found["whole"]["tiles"]]
        if any(len(hashes) % HASH or len(hashes) >= WIDTH * HASH for hashes in levels):
            raise ValueError("a tile has another length")
        return cls(found["key"], found["size"], decode(found["root"], "a root hash"), found["checkpoint"],
                   found["begun"], Whole(Tree(levels), found["whole"]["totals"]), found["totals"])


@dataclass
class Box:
    """An enrolled box."""

    device: str
    key: VerifierKey
    enrolled: str
    replaced: list = field(default_factory=list)  # keys that were pinned before, and until when
    logs: dict = field(default_factory=dict)
    findings: list = field(default_factory=list)  # of the last run
    acknowledged: list = field(default_factory=list)
    verified: str | None = None  # when the last run read its logs, whatever it found

    def to_json(self):
        return {
            "format": FORMAT, "device": self.device, "key": str(self.key), "enrolled": self.enrolled,
            "replaced": self.replaced, "logs": {str(number): log.to_json() for number, log in self.logs.items()},
            "findings": [finding.as_json() for finding in self.findings], "acknowledged": self.acknowledged,
            "verified": self.verified,
        }

    @classmethod
    def of_json(cls, found):
        if found["format"] != FORMAT:
            raise ValueError(f"it has format {found['format']}, and {FORMAT} is known")
        logs = {int(number): Log.of_json(log) for number, log in found["logs"].items()}
        findings = [Finding(one["kind"], one["text"], one["generation"], one["acknowledged"])
                    for one in found["findings"]]
        return cls(found["device"], VerifierKey.of(found["device"], found["key"]), found["enrolled"],
                   found["replaced"], logs, findings, found["acknowledged"],
                   found.get("verified"))

    def is_acknowledged(self, finding):
        return any((known["kind"], known["generation"], known["text"])
                   == (finding.kind, finding.generation, finding.text) for known in self.acknowledged)

    def acknowledge(self, reason):
        """Acknowledges the findings of the last run, and returns them."""
        new = [finding for finding in self.findings
               if finding.kind not in (*PASSING, NOTICE) and not finding.acknowledged]
        at = moments.text(moments.now())
        self.acknowledged += [{**finding.as_json(), "acknowledged": at, "reason": reason} for finding in new]
        self.findings = [finding for finding in self.findings if finding not in new]
        return new


class Store:
    """The folder of all boxes."""

    def __init__(self, folder):
        self.folder = folder

    @contextmanager
    def locked(self, wait=True):
        """One run at a time: a cron line and a person may meet. Without WAIT, BlockingIOError if one is going on."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield

    def path(self, device):
        return self.folder / f"{names.name(device, 'device')}.json"

    def devices(self):
        return sorted(path.name.removesuffix(".json") for path in self.folder.glob("[!.]*.json"))

    def load(self, device):
        """The stored state of a box; None when it is not enrolled."""
        path = self.path(device)
        try:
            box = Box.of_json(json.loads(path.read_bytes()))
            if box.device != device:
                raise ValueError(f"it is of {box.device}")
            return box
        except FileNotFoundError:
            return None
        except Failure:
            raise
        except Exception as error:  # whatever is not as it was written
            what = f"{type(error).__name__}: {error}"
            raise Failure(f"{path} cannot be read ({what}): restore it from a backup") from None

    def enrolled(self, device):
        box = self.load(device)
        if box is None:
            raise Failure(f"{device} is not enrolled in {self.folder}: `ledge-platform audit enroll {device} KEY`")
        return box

    def save(self, box):
        files.write(self.path(box.device), self.content(box), 0o600)

    @staticmethod
    def content(box):
        return json.dumps(box.to_json(), indent=1).encode() + b"\n"

    def enroll(self, device, text, replace=False):
        """Pins a key. Returns the change, in a word."""
        box = self.pinned(device, text, replace)
        if box is None:
            return "already enrolled"
        self.save(box)
        return "enrolled with another key" if box.replaced else "enrolled"

    def pinned(self, device, text, replace=False):
        """The state of a box with this key pinned; None if it is pinned already."""
        key, box = VerifierKey.of(device, text), self.load(device)
        now = moments.text(moments.now())
        if box is None:
            return Box(device, key, now)
        if box.key == key:
            return None
        if not replace:
            raise Refused(f"{device} has another key than the one that is pinned ({box.key}): if its owner says why, "
                          "--replace pins the new one")
        box.replaced.append({"key": str(box.key), "until": now})
        box.key, box.enrolled = key, now
        return box
