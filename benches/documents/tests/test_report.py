"""The report of a measurement: what is counted where, and what it keeps to itself."""
import argparse
import unittest

import context  # noqa: F401
from documents.measure import report

SECRET = "Secret Shop"


def document(file, total, doubt=()):
    return "set", {"file": file, "region": "MY", "truth": {"total": total, "supplier": SECRET}, "doubt": list(doubt)}


def answer(amount=None, status=200):
    total = amount and {"value": {"amount": amount, "currency": None}, "confidence": 0.9, "text": SECRET}
    return {"status": status, "seconds": 0.5, "fields": {"total": total} if status == 200 else {}}


DOCUMENTS = [document("a.jpg", "1.00"), document("b.jpg", "2.00"), document("c.jpg", "3.00"),
             document("d.jpg", "4.00", ["total not in the OCR text"])]
ANSWERS = {("set", "a.jpg"): answer("1.00"), ("set", "b.jpg"): answer("9.00"), ("set", "c.jpg"): answer(status=400), ("set", "d.jpg"): answer("9.00")}


class Report(unittest.TestCase):
    def lines(self, part="look", show=False, wrong=True):
        return "\n".join(report(argparse.Namespace(part=part, show=show, wrong=wrong), DOCUMENTS, ANSWERS))

    def test_right_wrong_and_missing_are_counted_and_doubtful_documents_apart(self):
        lines = self.lines()
        self.assertIn("| total | 3 | 1 | 1 | 1 | 0 | 33.3 | 50.0 |", lines)
        self.assertIn("| total | 1 | 0 | 1 | 0 | 0 | 0.0 | 100.0 |", lines)
        self.assertIn("4 of 4 documents answered, 0.50 s each (median), 1 refused", lines)
        self.assertIn("No answer has these fields, which count as missing: date, number, supplier", lines)

    def test_the_open_part_lists_its_wrong_answers(self):
        self.assertIn('* set/b.jpg: total is 2.00, read {"amount": "9.00", "currency": null} at 0.900', self.lines())
        self.assertIn("(in doubt: total not in the OCR text)", self.lines())
        self.assertNotIn("b.jpg", self.lines(wrong=False))

    def test_the_hidden_part_has_totals_only(self):
        lines = self.lines("hidden")
        self.assertIn("| total | 3 | 1 | 1 | 1 |", lines)
        self.assertIn("| MY | 3 | 1 / 1 / 1 |", lines)
        for word in (".jpg", SECRET, "9.00"):
            self.assertNotIn(word, lines)
        self.assertIn("b.jpg", self.lines("hidden", show=True))


if __name__ == "__main__":
    unittest.main()
