"""The curve of coverage against wrong answers."""
import unittest

import context  # noqa: F401
from documents.curve import Curve

# Ten documents, eight answers, the least sure ones wrong.
ANSWERS = [(0.99, True), (0.98, True), (0.9, True), (0.9, True), (0.8, True), (0.7, False), (0.6, True), (0.5, False)]


class CoverageCurve(unittest.TestCase):
    def setUp(self):
        self.curve = Curve(reversed(ANSWERS), 10)

    def test_answers_of_one_confidence_come_together(self):
        points = [(point.threshold, point.given, point.wrong) for point in self.curve.points]
        self.assertEqual(points, [(0.99, 1, 0), (0.98, 2, 0), (0.9, 4, 0), (0.8, 5, 0), (0.7, 6, 1), (0.6, 7, 1), (0.5, 8, 2)])

    def test_a_threshold_takes_the_answers_that_reach_it(self):
        self.assertEqual([self.curve.at_threshold(at).given for at in (0.0, 0.5, 0.75, 0.9, 0.991, 1.0)], [8, 8, 5, 4, 0, 0])
        self.assertEqual(self.curve.at_threshold(0.65).wrong_share, 1 / 6)
        nothing = self.curve.at_threshold(1.0)
        self.assertEqual((nothing.coverage, nothing.wrong_share), (0.0, 0.0))

    def test_a_coverage_is_reached_by_the_first_point_with_as_many_documents(self):
        self.assertEqual([self.curve.at_coverage(share).given for share in (0.1, 0.3, 0.4, 0.8)], [1, 4, 4, 8])
        self.assertEqual(self.curve.at_coverage(0.6).right_share, 5 / 6)
        self.assertIsNone(self.curve.at_coverage(0.9))

    def test_the_widest_coverage_may_lie_behind_worse_points(self):
        self.assertEqual(self.curve.widest().given, 5)
        self.assertEqual(self.curve.widest(wrong_max=0.15).given, 7)
        self.assertIsNone(Curve([(0.9, False), (0.8, True)], 2).widest())

    def test_there_is_a_curve_without_answers(self):
        empty = Curve([], 3)
        self.assertEqual((empty.points, empty.widest(), empty.at_coverage(0.1), empty.at_threshold(0.5).given), ([], None, None, 0))


if __name__ == "__main__":
    unittest.main()
