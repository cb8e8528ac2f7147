"""Inclusion proofs (C2SP tlog-proof): that a record is in a log, for one who has nothing else of the log."""
from dataclasses import dataclass

from . import notes, records, tree
from .notes import NUMBER, Untrue, decode

FIRST = "c2sp.org/tlog-proof@v1"
MOST_HASHES = 63


@dataclass(frozen=True)
class Proof:
    """The content of a proof."""

    extra: bytes | None
    index: int
    hashes: list
    note: bytes


def parse(content):
    try:
        head, gap, note = content.decode().partition("\n\n")
    except UnicodeDecodeError:
        raise Untrue("it is no text") from None
    lines = head.split("\n")
    if lines.pop(0) != FIRST or not gap:
        raise Untrue(f"it does not begin with {FIRST}")
    extra = None
    if lines and lines[0].startswith("extra "):
        extra = decode(lines.pop(0).removeprefix("extra "), "its record")
    if not lines or not lines[0].startswith("index ") or not NUMBER.fullmatch(lines[0].removeprefix("index ")):
        raise Untrue("it does not say which record it is of")
    index = int(lines.pop(0).removeprefix("index "))
    hashes = [decode(line, "a hash") for line in lines]
    if len(hashes) > MOST_HASHES or any(len(one) != tree.HASH for one in hashes):
        raise Untrue("a line of it is no hash")
    return Proof(extra, index, hashes, note.encode())


def check(content, box, line=None):
    """The record that a proof proves, and the checkpoint that it leads to."""
    proof = parse(content)
    line = proof.extra if line is None else line
    if line is None:
        raise Untrue("the record is not in it: name a file that has it with --record")
    keys = [str(box.key), *(log.key for log in box.logs.values())]
    head, complaint = None, None
    for key in dict.fromkeys(keys):
        try:
            head = notes.open_checkpoint(proof.note, notes.VerifierKey.parse(key))
            break
        except Untrue as error:
            complaint = complaint or error
    if head is None:
        raise Untrue(f"its checkpoint does not count: {complaint}")
    device, _, generation = head.origin.rpartition("/")
    if device != notes.KEY_NAME + box.device or not NUMBER.fullmatch(generation):
        raise Untrue(f"its checkpoint is of the log {head.origin}")
    if not tree.includes(proof.index, head.size, tree.leaf(line), proof.hashes, head.root):
        raise Untrue("its hashes do not lead from the record to the root that was signed")
    log = box.logs.get(int(generation))
    if log and log.size == head.size and log.root != head.root:
        raise Untrue(f"the platform verified another head of size {head.size}: the log was forked")
    return records.parse(line, proof.index), head
