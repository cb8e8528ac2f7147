"""What counts as right: other ways to write the same value, and no other value."""
import unittest

import context  # noqa: F401
from documents.compare import INVENTED, MISSING, RIGHT, WRONG, confidence_of, judge


def judged(field, truth, value, **row):
    fields = {} if value is None else {field: {"value": value, "confidence": 0.9}}
    return judge(field, {"truth": {field: truth}, **row}, fields)


class Comparison(unittest.TestCase):
    def all_are(self, state, field, pairs):
        for truth, value in pairs:
            with self.subTest(field=field, truth=truth, value=value):
                self.assertEqual(judged(field, truth, value), state)

    def test_an_answer_is_missing_without_a_value(self):
        self.assertEqual(judge("date", {"truth": {"date": "2024-01-02"}}, {}), MISSING)
        self.assertEqual(judge("date", {"truth": {"date": "2024-01-02"}}, {"date": None}), MISSING)
        self.assertEqual(judge("date", {"truth": {"date": "2024-01-02"}}, {"date": {"value": None}}), MISSING)

    def test_a_field_without_a_truth_is_not_judged(self):
        self.assertIsNone(judge("date", {"truth": {"total": "1.00"}}, {"date": {"value": "2024-01-02"}}))

    def test_a_value_of_a_field_that_the_page_does_not_have_is_invented(self):
        row = {"truth": {}, "without": ["number"]}
        self.assertEqual(judge("number", row, {"number": {"value": "7"}}), INVENTED)
        self.assertIsNone(judge("number", row, {}))
        self.assertIsNone(judge("net", row, {"net": {"value": "7.00"}}))

    def test_a_page_may_have_two_numbers_that_are_right(self):
        self.all_are(RIGHT, "number", [("A1", "A1")])
        self.assertEqual(judged("number", "A1", "B2", number_also=["B2"]), RIGHT)
        self.assertEqual(judged("number", "A1", "C3", number_also=["B2"]), WRONG)

    def test_amounts_are_equal_to_the_cent(self):
        self.all_are(RIGHT, "total", [("13.70", {"amount": "13.70", "currency": None}), ("13.70", {"amount": "13.7"}),
                                      ("2219.082", {"amount": "2219.08"}), ("-0.25", {"amount": "-0.25"})])
        self.all_are(WRONG, "total", [("13.70", {"amount": "13.71"}), ("13.70", {"amount": "1370"}), ("-0.25", {"amount": "0.25"}),
                                      ("1.00", {"amount": None})])
        self.all_are(RIGHT, "net", [("100.00", {"amount": "100.00"}), ("100.00", "100.00")])

    def test_a_date_with_day_and_month_exchanged_is_wrong(self):
        self.all_are(RIGHT, "date", [("2024-01-02", "2024-01-02")])
        self.all_are(WRONG, "due_date", [("2024-01-02", "2024-02-01")])

    def test_numbers_are_compared_without_case_spaces_and_signs(self):
        self.all_are(RIGHT, "number", [("INV-100", "# inv 100"), ("54/7500", "547500")])
        self.all_are(WRONG, "number", [("00000376", "376"), ("INV-100", "INV-10")])

    def test_codes_are_compared_without_spaces(self):
        self.all_are(RIGHT, "iban", [("DE02120300000000202051", "DE02 1203 0000 0000 2020 51")])
        self.all_are(WRONG, "iban", [("DE02120300000000202051", "DE02120300000000202052")])

    def test_the_country_of_a_vat_id_may_be_missing_on_one_side(self):
        self.all_are(RIGHT, "vat_id", [("232153895", "GB 232 1538 95"), ("DE812706034", "812706034"), ("DE812706034", "de 812.706.034")])
        self.all_are(WRONG, "vat_id", [("DE812706034", "AT812706034"), ("DE812706034", "DE81270603")])

    def test_taxes_are_compared_by_their_sum_or_by_rate(self):
        two = [{"rate": "19.00", "amount": "0.86"}, {"rate": "7.00", "amount": "0.34"}]
        other_order = [{"rate": "7", "amount": "0.34"}, {"rate": "19", "amount": "0.86"}]
        self.all_are(RIGHT, "tax", [(two, {"amount": "1.20"}), (two, other_order), (two, "1.20")])
        self.all_are(WRONG, "tax", [(two, {"amount": "0.86"}), (two, [{"rate": "7", "amount": "0.34"}])])
        self.all_are(RIGHT, "tax", [([*two, {"rate": "0.00"}], [*other_order, {"rate": "0", "amount": "0"}])])

    def test_a_tax_of_which_only_the_rate_is_known_is_not_judged(self):
        self.assertIsNone(judged("tax", [{"rate": "19.00"}], {"amount": "1.20"}))

    def test_most_of_the_name_of_a_supplier_is_enough(self):
        self.all_are(RIGHT, "supplier", [
            ("UNIHAKKA INTERNATIONAL SDN BHD", "Unihakka International"), ("rewe", "REWE Markt GmbH"), ("dm", "dm-drogerie markt"),
            ("ILIO'SRestaurant", "ILIO'S Restaurant"), ("SANYU STATIONERY SHOP", "SANYU STATI0NERY SH0P"), ("PENTİ ÇORAP A.Ş.", "Penti Corap"),
            ("Hyper Shiba", "HYPER  SHIBA")])
        self.all_are(WRONG, "supplier", [
            ("REWE", "EDEKA"), ("real", "Cafe Montreal"), ("dm", "Admin"), ("UNIHAKKA INTERNATIONAL SDN BHD", "International Tax Invoice"),
            ("ALDI", "?")])

    def test_another_name_of_the_source_is_right_as_well(self):
        self.assertEqual(judged("supplier", "Hyper Shiba", "هايبر شيبا", supplier_also=["هايبر شيبا"]), RIGHT)

    def test_the_currency_may_be_that_of_the_total(self):
        row = {"truth": {"currency": "EUR"}}
        total = {"value": {"amount": "13.70", "currency": "EUR"}, "confidence": 0.7}
        self.assertEqual((judge("currency", row, {"total": total}), confidence_of("currency", {"total": total})), (RIGHT, 0.7))
        self.assertEqual(judge("currency", row, {"total": total, "currency": {"value": "USD"}}), WRONG)
        self.assertEqual(judge("currency", row, {"total": {"value": {"amount": "1", "currency": None}}}), MISSING)

    def test_an_answer_without_a_confidence_counts_as_sure(self):
        self.assertEqual(confidence_of("date", {"date": {"value": "2024-01-02"}}), 1.0)
        self.assertEqual(confidence_of("date", {"date": {"value": "2024-01-02", "confidence": 0.0}}), 0.0)


if __name__ == "__main__":
    unittest.main()
