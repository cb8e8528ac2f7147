"""Goes through one log, from where the last run found it whole: every record hashed, every tile compared."""
import copy
from dataclasses import dataclass, field

from . import records, tree
from .findings import FAILED, FORK, GAP, TAMPERED, Finding
from .notes import Untrue
from .store import Whole
from .tree import ENTRIES, HASH, WHOLE, WIDTH

SHOWN = 3  # of findings that may be many


@dataclass
class Walked:
    """The result of a walk."""

    whole: Whole
    totals: dict
    is_complete: bool = False  # whether the tree could be built up to the head
    is_root_right: bool = False
    begun: dict | None = None
    findings: list = field(default_factory=list)


class Walk:
    """One walk. The head was read before any tile: a box that uploads meanwhile only adds files."""

    def __init__(self, source, folder, generation, head, known=None, from_start=False, on_record=None):
        self.source, self.folder, self.generation, self.head = source, folder, generation, head
        self.known, self.on_record = known, on_record
        start = Whole() if known is None or from_start else known.whole
        self.tree, self.totals = start.tree.copy(), copy.deepcopy(start.totals)
        self.begun = None if known is None or from_start else known.begun
        self.start, self.found, self.missing, self.different = start, [], [], None
        self.bad_records, self.old_root = 0, None

    def run(self):
        """Everything, up to the head."""
        is_complete = self.records()
        rest = self.rest if is_complete else b""
        right = is_complete and self.tree.root(rest) == self.head.root
        if is_complete:
            self.compare_unfinished()
            self.judge(right)
        self.tell_missing()
        result = Walked(self.start, self.totals, is_complete, right, self.begun, self.found)
        if not self.found:
            result.whole = Whole(self.tree, self.whole_totals)
        return result

    def tell(self, kind, text):
        self.found.append(Finding(kind, text, self.generation))

    # --- records ---

    def records(self):
        """Hashes all records. Whether the tree is complete: where records are missing, their hashes may be there."""
        size, first = self.head.size, self.tree.tiles
        whole, last = size // WIDTH, size % WIDTH
        if self.start.size > size:
            return False
        bundles = self.read_all((tree.path(ENTRIES, index) for index in range(first, whole)), tree.LONGEST_BUNDLE)
        tiles = self.read_all((tree.path(0, index) for index in range(first, whole)), WHOLE)
        for index, bundle, hashes in zip(range(first, whole), bundles, tiles):
            leaves = self.leaves(index, WIDTH, bundle, hashes)
            self.look_back(index, leaves)
            root = tree.fold(leaves) if leaves is not None else self.from_above(index)
            if root is None:
                return self.gives_up(index)
            for level, number, full in self.tree.add(root):
                self.compare(level, number, full)
        self.whole_totals = copy.deepcopy(self.totals) if last else self.totals
        self.rest = b""
        if last:
            bundle = self.read_partial(ENTRIES, whole, last, tree.LONGEST_BUNDLE)
            hashes = self.read_partial(0, whole, last, WHOLE)
            self.rest = self.leaves(whole, last, bundle, hashes)
            if self.rest is None:
                return self.gives_up(whole)
        self.look_back(whole, self.rest)
        return True

    def gives_up(self, index):
        first = index * WIDTH
        self.tell(GAP, f"neither the records from {first} on nor their hashes are there: the rest cannot be checked")
        self.missing = [(path, at) for path, at in self.missing if at != index]
        return False

    def read_all(self, paths, limit):
        return self.source.read_all((f"{self.folder}/{path}" for path in paths), limit)

    def read_partial(self, kind, index, width, limit):
        """The first of a tile that was not whole at the head; once it is whole, only the whole one may be left."""
        content = self.source.read(f"{self.folder}/{tree.path(kind, index, width)}", limit) if width < WIDTH else None
        if content is not None:
            return content
        content = self.source.read(f"{self.folder}/{tree.path(kind, index)}", limit)
        if content is None or width == WIDTH:
            return content
        if kind != ENTRIES:
            return content[:width * HASH]
        try:
            return b"".join(len(record).to_bytes(2, "big") + record for record in tree.split(content)[:width])
        except Untrue:
            return content

    def leaves(self, index, width, bundle, hashes):
        """The leaf hashes of a tile, from its records if they are there, else from its hashes."""
        path = tree.path(ENTRIES, index, width)
        if hashes is not None and len(hashes) != width * HASH:
            self.tell(TAMPERED, f"{tree.path(0, index, width)} has {len(hashes)} bytes, and not {width * HASH}")
            hashes = None
        elif hashes is None:
            self.missing.append((tree.path(0, index, width), index))
        if bundle is None:
            self.missing.append((path, index))
            return hashes
        try:
            lines = tree.split(bundle)
            if len(lines) != width:
                raise Untrue(f"it has {len(lines)} records, and not {width}")
        except Untrue as error:
            self.tell(TAMPERED, f"{path} is no bundle of records: {error}")
            return hashes
        leaves = b"".join([tree.leaf(line) for line in lines])
        if hashes is not None and leaves != hashes and self.different is None:
            at = next(at for at in range(width) if leaves[at * HASH:][:HASH] != hashes[at * HASH:][:HASH])
            self.different = index * WIDTH + at, tree.path(0, index, width)
        self.take(index * WIDTH, lines)
        return leaves

    def take(self, first, lines):
        for index, line in enumerate(lines, first):
            try:
                record = records.parse(line, index)
            except Untrue as error:
                self.bad_records += 1
                if self.bad_records <= SHOWN:
                    kind = FAILED if isinstance(error, records.NewerVersion) else TAMPERED
                    self.tell(kind, f"record {index}: {error}")
                continue
            records.count(self.totals, record)
            if index == 0:
                event = record["event"]
                self.begun = event if event["action"] == "log_begun" else None
            if self.on_record:
                self.on_record(line, record)

    # --- hashes ---

    def from_above(self, index):
        """The root over a tile of records that is missing with its hashes: the level above has it."""
        width = tree.width_in(self.head.size, 1, index // WIDTH)
        hashes = self.read_partial(1, index // WIDTH, width, WHOLE) or b""
        at = index % WIDTH * HASH
        return hashes[at:at + HASH] if len(hashes) >= at + HASH else None

    def compare(self, level, index, hashes):
        """Compares a tile of hashes with the records."""
        path = tree.path(level, index, len(hashes) // HASH)
        found = self.read_partial(level, index, len(hashes) // HASH, WHOLE)
        if found is None:
            self.missing.append((path, None))
        elif found != hashes and self.different is None:
            self.different = None, path

    def compare_unfinished(self):
        for level, index, hashes in self.tree.unfinished():
            self.compare(level, index, hashes)

    def look_back(self, index, leaves):
        """The root at the size that was verified last time, when that lies in or before this tile."""
        known = self.known
        if known is None or self.old_root is not None or leaves is None or known.size > self.head.size:
            return
        if known.size // WIDTH == index and len(leaves) >= known.size % WIDTH * HASH:
            self.old_root = self.tree.root(leaves[:known.size % WIDTH * HASH])

    # --- what it means ---

    def judge(self, right):
        known = self.known
        if not right:
            text = f"its records do not lead to the root that was signed at size {self.head.size}"
            if self.different and self.different[0] is not None:
                text += f": record {self.different[0]} is not what {self.different[1]} says"
            elif self.different:
                text += f": nor do they to {self.different[1]}"
            self.tell(TAMPERED, text)
        elif self.different:
            self.tell(TAMPERED, f"{self.different[1]} does not have the hashes of what is below it")
        if right and known and self.old_root is not None and self.old_root != known.root:
            if known.size == self.head.size:
                text = "two heads of this size were signed, with different roots"
            else:
                text = f"the first {known.size} records are others than those that were verified"
            self.tell(FORK, f"{text}: the box, or somebody with its key, has signed another history")
        if self.head.size and self.begun is None and not self.bad_records:
            if not any(path.startswith("tile/entries/000") for path, _ in self.missing):
                self.tell(TAMPERED, "its first record does not say that a log begins")

    def tell_missing(self):
        """The missing parts, in few words: records as ranges."""
        lost = sorted({index for path, index in self.missing if path.startswith("tile/entries/")})
        ranges = []
        for index in lost:
            end = min((index + 1) * WIDTH, self.head.size)
            if ranges and ranges[-1][1] == index * WIDTH:
                ranges[-1][1] = end
            else:
                ranges.append([index * WIDTH, end])
        for first, end in ranges[:SHOWN]:
            self.tell(GAP, f"records {first} to {end - 1} are not there")
        hashes = [path for path, _ in self.missing if not path.startswith("tile/entries/")]
        for path in hashes[:SHOWN]:
            self.tell(GAP, f"{path} is not there")
        more = max(0, len(ranges) - SHOWN) + max(0, len(hashes) - SHOWN)
        if more:
            self.tell(GAP, f"{more} more gaps")


def root_at(source, folder, head_size, size):
    """The root hash of the first SIZE records, by the hash tiles that are there; None where they are not."""
    levels, level = [], 0
    while size >> 8 * level:
        count, index = (size >> 8 * level) % WIDTH, (size >> 8 * level) // WIDTH
        hashes = b""
        if count:
            width = tree.width_in(head_size, level, index)
            for path in dict.fromkeys((tree.path(level, index, width), tree.path(level, index))):
                hashes = source.read(f"{folder}/{path}", WHOLE) or b""
                if len(hashes) >= count * HASH:
                    break
            else:
                return None
        levels.append(hashes[:count * HASH])
        level += 1
    return tree.root_of(levels)
