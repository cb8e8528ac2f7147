"""All logs of a box, one after the other, and how each follows the one before."""
from dataclasses import dataclass, field, replace

from .. import moments, names
from ..errors import Failure
from . import notes, walk
from .findings import FAILED, FORK, GAP, NOTICE, STALE, TAMPERED, Finding, worst
from .notes import KEY_NAME, LONGEST, Untrue, VerifierKey, encode
from .store import Log


@dataclass
class Report:
    """The findings about a box."""

    device: str
    findings: list = field(default_factory=list)
    synced: object = None  # when the platform got its last checkpoint
    new: int = 0  # records that no run before had seen
    box: object = None

    @property
    def logs(self):
        return self.box.logs if self.box else {}

    @property
    def word(self):
        return worst(self.findings) or "whole"


def head_of(source, box, generation):
    """The head of a log, by the key that the log was first verified with; None without a head."""
    note = source.read(f"{box.device}/{generation}/checkpoint", LONGEST)
    if note is None:
        return None
    known = box.logs.get(generation)
    head = notes.open_checkpoint(note, VerifierKey.parse(known.key) if known else box.key)
    if head.origin != notes.origin(box.device, generation):
        raise Untrue(f"it is of the log {head.origin}")
    if known and head.size < known.size:
        raise Untrue(f"it is an old one: the log was turned back from {known.size} records to {head.size}")
    return head


def says_more(begun, size):
    """True if a log states that the one before it has more records."""
    previous = (begun or {}).get("previous")
    told = previous.get("size") if isinstance(previous, dict) else None
    return isinstance(told, int) and told > size


