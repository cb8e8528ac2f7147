"""The Merkle tree of RFC 6962, cut into tiles of 256 (C2SP tlog-tiles)."""
from hashlib import sha256

from .notes import Untrue

WIDTH = 256
ENTRIES = "entries"
HASH = 32
WHOLE = WIDTH * HASH  # bytes of a whole tile of hashes
LONGEST_BUNDLE = WIDTH * (2 + 65_535)
EMPTY = sha256(b"").digest()


def leaf(record):
    return sha256(b"\x00" + record).digest()


def node(left, right):
    return sha256(b"\x01" + left + right).digest()


def fold(hashes):
    """The root over 2^n hashes that stand one behind the other."""
    while len(hashes) > HASH:
        hashes = b"".join([sha256(b"\x01" + hashes[at:at + 64]).digest() for at in range(0, len(hashes), 64)])
    return hashes


def subtrees(hashes):
    """The roots of the complete trees that this many hashes make, the largest first."""
    at, found = 0, []
    for height in range(8, -1, -1):
        length = HASH << height
        if len(hashes) - at >= length:
            found.append(fold(hashes[at:at + length]))
            at += length
    return found


def root_of(levels):
    """The root hash of a tree. LEVELS: from the lowest up, the hashes of the tile of each level that is not whole."""
    parts = [part for hashes in reversed(levels) for part in subtrees(bytes(hashes))]
    if not parts:
        return EMPTY
    root = parts.pop()
    while parts:
        root = node(parts.pop(), root)
    return root


class Tree:
    """A tree that grows by whole tiles: of each level above the records, the tile that is not whole yet."""

    def __init__(self, levels=()):
        self.levels = [bytearray(hashes) for hashes in levels]

    @property
    def tiles(self):
        """The number of whole tiles of records."""
        return sum(len(hashes) // HASH * WIDTH**height for height, hashes in enumerate(self.levels))

    def add(self, root):
        """Takes the root over a whole tile of records. Gives the tiles that became whole: (level, index, hashes)."""
        whole, height = [], 0
        while True:
            if height == len(self.levels):
                self.levels.append(bytearray())
            self.levels[height] += root
            if len(self.levels[height]) < WHOLE:
                return whole
            hashes = bytes(self.levels[height])
            self.levels[height].clear()
            whole.append((height + 1, self.tiles_of(height + 1), hashes))
            root, height = fold(hashes), height + 1

    def tiles_of(self, level):
        """The number of whole tiles of a level."""
        return sum(len(hashes) // HASH * WIDTH**(height - level)
                   for height, hashes in enumerate(self.levels) if height >= level)

    def unfinished(self):
        """(level, index, hashes) of the tiles that are not whole."""
        return [(height + 1, self.tiles_of(height + 1), bytes(hashes))
                for height, hashes in enumerate(self.levels) if hashes]

    def root(self, rest=b""):
        """The root hash, with the leaf hashes of the records behind the last whole tile."""
        return root_of([rest, *self.levels])

    def copy(self):
        return Tree(self.levels)


def path(kind, index, width=WIDTH):
    """Where a tile lies in its log. KIND: a level, or ENTRIES."""
    groups = [f"{index % 1000:03}"]
    while index >= 1000:
        index //= 1000
        groups.append(f"x{index % 1000:03}")
    return f"tile/{kind}/{'/'.join(reversed(groups))}" + ("" if width == WIDTH else f".p/{width}")


def width_in(size, level, index):
    """The number of hashes, or records, of a tile in a log of SIZE records."""
    return min(WIDTH, (size >> 8 * level) - index * WIDTH)


def split(bundle):
    """The records of an entry bundle."""
    records, at, end = [], 0, len(bundle)
    while at < end:
        start = at + 2
        at = start + int.from_bytes(bundle[at:start], "big")
        if at > end:
            raise Untrue("it breaks off within a record")
        records.append(bundle[start:at])
    return records


def includes(index, size, leaf_hash, proof, root):
    """True if the proof leads from a leaf to the root (RFC 9162, 2.1.3.2)."""
    if index >= size:
        return False
    at, last, found = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node(sibling, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node(found, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root
