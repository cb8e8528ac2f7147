"""Numbers with their spread, and the one row of the table that they end in."""
import math
from dataclasses import dataclass, field
from typing import Dict, List, Optional

MEETS, FALLS_SHORT, NOT_MEASURED = "meets", "falls short", "not measured"


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        ordered = sorted(values)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(median, ordered[0], ordered[-1])

    def scaled(self, scale):
        return Spread(self.median * scale, self.low * scale, self.high * scale)

    def show(self, scale=1.0):
        """`83 [80-91]`, with the significant digits only; `83` if all values are equal."""
        if self.low == self.high:
            return digits(self.median * scale)
        shown = self.scaled(scale)
        return "{} [{}-{}]".format(*map(digits, (shown.median, shown.low, shown.high)))


def digits(number):
    """Three significant digits, without an exponent."""
    if number == 0 or not math.isfinite(number):
        return str(int(number)) if number == 0 else str(number)
    if number == int(number) and abs(number) < 1e6:
        return str(int(number))
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def percentile(values, share):
    """The least value that SHARE of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass
class Row:
    """A row of the table: a measurement with its budget, and further figures.

    `measured` and `limit` are in `unit`. The ratio is measured to limit, and at most 1 meets the budget, unless
    `at_least` inverts both. A row without a measurement has the reason in `verdict`. `ratios` has the figure of each peer
    divided by Ledge's, where both were measured in turns in this run.
    """

    what: str
    unit: str = ""
    limit: Optional[float] = None
    measured: Optional[Spread] = None
    at_least: bool = False
    beside: List[str] = field(default_factory=list)
    verdict: str = ""
    ratios: Dict[str, Spread] = field(default_factory=dict)

    def __post_init__(self):
        if not self.verdict and self.measured is not None and self.limit is not None:
            # Judged by the median; the spread is only shown.
            met = self.measured.median >= self.limit if self.at_least else self.measured.median <= self.limit
            self.verdict = MEETS if met else FALLS_SHORT

    @property
    def ratio(self):
        """Measured to budget, or None without either or where the budget is zero."""
        return self.measured.median / self.limit if self.measured and self.limit else None

    def as_json(self):
        spread = self.measured and {"median": self.measured.median, "min": self.measured.low, "max": self.measured.high}
        return {"what": self.what, "ratio_to_budget": self.ratio, "measured": spread, "unit": self.unit,
                "budget": self.limit, "at_least": self.at_least, "beside": self.beside, "verdict": self.verdict,
                "peers_to_ledge": {name: vars(spread) for name, spread in self.ratios.items()}}

    @property
    def is_missed(self):
        """True for a budget that is not met, and for a row that could not be measured."""
        return self.verdict == FALLS_SHORT or self.verdict.startswith(NOT_MEASURED)
