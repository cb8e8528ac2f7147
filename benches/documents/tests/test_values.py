"""Dates and amounts as sources write them."""
import unittest

import context  # noqa: F401
from documents.values import DAY_FIRST, MONTH_FIRST, amount_of, date_of


class Values(unittest.TestCase):
    def test_dates_of_every_order_are_iso(self):
        for text in ("2018-03-25", "25/03/2018", "03/25/18", "25 MAR 2018", "25-Mar-18", "March 25th, 2018", "2018年03月25", "20180325", "25032018",
                     "25.3.2018 13:05"):
            self.assertEqual(date_of(text), ("2018-03-25", False), text)

    def test_the_order_decides_where_day_and_month_could_be_exchanged(self):
        self.assertEqual(date_of("04/03/2018", DAY_FIRST), ("2018-03-04", True))
        self.assertEqual(date_of("04/03/2018", MONTH_FIRST), ("2018-04-03", True))
        self.assertEqual(date_of("03/03/2018", MONTH_FIRST), ("2018-03-03", False))

    def test_there_is_no_date_in_other_texts(self):
        for text in (None, "", "31/02/2018", "Tel 03-1234 5678", "25 XYZ"):
            self.assertIsNone(date_of(text)[0], text)

    def test_amounts_have_a_dot_and_two_decimals(self):
        for text, amount in (("RM 1,234.50", "1234.50"), ("1.234,50", "1234.50"), ("12,5", "12.50"), ("1,234", "1234.00"),
                             ("1.234.567", "1234567.00"), (9.3, "9.30"), ("5.00-", "-5.00"), (".82", "0.82"), ("Rs.1939", "1939.00"), ("free", None),
                             (None, None)):
            self.assertEqual(amount_of(text), amount, text)


if __name__ == "__main__":
    unittest.main()
