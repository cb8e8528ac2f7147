"""Tables of right, wrong and missing answers in Markdown. They have no word of a document in them."""
from collections import Counter

from documents.compare import FIELDS, INVENTED, MISSING, RIGHT, WRONG, confidence_of, judge
from documents.curve import THRESHOLDS, TENTHS, WIDE_COVERAGE, WRONG_MAX, Curve

STATES = (RIGHT, WRONG, MISSING)


class Judged:
    """A document with its answer, and the state of each field that has a truth: as it is answered, and with what is answered as doubtful."""

    def __init__(self, set_name, row, fields, doubtful=None):
        self.set, self.row, self.fields, self.with_doubtful = set_name, row, fields, {**(doubtful or {}), **fields}
        self.states, self.all_states = ({field: state for field in FIELDS if (state := judge(field, row, answer))} for answer in (fields, self.with_doubtful))

    @property
    def has_doubt(self):
        return bool(self.row.get("doubt"))


def by_field(documents, title):
    """A row for each field. An invented value is a wrong answer, too."""
    yield from heading(title, ["field", "with truth", *STATES, INVENTED, "right, %", "wrong, % of the answers"])
    for field in FIELDS:
        counts = count(documents, field)
        truths, wrong = sum(counts[state] for state in STATES), counts[WRONG] + counts[INVENTED]
        if truths:
            states = [counts[state] for state in (*STATES, INVENTED)]
            yield line([field, truths, *states, percent(counts[RIGHT], truths), percent(wrong, counts[RIGHT] + wrong)])


def by_group(documents, title, group_of):
    """A row for each group, and `right / wrong / missing` for each field that has a truth there."""
    groups = {}
    for document in documents:
        groups.setdefault(group_of(document), []).append(document)
    fields = [field for field in FIELDS if any(field in document.states for document in documents)]
    yield from heading(f"{title}: right / wrong / missing", ["", "documents", *fields])
    for name, members in sorted(groups.items()):
        counts = [count(members, field) for field in fields]
        yield line([name, len(members), *(" / ".join(str(each[state]) for state in STATES) if each else "" for each in counts)])


def count(documents, field):
    return Counter(document.states[field] for document in documents if field in document.states)


def curves(documents):
    """{field: curve} of the fields that any answer has. Doubtful values count: their confidence says what they are."""
    made = {}
    for field in FIELDS:
        states = [(confidence_of(field, document.with_doubtful), document.all_states[field]) for document in documents if field in document.all_states]
        answers = [(confidence, state == RIGHT) for confidence, state in states if state != MISSING]
        if answers:
            made[field] = Curve(answers, sum(state != INVENTED for _, state in states))
    return made


def summary(made):
    """What a caller can have who takes only answers that are sure."""
    columns = ["field", f"highest coverage with at most {WRONG_MAX:.0%} wrong", "confidence for it", f"right at {WIDE_COVERAGE:.0%} coverage"]
    yield from heading("Coverage and confidence", columns)
    for field, curve in made.items():
        widest, wide_point = curve.widest(), curve.at_coverage(WIDE_COVERAGE)
        yield line([field, f"{widest.coverage:.1%}" if widest else "none", f"{widest.threshold:.3f}" if widest else "",
                    f"{wide_point.right_share:.1%}" if wide_point else f"not reached: {curve.points[-1].coverage:.1%} answered"])


def by_threshold(made):
    yield from heading("Answers of at least this confidence: coverage / wrong", ["confidence", *made])
    for threshold in THRESHOLDS:
        yield line([f"{threshold:.2f}", *(pair(curve.at_threshold(threshold)) for curve in made.values())])


def by_coverage(made):
    """Several answers may have one confidence, so the coverage can be higher than asked for."""
    yield from heading("The surest answers: confidence / wrong", ["coverage", *made])
    for tenth in TENTHS:
        points = [curve.at_coverage(tenth) for curve in made.values()]
        yield line([f"{tenth:.0%}", *(f"{point.threshold:.3f} / {point.wrong_share:.1%}" if point else "" for point in points)])


def pair(point):
    return f"{point.coverage:.1%} / {point.wrong_share:.1%}" if point.given else ""


def percent(part, whole):
    return f"{100 * part / whole:.1f}" if whole else ""


def heading(title, columns):
    return [f"\n### {title}\n", line(columns), "| --- |" + " ---: |" * (len(columns) - 1)]


def line(cells):
    return f"| {' | '.join(str(cell) for cell in cells)} |"
