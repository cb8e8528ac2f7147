#!/usr/bin/env python3
"""Fits the weights by which the reader of documents chooses among candidates, and writes them for the engine.

    python3 benches/documents/measure.py ../documents --url http://127.0.0.1:8000 --save look.jsonl --lines
    cargo run --release --example evidence --package ledge-engine < look.jsonl > evidence.jsonl
    .ledge/peers/tables/bin/python3 benches/documents/fit.py ../documents evidence.jsonl --write src/engine/pipeline/ocr/fields/weights.tsv

Each field has a conditional logit model: the candidates of a document and "none of them" share a probability of 1. First the weights are
fitted in ten parts, divided by issuer, of which each is judged by the weights of the nine others: what is printed is about issuers that the
weights do not know, with at most three documents of each, since those that come next are of others. Documents whose truth is in doubt are left
out; of a supplier and a number only a doubt about it counts. Only the part "look" may be given. Needs numpy and scipy (`make setup-tables`).
"""
import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.stats import beta

sys.dont_write_bytecode = True
sys.path[0] = str(Path(__file__).resolve().parents[1])  # the package `documents`

from documents.collection import LOOK  # noqa: E402
from documents.compare import RIGHT, has_truth, judge  # noqa: E402
from documents.curve import Curve  # noqa: E402
from documents.rows import read_rows  # noqa: E402

NUMBERS = Path(__file__).resolve().parent / "truths" / "numbers.tsv"
PARTS = 10
JUDGED = 3  # documents of an issuer
PENALTY = 0.5
ALIKE = 0.5  # the power by which a document counts less, the more there are of its issuer
WRONG_BOUND, SURE = 0.025, 0.8  # of a threshold: the share of wrong answers that is not exceeded with this probability
DOUBTS = {"supplier": ("supplier", "company", "sender", "no truth"), "number": ("number", "no truth")}  # words of a doubt about the field
NAMES = {"date": "document_date", "number": "document_number"}  # of the engine's forms
RARE = 4  # documents; a fact of fewer is not learned from


def parse():
    parser = argparse.ArgumentParser(prog="benches/documents/fit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where collect.py wrote the sets")
    parser.add_argument("evidence", type=Path, help="what the example `evidence` printed")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the weights")
    parser.add_argument("--field", action="append", dest="fields", help="only this field; may be given several times")
    parser.add_argument("--wrong", action="store_true", help="list the documents that are answered wrong, and those without an answer")
    return parser.parse_args()


class Question:
    """The candidates of a document for a field, of which some are right."""

    def __init__(self, row, name, field, candidates):
        self.row, self.name, self.field, self.candidates = row, name, field, candidates
        self.right = np.array([has_truth(field, row) and judge(field, row, {field: {"value": candidate["value"]}}) == RIGHT for candidate in candidates], bool)
        self.issuer = row.get("issuer_key") or row["file"]
        self.part = hashlib.sha256(self.issuer.encode()).digest()[1] % PARTS

    def likeliest(self, weights):
        """(the best candidate of the likeliest value, its probability), as evidence.rs; (None, 0) without candidates."""
        given = self.probabilities(weights)[:-1]
        if not len(given):
            return None, 0.0
        of_value = [sum(given[other] for other in candidate["agreeing"]) for candidate in self.candidates]
        best = max(range(len(given)), key=lambda index: (of_value[index], given[index]))
        return best, float(of_value[best])

    def encode(self, facts):
        """A row for each candidate, and a last one without facts for none of them."""
        self.matrix = np.zeros((len(self.candidates) + 1, len(facts)))
        for index, candidate in enumerate(self.candidates):
            for fact, strength in candidate["facts"].items():
                if fact in facts:
                    self.matrix[index, facts[fact]] += strength

    def probabilities(self, weights):
        """Of each candidate, and last of none."""
        scores = self.matrix @ weights
        scores = np.exp(scores - scores.max())
        return scores / scores.sum()


def in_doubt(field, row):
    return any(word in doubt for doubt in row.get("doubt", ()) for word in DOUBTS.get(field, [""]))


def threshold(curve):
    """The point of the highest coverage whose wrong answers stay below the bound even where the sample was lucky, or None."""
    return next((point for point in reversed(curve.points) if bound(point) <= WRONG_BOUND), None)


def bound(point):
    """The upper end of the one-sided interval of Clopper and Pearson (1934) for the share of wrong answers."""
    return beta.ppf(SURE, point.wrong + 1, point.given - point.wrong) if point.given > point.wrong else 1.0


def is_without(field, row):
    """True for a field that the document or all of its kind do not have, so that all candidates are wrong."""
    return field in row.get("without", ()) or field == "due_date" and row["kind"] == "receipt"


