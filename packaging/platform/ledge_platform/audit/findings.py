"""The faults of the log of a box, by severity."""
from dataclasses import dataclass

TAMPERED, FORK, GAP, FAILED, STALE, NOTICE = "tampered", "fork", "gap", "failed", "stale", "notice"

# The worst first, with the exit status of each.
STATUSES = {TAMPERED: 5, FORK: 4, GAP: 3, FAILED: 2, STALE: 6, NOTICE: 0}
PASSING = (FAILED, STALE)  # they say nothing about the log itself, so there is nothing to acknowledge


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. Its text says the same at every run, so that it can be acknowledged."""

    kind: str
    text: str
    generation: int | None = None
    acknowledged: bool = False

    def __str__(self):
        where = f"log {self.generation}: " if self.generation else ""
        return f"{self.kind}: {where}{self.text}" + (" (acknowledged)" if self.acknowledged else "")

    def as_json(self):
        return {"kind": self.kind, "generation": self.generation, "text": self.text, "acknowledged": self.acknowledged}


def worst(findings):
    """The kind of the worst unacknowledged finding; None without one."""
    kinds = {finding.kind for finding in findings if not finding.acknowledged and finding.kind != NOTICE}
    return next((kind for kind in STATUSES if kind in kinds), None)


def status(findings):
    return STATUSES.get(worst(findings), 0)
