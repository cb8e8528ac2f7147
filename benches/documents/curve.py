"""How many documents are answered, and how many answers are wrong, if only answers from some confidence on are taken."""
from dataclasses import dataclass

THRESHOLDS = [step / 20 for step in range(21)]
TENTHS = [step / 10 for step in range(1, 11)]
WRONG_MAX = 0.02
WIDE_COVERAGE = 0.9


@dataclass(frozen=True)
class Point:
    """The answers whose confidence is at least `threshold`."""

    threshold: float
    given: int
    wrong: int
    documents: int  # those with a truth, answered or not

    @property
    def coverage(self):
        """The share of the documents that is answered."""
        return self.given / self.documents if self.documents else 0.0

    @property
    def wrong_share(self):
        """The share of the answers that is wrong; none is, of none."""
        return self.wrong / self.given if self.given else 0.0

    @property
    def right_share(self):
        return 1 - self.wrong_share


class Curve:
    """A point for each confidence that occurs, the highest first. Answers of one confidence cannot be told apart, so they come together."""

    def __init__(self, answers, documents):
        """ANSWERS: (confidence, is right) of each answer. DOCUMENTS: how many have a truth."""
        self.documents, self.points, wrong = documents, [], 0
        ordered = sorted(answers, key=lambda answer: -answer[0])
        for given, (confidence, is_right) in enumerate(ordered, 1):
            wrong += not is_right
            if given == len(ordered) or ordered[given][0] != confidence:
                self.points.append(Point(confidence, given, wrong, documents))

    def at_threshold(self, threshold):
        """The point with all answers of at least this confidence."""
        taken = [point for point in self.points if point.threshold >= threshold]
        last = taken[-1] if taken else Point(threshold, 0, 0, self.documents)
        return Point(threshold, last.given, last.wrong, self.documents)

    def at_coverage(self, coverage):
        """The first point with at least this coverage. None if there are too few answers."""
        return next((point for point in self.points if point.given >= coverage * self.documents - 1e-9), None)

    def widest(self, wrong_max=WRONG_MAX):
        """The point of the highest coverage with at most this share of wrong answers, or None."""
        return next((point for point in reversed(self.points) if point.wrong_share <= wrong_max), None)
