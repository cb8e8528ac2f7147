"""`model add` measures how often a version agrees with the one before: what it asks `ledge`, signs, and refuses."""
import json
from pathlib import Path

from support import Kit, model_folder

from ledge_platform import agreement, names
from ledge_platform.release import description_of

BEFORE, AFTER = names.Release("models/wine", 1), names.Release("models/wine", 2)


class Agreement(Kit):
    def setUp(self):
        super().setUp()
        self.add(1)
        for patched in (self.agreement_measured, self.goldens_program):
            patched.stop()
            self.addCleanup(patched.start)  # as the cleanups of Kit expect them

    def ledge(self, answer, status=0, more=""):
        """A `ledge` that compares so, and writes down what it was asked and saw."""
        path, seen = self.folder / "ledge", self.folder / "seen"
        said = self.folder / "answer"
        said.write_text(answer if isinstance(answer, str) else json.dumps(answer))
        path.write_text(
            f"#!/bin/sh\necho \"$@\" >'{seen}'\n[ \"$2\" = compare ] && cd \"$6\" && find . -type f | sort >>'{seen}'\n"
            f"{more}\ncat '{said}'\nexit {status}\n")
        path.chmod(0o755)
        return path

    def second(self, program, *more):
        folder = model_folder(self.models, b"weights 2", 2)
        return self.run_verb("model", "add", self.repo, "wine", 2, folder, "--keys", self.online, "--keys", self.offline,
                             "--ledge", program, *more)

    def signed(self):
        """The description of version 2, or None."""
        of = [description_of(target) for path, target in self.targets().items() if path.startswith("models/wine/2/")]
        return next(filter(None, of), None)

    def test_what_was_measured_is_signed(self):
        inputs = self.folder / "inputs"
        inputs.mkdir()
        status, text = self.second(
            self.ledge({"agreed": 194, "compared": 200, "tolerance": 0.08, "disagreements": ["a.json"]}, 1),
            "--evaluate", inputs)
        self.assertEqual(status, 0, text)
        self.assertIn("agreement: 194 of 200 answers are those of models/wine/1", text)
        self.assertNotIn("too few inputs", text)
        asked, *files = (self.folder / "seen").read_text().splitlines()
        self.assertRegex(asked, rf"^models compare before after --repository \S+ --json --inputs {inputs}$")
        self.assertIn("./before/1/model.onnx", files)
        self.assertIn("./after/2/model.onnx", files)
        self.assertFalse(Path(asked.split()[5]).exists())
        description = self.signed()
        self.assertEqual(description["agreement"], {"version": 1, "agreed": 194, "compared": 200})
        self.assertEqual(description["tolerance"], 0.08)

    def test_a_tolerance_that_was_given_stays(self):
        status, text = self.second(self.ledge({"agreed": 10, "compared": 10, "tolerance": 0.08}), "--tolerance", "0.2")
        self.assertEqual(status, 0, text)
        self.assertIn("--tolerance 0.2", (self.folder / "seen").read_text())
        self.assertEqual(self.signed()["tolerance"], 0.2)
        self.assertIn("too few inputs for boxes to see 5% of wrong answers", text)

    def test_a_version_that_answers_otherwise_is_signed_only_when_that_is_meant(self):
        program = self.ledge({"agreed": 160, "compared": 200, "tolerance": None, "disagreements": ["a", "b"]}, 1)
        status, text = self.second(program)
        self.assertEqual(status, 1, text)
        self.assertIn("160 of 200 answers are those of models/wine/1, so fewer than 95% are (they differ on a, b)", text)
        self.assertIsNone(self.signed())
        least = text.partition("--agreement-min ")[2].split()[0]
        self.assertEqual(self.second(program, "--agreement-min", least)[0], 0)
        self.assertEqual(self.signed()["agreement"]["agreed"], 160)

    def test_who_asks_for_no_comparison_or_another_one_gets_it(self):
        program = self.ledge({"agreed": 10, "compared": 10})
        self.assertEqual(self.second(program, "--against", "none")[0], 0)
        self.assertNotIn("agreement", self.signed())
        folder = model_folder(self.models, b"weights 3", 3)
        add = ("model", "add", self.repo, "wine", 3, folder, "--keys", self.online, "--keys", self.offline, "--ledge", program)
        status, text = self.run_verb(*add, "--against", "7")
        self.assertEqual(status, 2, text)
        self.assertIn("--against 7: models/wine/7 is not in this repository", text)
        status, text = self.run_verb(*add, "--against", "1")
        self.assertEqual(status, 0, text)
        self.assertIn("10 of 10 answers are those of models/wine/1", text)

    def test_a_program_that_does_not_compare_signs_nothing(self):
        for answer, status, more, says in (
                ("", 2, "echo 'error: unrecognized subcommand' >&2", "unrecognized subcommand"),
                ('{"agreed": 3, "compared": 2}', 0, "", "ended with status 0"), ("[]", 0, "", "ended with status 0")):
            found, text = self.second(self.ledge(answer, status, more))
            self.assertEqual(found, 1, text)
            self.assertIn(says, text)
            self.assertIn("--against none signs it without", text)
            self.assertIsNone(self.signed())

    def test_the_first_version_is_compared_with_nothing(self):
        self.assertIsNone(agreement.predecessor(self.repository, BEFORE, None))
        self.assertEqual(agreement.predecessor(self.repository, AFTER, None), BEFORE)

    def test_the_bounds_are_those_of_the_boxes(self):
        low, high = agreement.bounds(194, 200)
        self.assertAlmostEqual(low, 0.943, 3)
        self.assertAlmostEqual(high, 0.9846, 3)
        self.assertEqual(agreement.judge({"agreed": 0, "compared": 0}, BEFORE, AFTER, 0.95)[0], {})


if __name__ == "__main__":
    import unittest

    unittest.main()