class Verification:
    """A run over some boxes."""

    def __init__(self, source, store, from_start=False, stale_s=26 * 3600):
        self.source, self.store, self.from_start, self.stale_s = source, store, from_start, stale_s

    def verify(self, device):
        """One box: its findings, kept for the next run."""
        try:
            box = self.store.enrolled(device)
        except Failure as failure:  # the other boxes are verified all the same
            return Report(device, [Finding(FAILED, str(failure))])
        report = Report(device, box=box)
        found = report.findings
        try:
            there = self.source.generations(device, list(box.logs))
            for generation in sorted({*there, *box.logs}):
                self.verify_log(report, generation)
            self.check_age(report)
        except (Failure, OSError) as failure:
            found.append(Finding(FAILED, str(failure)))
        report.findings = [replace(finding, acknowledged=box.is_acknowledged(finding))
                           for finding in dict.fromkeys(found)]
        box.findings = report.findings
        if not any(finding.kind == FAILED for finding in found):
            box.verified = moments.text(moments.now())
        self.store.save(box)
        return report

    def verify_log(self, report, generation):
        box, known = report.box, report.box.logs.get(generation)

        def tell(kind, text):
            report.findings.append(Finding(kind, text, generation))

        try:
            head = head_of(self.source, box, generation)
        except Untrue as error:
            tell(TAMPERED, f"its checkpoint does not count: {error}")
            return
        if head is None:
            if known:
                tell(GAP, f"its checkpoint is gone, and {known.size} records were verified")
            return  # else it is just being uploaded for the first time: its checkpoint comes last
        if known and head.size > known.size and known.key != str(box.key):
            tell(TAMPERED, "it grew although the key that signs it was replaced")
            return
        if known and head.size == known.size and head.root != known.root:
            # No tile has to be read: the two signatures are the proof.
            tell(FORK, f"two heads of size {head.size} were signed, with different roots: the box, or somebody with "
                       "its key, has signed another history")
            return
        after = box.logs.get(generation + 1)
        if known and head.size > known.size and after and (after.begun or {}).get("cause") == "restored" \
                and not says_more(after.begun, known.size):
            tell(FORK, "it grew after the box was restored from a backup: the old hardware still runs, or somebody else "
                       "has its key")
        folder = f"{box.device}/{generation}"
        walked = walk.Walk(self.source, folder, generation, head, known, self.from_start).run()
        if known and walked.is_complete and not walked.is_root_right and not self.from_start:
            # Either something was changed, or all of it is another history: only the beginning shows which.
            walked = walk.Walk(self.source, folder, generation, head, known, True).run()
        report.findings += walked.findings
        if not walked.is_root_right or any(finding.kind == FORK for finding in walked.findings):
            return
        report.new += head.size - (known.size if known else 0)
        box.logs[generation] = Log(known.key if known else str(box.key), head.size, head.root, head.note.decode(),
                                   walked.begun, walked.whole, walked.totals)
        self.store.save(box)  # what is found of the next log, or not, takes nothing away from this one
        before = box.logs.get(generation - 1)
        if before and says_more(walked.begun, before.size):
            self.verify_log(report, generation - 1)  # the rest of it may have come since it was looked at
        report.findings += self.check_beginning(box, generation)

    # --- how a log follows the one before ---

    def check_beginning(self, box, generation):
        begun = box.logs[generation].begun
        if not begun:
            return []

        def finding(kind, text):
            return Finding(kind, text, generation)

        cause, previous = begun.get("cause"), begun.get("previous")
        before = max((number for number in box.logs if number < generation), default=None)
        if cause == "new":
            return [finding(FORK, "it says that it is the first, and others were before it")] if before else []
        says = {"damaged": (TAMPERED, "the box found the log before this one damaged, and began another"),
                "forked": (FORK, "the box found another history of its log here, and began another"),
                "renamed": (NOTICE, "it goes on under another name"),
                "restored": (NOTICE, "the box was restored from a backup, and began another")}
        found = [finding(*says.get(cause, (TAMPERED, f"it began for a cause that is not known here: {cause!r:.60}")))]
        if not isinstance(previous, dict):
            if before:
                found.append(finding(GAP, "the box did not know any more what the log before this one had"))
            return found
        try:
            return found + [finding(*told) for told in self.compare_with_previous(box, generation, previous,
                                                                                       cause == "restored")]
        except (KeyError, TypeError, ValueError, AttributeError, Untrue):
            return [*found, finding(TAMPERED, "what it says of the log before it cannot be read")]

    def compare_with_previous(self, box, generation, previous, is_restored):
        """The box's statement about the log before, compared with what the platform verified."""
        origin, size, root, have = previous["origin"], previous["size"], previous["root"], previous["found"]
        device, _, number = origin.removeprefix(KEY_NAME).rpartition("/")
        is_named = names.VERSION.fullmatch(number) and names.NAME.fullmatch(device)
        if not is_named or type(size) is not int or type(have) is not int:
            raise Untrue("it has another form")
        if device == box.device and int(number) != generation - 1:
            yield TAMPERED, f"it says that it follows log {number}"
        other = box if device == box.device else self.store.load(device)
        log = other.logs.get(int(number)) if other else None
        if log is None:
            yield GAP, f"the log before it, {origin}, was never verified here (it has {size} records)"
            return
        if size > log.size:
            yield GAP, f"the log before it has {size} signed records, and {log.size} of them came here"
        elif size < log.size and is_restored:
            # A backup is older than the last record, and the box says so. Nothing that came here is lost.
            yield NOTICE, f"its backup has {size} records of the log before it, and {log.size} were verified here"
        elif size < log.size:
            yield FORK, (f"the box knows only {size} signed records of the log before it, and {log.size} were verified "
                         "here: it was set back")
        if have < min(size, log.size):
            yield GAP, f"the box had only {have} records left of the log before it, and {log.size} were verified here"
        if 0 < size <= log.size:
            at = walk.root_at(self.source, f"{device}/{number}", log.size, size) if size < log.size else log.root
            if at is not None and encode(at) != root:
                yield FORK, f"the log before it had other records on the box than here, within the first {size}"

    # --- whether it comes at all ---

    def check_age(self, report):
        found = [at for generation in report.box.logs
                 if (at := self.source.modified(f"{report.device}/{generation}/checkpoint"))]
        report.synced = max(found, default=None)
        if report.synced is None:
            if not report.findings:
                report.findings.append(Finding(STALE, "nothing has come from it yet"))
        elif (moments.now() - report.synced).total_seconds() > self.stale_s:
            hours = moments.spoken(self.stale_s)
            report.findings.append(Finding(STALE, f"nothing has come for more than {hours}, since "
                                                  f"{moments.text(report.synced)}"))
