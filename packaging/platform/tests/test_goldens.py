"""`model add` runs the golden inputs before it signs: what it asks `ledge`, what it makes of the answer, and the real one."""
import json
import os
import shutil
import stat
from pathlib import Path
from unittest import mock

from support import REPOSITORY, Kit, ledge, model_folder

WINE = "wine_mlp"
RIGHT = {"model": "wine", "version": 1, "runtime": "onnxruntime", "ok": True, "load_ms": 3.1}
WRONG = {"model": "wine", "version": 1, "runtime": "openvino", "ok": False, "reason": "golden input rows.json: 0.7 is not 0.1"}


class Goldens(Kit):
    def setUp(self):
        super().setUp()
        self.goldens_program.stop()
        self.goldens_ask.stop()
        self.addCleanup(self.goldens_program.start)  # as the cleanups of Kit expect them
        self.addCleanup(self.goldens_ask.start)
        self.source = model_folder(self.models)

    def ledge(self, rows, status=0, more=""):
        """A `ledge` that says so, and writes down what it was asked and saw."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        path, answer = programs / "ledge", self.folder / "answer"
        answer.write_text(rows if isinstance(rows, str) else json.dumps(rows))
        seen = self.folder / "seen"
        path.write_text(
            f"#!/bin/sh\necho \"$@\" >'{seen}'\nenv | grep PASSPHRASE >>'{seen}'\n"
            f"[ \"$2\" = check ] && cd \"$5\" && find . -type f -o -type l | sort >>'{seen}'\n{more}\ncat '{answer}'\nexit {status}\n")
        path.chmod(0o755)
        return path

    def add(self, *more):
        return self.run_verb("model", "add", self.repo, "wine", 1, self.source, "--keys", self.online, "--keys",
                             self.offline, *more)

    def refused(self, says, *more, status=2):
        found, text = self.add(*more)
        self.assertEqual(found, status, text)
        self.assertIn(says, text)
        self.assertIn("--without-check", text)
        self.assertEqual(len(text.strip().splitlines()), 1, text)
        self.assertEqual(self.targets(), {}, "it was signed")

    def test_what_is_signed_is_what_was_run(self):
        status, text = self.add("--ledge", self.ledge([RIGHT]))
        self.assertEqual(status, 0, text)
        self.assertIn("golden inputs: right in onnxruntime\n", text)
        asked, *files = (self.folder / "seen").read_text().splitlines()
        self.assertRegex(asked, r"^models check wine --repository \S+ --json$")
        self.assertEqual(files, [f"./wine/{file}" for file in ("1/model.onnx", "labels.txt", "model.toml", "rows.json")])
        self.assertFalse(Path(asked.split()[4]).exists())

    def test_a_model_with_wrong_answers_is_not_signed(self):
        self.refused("openvino: golden input rows.json: 0.7 is not 0.1", "--ledge", self.ledge([WRONG], 1), status=1)

    def test_one_runtime_with_right_answers_is_enough_and_the_others_are_named(self):
        status, text = self.add("--ledge", self.ledge([RIGHT, WRONG]))
        self.assertEqual(status, 0, text)
        self.assertIn("golden inputs: not in openvino: golden input rows.json", text)

    def test_without_a_program_nothing_is_signed_unless_somebody_says_so(self):
        with mock.patch.dict(os.environ, {"PATH": str(self.folder / "nothing")}):
            self.refused("the golden inputs cannot be run: there is no `ledge` on PATH")
            self.refused("is no program", "--ledge", self.folder / "ledge")
            status, text = self.add("--without-check")
        self.assertEqual(status, 0, text)
        self.assertIn("golden inputs were NOT run", text)

    def test_the_program_on_path_is_taken(self):
        path = f"{self.ledge([RIGHT]).parent}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path}):
            self.assertIn("right in onnxruntime", self.add()[1])

    def test_a_program_that_does_not_check_is_no_pass(self):
        for rows, status, more, says in (
                ("", 0, "echo 'error: unknown flag' >&2", "error: unknown flag"), ("{}", 0, "", "ended with status 0"),
                ("", 0, "kill -9 $$", "ended with status -9")):
            self.refused(says, "--ledge", self.ledge(rows, status, more))
        self.refused("version_policy of model.toml leaves version 1 out", "--ledge", self.ledge([], 1), status=1)

    def test_a_model_without_golden_inputs_is_not_asked_about(self):
        (self.source / "model.toml").write_text("")
        status, text = self.add("--no-golden", "--ledge", self.folder / "nothing")
        self.assertEqual(status, 0, text)
        self.assertIn("there are no golden inputs to run", text)

    def test_the_real_program_passes_the_wine_model_and_refuses_it_with_another_answer(self):
        made = REPOSITORY / ".ledge"
        if not (made / "models" / WINE).is_dir():
            self.fail(f"{made / 'models' / WINE} is missing: `make setup` makes it")
        program = ledge()
        shutil.rmtree(self.source)
        shutil.copytree(made / "models" / WINE, self.source, symlinks=False)
        root = self.folder / "root"
        root.mkdir()
        (root / "runtimes").symlink_to(made / "runtimes")
        words = mock.patch.dict(os.environ, {"LEDGE_ROOT": str(root)})
        words.start()
        self.addCleanup(words.stop)
        os.environ.pop("LEDGE_BINARY", None)  # the daemon would take it for a setting
        golden = next(self.source.rglob("rows.json"))
        right = golden.read_text()
        document = json.loads(right)
        document["outputs"][0]["data"] = [0.5 for _ in document["outputs"][0]["data"]]
        golden.chmod(stat.S_IRUSR | stat.S_IWUSR)
        golden.write_text(json.dumps(document))
        self.refused("is not signed, for no runtime here runs its golden inputs right", "--ledge", program, status=1)
        golden.write_text(right)
        status, text = self.add("--ledge", program)
        self.assertEqual(status, 0, text)
        self.assertIn("golden inputs: right in onnxruntime", text)


if __name__ == "__main__":
    import unittest

    unittest.main()
