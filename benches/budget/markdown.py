"""The tables that docs/performance.md quotes, made from the rows of one run."""
from . import provenance

MODEL_SERVERS = ("Triton", "MLServer", "mosec")


def tables(rows, run, left_out):
    """Ledge compared with the model servers, with Feast's server, and with its budgets."""
    beside_servers = [row for row in rows if row.measured and not set(MODEL_SERVERS).isdisjoint(row.ratios)]
    beside_feast = [row for row in rows if row.measured and "Feast" in row.ratios]
    parts = [f"{provenance.line(run)}.", "Medians; `x` is a multiple of Ledge's figure, measured by turns in the same run.", ""]
    parts += [f"Left out: {name}: {reason}." for name, reason in left_out.items()]
    parts += beside(beside_servers, MODEL_SERVERS) + beside(beside_feast, ("Feast",)) + alone(rows)
    return "\n".join(parts).rstrip() + "\n"


def beside(rows, names):
    """One column for each peer; empty where it was not measured."""
    if not rows:
        return []
    lines = [line("", "Ledge", *names), line(*["---"] * (2 + len(names)))]
    for row in rows:
        ratios = [f"{short(row.ratios[name].median)} x" if name in row.ratios else "" for name in names]
        lines.append(line(row.what, shown(row), *ratios))
    return [*lines, ""]


def alone(rows):
    """Every row with its budget."""
    lines = [line("", "measured [min-max]", "budget", ""), line(*["---"] * 4)]
    for row in rows:
        measured = f"{row.measured.show()} {row.unit}".strip() if row.measured else ""
        budget = "" if row.limit is None else f"{'at least' if row.at_least else 'at most'} {row.limit:g} {row.unit}".strip()
        lines.append(line(row.what, measured, budget, row.verdict))
    return lines


def shown(row):
    return f"{short(row.measured.median)} {row.unit}".strip()


def short(number):
    """Two significant digits, or all of an integer's part."""
    return f"{number:.0f}" if abs(number) >= 10 else f"{number:.2g}"


def line(*cells):
    return f"| {' | '.join(cells)} |"