def fit(questions, count):
    """The weights that make the right candidates likeliest, with a penalty on their squares."""
    matrix = np.concatenate([question.matrix for question in questions])
    right = np.concatenate([np.append(question.right, not question.right.any()) for question in questions])
    sizes = [len(question.matrix) for question in questions]
    # Documents of an issuer look alike, so each further one says less.
    of_issuer = Counter(question.issuer for question in questions)
    importance = np.array([of_issuer[question.issuer] ** -ALIKE for question in questions])
    starts = np.cumsum([0, *sizes[:-1]])

    def softmax(scores):
        """Within each question, and the logarithm of the sum."""
        tops = np.maximum.reduceat(scores, starts)
        shares = np.exp(scores - np.repeat(tops, sizes))
        sums = np.add.reduceat(shares, starts)
        return shares / np.repeat(sums, sizes), np.log(sums) + tops

    def loss(weights):
        """The negative logarithm of the likelihood, with its gradient."""
        scores = matrix @ weights
        given, total = softmax(scores)
        among_right, total_right = softmax(np.where(right, scores, -1e9))
        slope = matrix.T @ (np.repeat(importance, sizes) * (given - among_right))
        return PENALTY * weights @ weights / 2 + importance @ (total - total_right), PENALTY * weights + slope

    return minimize(loss, np.zeros(count), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x


def main():
    options = parse()
    rows = {(path.parent.name, row["file"]): row for path in options.folder.glob(f"*/{LOOK}") for row in read_rows(path)}
    for name, file, number in (line.split("\t") for line in NUMBERS.read_text().splitlines()):
        if (name, file) in rows:
            rows[name, file]["truth"].setdefault("number", number)
    documents = [(row["set"], rows[row["set"], row["file"]], row["fields"]) for row in read_rows(options.evidence) if (row["set"], row["file"]) in rows]
    written = {}
    for field in options.fields or documents[0][2]:
        # A document without this field in its truth may still have it on the page, so it is asked only where that cannot be.
        asked = [Question(row, f"{name}/{row['file']}", field, fields[field])
                 for name, row, fields in documents if not in_doubt(field, row) and (has_truth(field, row) or is_without(field, row))]
        counts = Counter(fact for question in asked for fact in {fact for candidate in question.candidates for fact in candidate["facts"]})
        facts = {fact: index for index, fact in enumerate(sorted(fact for fact, count in counts.items() if count >= RARE))}
        for question in asked:
            question.encode(facts)
        answers, misses, of_issuer = [], [], Counter()
        for part in range(PARTS):
            weights = fit([question for question in asked if question.part != part], len(facts))
            for question in asked:
                if question.part != part:
                    continue
                of_issuer[question.issuer] += 1
                if of_issuer[question.issuer] > JUDGED and question.issuer != "unknown":
                    continue
                best, sure = question.likeliest(weights)
                misses.append((question, best, sure))
                if best is not None:
                    answers.append((sure, bool(question.right[best])))
        found = sum(bool(question.right.any()) for question in asked)
        curve = Curve(answers, sum(has_truth(field, question.row) for question, _, _ in misses))
        print(f"\n### {field}: {len(asked)} documents, {len(misses)} judged, {curve.documents} with it, right among the candidates {found}")
        for least in (0, .3, .5, .7, .8, .9, .95, .98):
            point = curve.at_threshold(least)
            print(f"  from {least:4}: answered {point.coverage:.3f}, wrong {point.wrong_share:.4f} ({point.wrong})")
        for kind, point in (("2 % wrong", curve.widest()), (f"at most {WRONG_BOUND:.1%} with {SURE:.0%}", threshold(curve))):
            print(f"  {kind}:", f"threshold {point.threshold:.3f} coverage {point.coverage:.3f} ({point.given}, {point.wrong} wrong)" if point else "never")
        ninety = curve.at_coverage(.9)
        print("  90 % coverage:", f"right {ninety.right_share:.4f} at {ninety.threshold:.3f}" if ninety else "never")
        by_set = Counter(), Counter(), Counter()
        for question, best, sure in misses:
            name = question.name.split("/")[0]
            by_set[0][name] += 1
            by_set[1][name] += best is not None and sure >= .5 and bool(question.right[best])
            by_set[2][name] += best is not None and sure >= .5 and not question.right[best]
        print("  at .5 (right, wrong, of):", ", ".join(f"{name} {by_set[1][name]} {by_set[2][name]} {count}" for name, count in by_set[0].items()))
        if options.wrong:
            for question, best, sure in sorted(misses, key=lambda miss: -miss[2]):
                if best is None or not question.right[best]:
                    read = question.candidates[best]["value"] if best is not None else None
                    print(f"  {sure:.3f} {question.name}: is {question.row['truth'].get(field)}, read {read}, candidate {bool(question.right.any())}")
        weights = fit(asked, len(facts))
        written[field] = {fact: float(weights[index]) for fact, index in facts.items()}
    if options.write:
        lines = [f"{NAMES.get(field, field)}\t{fact}\t{weight:.3f}" for field, weights in written.items() for fact, weight in sorted(weights.items())]
        options.write.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
