"""`ledge-platform box ask`: a question reaches one box, and only its answer is taken."""
import json
import re
import secrets
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from joining import age
from support import HERE
from test_boxes import Joining

from ledge_platform import moments
from ledge_platform.boxes import dsse, questions

CHECKS = [{"check": "cpu", "level": "ok", "count": 1}, {"check": "camera", "level": "failure", "count": 2},
          {"check": "state", "level": "warning", "count": 1, "free_bytes": 3 << 29},
          {"check": "membership", "level": "ok", "count": 1, "seconds_left": 5_184_000}]


def answered(box, id_, /, key=None, keyid=None, kind=dsse.DIAGNOSIS, **changes):
    body = json.dumps({"version": 1, "box": box.name, "question": "doctor", "id": id_,
                       "at": moments.text(moments.now()), "ledge": "0.1.0", "checks": CHECKS, **changes}).encode()
    key = key or box.key
    return dsse.seal(kind, body, lambda signed: key.sign(signed, ec.ECDSA(hashes.SHA256())), keyid=keyid or box.serial)


class Asking(Joining):
    def setUp(self):
        super().setUp()
        self.shop = self.member("shop-7")

    def ask(self, name="shop-7"):
        """Asks without waiting, and returns the id of the question."""
        status, text = self.run_verb("box", "ask", "--root", self.folder, name, "doctor", "--wait", "0s")
        self.assertEqual(status, 2, text)
        self.assertIn("or its owner does not allow it (`[membership] questions`", text)
        return questions.load(self.layout.boxes, name).id

    def published(self, box):
        path = self.layout.questions / f"{box.own}.json"
        return path.read_bytes() if path.exists() else None

    def refuses(self, says, content, id_, box=None, inbox=None):
        self.platform.put(box or self.shop, content, inbox, id_)
        text = self.box("answer")
        self.assertIn(says, text)
        self.assertIn(says, " ".join(self.reasons()))
        self.assertEqual((self.platform.waiting_files(), list(self.layout.answers.glob(f"{id_}*"))), ([], []))
        asked = questions.load(self.layout.boxes, "shop-7")
        self.assertFalse(asked and asked.is_answered, says)

    # --- the way ---

    def test_a_box_is_asked_and_its_answer_is_shown(self):
        id_ = self.ask()
        content = self.published(self.shop)
        body, signature = dsse.take_apart(content, dsse.QUESTION)
        leaf = x509.load_pem_x509_certificates(signature["certificate"].encode())[0]
        leaf.public_key().verify(dsse.decode(signature["sig"], "sig"), dsse.pae(dsse.QUESTION, body), ec.ECDSA(hashes.SHA256()))
        question = json.loads(body)
        self.assertEqual((question["box"], question["question"], question["id"]), ("shop-7", "doctor", id_))
        life = moments.parse(question["expires"]) - moments.parse(question["made"])
        self.assertEqual(life.total_seconds(), questions.VALID_S)
        self.refused("has answered no question", "ask", "shop-7")

        self.platform.put(self.shop, answered(self.shop, id_), id_=id_)
        self.assertIn("answered a question: shop-7", self.box("answer"))
        self.assertIsNone(self.published(self.shop))
        self.assertEqual(self.platform.waiting_files(), [])
        text = self.box("ask", "shop-7")
        self.assertRegex(text, r"camera +failure +2 +-\nstate +warning +1 +1.5 GiB free\n")
        self.assertIn("certificate ends in 60 d", text)
        shown = json.loads(self.box("ask", "shop-7", "--json"))
        self.assertEqual((shown["box"], shown["id"], shown["checks"]), ("shop-7", id_, CHECKS))
        self.assertEqual(json.loads(self.box("list", "--json"))["answers"]["shop-7"]["id"], id_)
        self.assertIn("shop-7: 2 failures, 1 warning", self.box("list"))

    def test_an_answer_stays_until_the_next_one(self):
        first = self.ask()
        self.platform.put(self.shop, answered(self.shop, first), id_=first)
        self.box("answer")
        second = self.ask()
        self.assertNotEqual(first, second)
        self.assertEqual(json.loads(self.box("ask", "shop-7", "--json"))["id"], first)
        self.refuses("it answers a question that is not open", answered(self.shop, first), first)

    def test_a_question_leaves_with_its_box_or_its_time(self):
        self.ask()
        age(self.layout.questions / f"{self.shop.own}.json", questions.VALID_S + 5)
        self.box("answer")
        self.assertIsNone(self.published(self.shop))
        self.ask()
        self.box("revoke", "shop-7")
        self.assertIsNone(self.published(self.shop))
        self.assertIsNone(questions.load(self.layout.boxes, "shop-7"))
        self.refused("shop-7 is no member", "ask", "shop-7", "doctor")
        self.refused("no-box is no member", "ask", "no-box", "doctor")

    def test_the_checks_are_those_of_the_box(self):
        source = (HERE.parents[2] / "src/membership/diagnosis.rs").read_text()
        table = source.split("\nchecks! {")[1].split("}")[0]
        names = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in re.findall(r"(\w+): \"", table)}
        self.assertEqual(names | {"other"}, questions.CHECKS)

    # --- attacks ---

    def test_an_answer_counts_once(self):
        id_ = self.ask()
        content = answered(self.shop, id_)
        self.platform.put(self.shop, content, id_=id_)
        self.box("answer")
        before = questions.load(self.layout.boxes, "shop-7")
        self.platform.put(self.shop, content, id_=id_)
        self.assertIn("was answered before", self.box("answer"))
        self.assertEqual(questions.load(self.layout.boxes, "shop-7"), before)

    def test_answers_of_others(self):
        id_, other = self.ask(), self.member("shop-8")
        self.refuses("is not signed by the key", answered(self.shop, id_, key=other.key), id_)
        self.refuses("came to another inbox", answered(self.shop, id_), id_, other)
        self.refuses("by another certificate", answered(self.shop, id_, key=other.key, keyid=other.serial), id_)
        self.refuses("a question that is not open", answered(other, id_), id_, other)
        self.refuses("shop-9 is no member", answered(self.shop, id_, box="shop-9"), id_)
        self.refuses("has the type", answered(self.shop, id_, kind=dsse.QUESTION), id_)
        unasked = secrets.token_hex(32)
        self.refuses("a question that is not open", answered(self.shop, unasked), unasked)
        self.refuses("under the name of another", answered(self.shop, id_), unasked)

    def test_an_answer_with_something_else_in_it(self):
        id_ = self.ask()
        for says, changes in (
                ("other keys than an answer", {"note": "rtsp://anna@10.0.0.7"}),
                ("version 2", {"version": 2}),
                ("which was never asked", {"question": "logs"}),
                ("no moment", {"at": "today"}),
                ("more than 40 characters", {"ledge": "x" * 41}),
                ("no list, or too many", {"checks": {"a": 1}}),
                ("no list, or too many", {"checks": [CHECKS[0]] * 200}),
                ("other keys than a check", {"checks": [{**CHECKS[0], "detail": "/home/anna"}]}),
                ("other keys than a check", {"checks": ["cpu"]}),
                ("no name, or another level", {"checks": [{**CHECKS[0], "level": "<b>"}]}),
                ("no name, or another level", {"checks": [{**CHECKS[0], "check": ["cpu"]}]}),
                ("Infinity is no number", {"checks": [{**CHECKS[0], "count": 1e400}]}),
                ("the count of one of its checks is no number", {"checks": [{**CHECKS[0], "count": True}]}),
                ("the free_bytes of one of its checks is no number", {"checks": [{**CHECKS[0], "free_bytes": 2**60}]})):
            with self.subTest(says):
                self.refuses(says, answered(self.shop, id_, **changes), id_)
        self.refuses("its payload is no JSON", dsse.seal(
            dsse.DIAGNOSIS, b"[" * 12_000, lambda signed: self.shop.key.sign(signed, ec.ECDSA(hashes.SHA256())),
            keyid=self.shop.serial), id_)
        self.refuses("larger than", b"{" * 20_000, id_)

    def test_a_check_of_a_later_ledge_is_counted_without_its_name(self):
        id_ = self.ask()
        later = [{"check": "<script>", "level": "warning", "count": 1}]
        self.platform.put(self.shop, answered(self.shop, id_, checks=later), id_=id_)
        self.box("answer")
        self.assertEqual(json.loads(self.box("ask", "shop-7", "--json"))["checks"],
                         [{"check": "other", "level": "warning", "count": 1}])


if __name__ == "__main__":
    unittest.main()
