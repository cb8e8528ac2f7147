"""The table as text: ratios first, each row closing with its verdict."""
import textwrap

from .figures import digits

WIDTHS = (82, 7, 30, 13)


def header():
    return line("what", "ratio", "measured [min-max]", "budget", "verdict") + "\n" + "-" * 154


def show(row):
    """A row, and below it, indented, its further figures."""
    ratio = "-" if row.ratio is None else f"{digits(row.ratio)} x"
    measured = "-" if row.measured is None else f"{row.measured.show()} {row.unit}".strip()
    sign = ">=" if row.at_least else "<="
    budget = "" if row.limit is None else f"{sign} {row.limit:g} {row.unit}".strip()
    lines = [line(row.what, ratio, measured, budget, row.verdict)]
    for text in row.beside:
        lines += textwrap.wrap(text, 152, initial_indent="    ", subsequent_indent="      ")
    return "\n".join(lines)


def line(what, ratio, measured, budget, verdict):
    columns = [what.ljust(WIDTHS[0]), ratio.rjust(WIDTHS[1]), measured.ljust(WIDTHS[2]), budget.ljust(WIDTHS[3]), verdict]
    return "  ".join(columns).rstrip()
