"""The parts "look" and "hidden": all documents of an issuer are in one of them, in every collection the same."""
import unittest

import context  # noqa: F401
from documents.rows import read_rows
from documents.sets.by_hand import TRUTHS
from documents.split import are_one, divide, key_of, normalise, not_joined, part_of, read_names


def row(issuer, file="files/1.jpg", **more):
    return {"issuer": issuer, "file": file, **more}


class Split(unittest.TestCase):
    def test_names_are_compared_without_legal_forms_digits_and_signs(self):
        for name in ("Unihakka International Sdn. Bhd.", "UNIHAKKA INTERNATIONAL SDN BHD (867388-U)", "unihakka internationalsdnbhd",
                     "Unihakka International 2"):
            self.assertEqual(normalise(name), "UNIHAKKAINTERNATIONAL", name)
        self.assertEqual(normalise("dm-drogerie markt"), "DM")

    def test_names_that_are_nearly_the_same_are_one_issuer(self):
        for one, other in (("WALMART", "WALHART"), ("WALMART", "WALMARTSUPERCENTER"), ("UNIHAKKAINTERNATIONAL", "THEUNIHAKKAINTERNATIONAL")):
            self.assertTrue(are_one(one, other) and are_one(other, one), (one, other))
        for one, other in (("LIDL", "LIDO"), ("REWE", "REWEMARKT"), ("WALMART", "WALGREENS")):
            self.assertFalse(are_one(one, other) or are_one(other, one), (one, other))

    def test_similar_names_that_the_table_lacks_are_reported(self):
        keys = {"WALMART", "WALHART", "?azure/files/WALMART", "CONTOSO|nl", "CONTOSO|fr"}
        self.assertEqual(not_joined(keys, {}), [("WALHART", "WALMART")])
        self.assertEqual(not_joined(keys, {"WALMART": "WALHART"}), [])

    def test_the_names_of_the_table_that_stand_for_others_stand_for_themselves(self):
        names = read_names()
        self.assertEqual(set(names) & set(names.values()), set())
        self.assertIn("WALMART", names)

    def test_a_document_without_a_known_issuer_is_on_its_own(self):
        for name in ("", "Restaurant", "unknown tw", None):
            self.assertEqual(key_of("azure", row(name)), "?azure/files/1.jpg", name)

    def test_invented_issuers_count_by_their_layout(self):
        one, other = (key_of("azure", row("Contoso, Ltd.", fictional=True, layout=layout)) for layout in ("contoso-nl", "contoso-fr"))
        self.assertEqual((one, other), ("CONTOSO|contoso-nl", "CONTOSO|contoso-fr"))

    def test_an_issuer_is_in_one_part_in_all_sets(self):
        sets = {"one": [row("Walmart"), row("LIDL"), row("unknown")], "other": [row("WALHART"), row("Rewe")]}
        self.assertEqual(divide(sets), [])
        self.assertEqual(sets["one"][0]["part"], sets["other"][0]["part"])
        self.assertEqual([each["issuer_key"] for each in sets["one"]], ["WALHART", "LIDL", "unknown"])

    def test_the_part_is_a_hash_so_that_it_never_changes(self):
        self.assertEqual([part_of(name) for name in ("REWE", "LIDL", "STARBUCKS", "IKEA")], ["look", "look", "hidden", "hidden"])

    def test_the_truths_that_were_read_by_hand_are_in_the_file_of_their_part(self):
        for part in ("look", "hidden"):
            rows = read_rows(TRUTHS / f"{part}.jsonl")
            self.assertGreater(len(rows), 30)
            sets = {}
            for each in rows:
                sets.setdefault(each["set"], []).append({**each, "file": f"files/{each['file']}"})
            divide(sets)
            self.assertEqual({each["part"] for every in sets.values() for each in every}, {part})


if __name__ == "__main__":
    unittest.main()
