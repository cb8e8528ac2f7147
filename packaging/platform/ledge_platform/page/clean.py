"""Texts of boxes, as far as a page shows them."""
from .. import moments, reports
from ..errors import Failure

LONGEST = 300


def line(value, longest=LONGEST):
    """A text of a box, bounded; None for another type."""
    if not isinstance(value, str) or not value:
        return None
    return reports.printable(value if len(value) <= longest else value[: longest - 1] + "…")


def number(value):
    """A finite number that a page can show as such."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= 2**53 else None


def moment(value):
    """A moment in its one form, or None."""
    try:
        return moments.text(moments.parse(value))
    except (Failure, OverflowError):
        return None


def table(value):
    return value if isinstance(value, dict) else {}


def rows(value, most):
    """Up to MOST objects of a list."""
    return [entry for entry in value[:most] if isinstance(entry, dict)] if isinstance(value, list) else []
