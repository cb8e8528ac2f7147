"""Releases and rollouts: what is signed is what was asked for, and what boxes take."""
import json
import os
import tempfile
import unittest
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding, NoEncryption, PrivateFormat, load_pem_private_key)
from support import Kit, fleets, model_folder, moments
from ledge_platform import manifest as form
from ledge_platform import ports, release
from ledge_platform.errors import Failure


class Releases(Kit):
    def description(self, path):
        return release.description_of(self.targets()[path])

    def test_a_model_folder_becomes_one_flat_release(self):
        text = self.add(1)
        self.assertIn("left out, for model.toml does not name them: README.md", text)
        self.assertEqual(
            sorted(self.targets()),
            [f"models/wine/1/{file}" for file in ("labels.txt", "model.onnx", "model.toml", "rows.json")],
        )
        self.assertEqual(
            self.description("models/wine/1/model.onnx"),
            {"schema": 1, "files": ["labels.txt", "model.toml", "rows.json"], "semantic_version": "2.1.0"},
        )
        toml = self.repository.place(self.targets()["models/wine/1/model.toml"]).read_text()
        self.assertIn('file = "rows.json"', toml)
        self.accepted()

    def test_a_flat_folder_is_taken_as_it_is(self):
        folder = self.models / "flat"
        folder.mkdir()
        for file in ("model.xml", "model.bin"):
            (folder / file).write_text("<net/>")
        (folder / "model.toml").write_text("[[golden]]\nfile = 'rows.json'\n")
        (folder / "rows.json").write_text("{}")
        self.done("model", "add", self.repo, "flat", 3, folder, "--keys", self.online, "--keys", self.offline)
        self.assertEqual(self.description("models/flat/3/model.xml")["files"], ["model.bin", "model.toml", "rows.json"])

    def test_a_float_original_and_expected_outputs_come_along(self):
        folder = model_folder(self.models)
        (folder / "1" / "model.float.onnx").write_bytes(b"float")
        (folder / "golden" / "outputs.json").write_text('{"outputs": []}')
        toml = folder / "model.toml"
        toml.write_text(toml.read_text() + 'outputs = "golden/outputs.json"\n')
        keys = ["--keys", self.online, "--keys", self.offline]
        self.done("model", "add", self.repo, "wine", 1, folder, *keys)
        files = ["labels.txt", "model.float.onnx", "model.toml", "outputs.json", "rows.json"]
        self.assertEqual(self.description("models/wine/1/model.onnx")["files"], files)
        (folder / "golden" / "outputs.json").unlink()
        says = "names golden/outputs.json, which is not there"
        self.failed(says, "model", "add", self.repo, "wine", 2, folder, *keys)

    def test_everything_that_can_be_said_is_signed(self):
        accuracy, reference = self.folder / "accuracy.json", self.folder / "reference.json"
        accuracy.write_text('{"dataset": "wine", "top1": 0.97}')
        reference.write_text('{"output": "probabilities", "classes": [0.33, 0.4, 0.27]}')
        self.add(
            1,
            None,
            "--accuracy",
            accuracy,
            "--reference",
            reference,
            "--tolerance",
            "0.25",
            "--requires-ledge",
            "0.1.0",
            "--requires-runtime",
            "onnxruntime",
            "--requires-architecture",
            "x86_64",
            "--requires-memory-mb",
            "128",
            "--limit-memory-mb",
            "512",
            "--limit-seconds",
            "120",
            "--input",
            "x:FP32:-1,13",
            "--output",
            "probabilities:fp32:-1,3",
        )
        self.assertEqual(
            self.description("models/wine/1/model.onnx"),
            {
                "schema": 1,
                "files": ["labels.txt", "model.toml", "rows.json"],
                "semantic_version": "2.1.0",
                "requires": {
                    "ledge": "0.1.0",
                    "runtimes": ["onnxruntime"],
                    "architectures": ["x86_64"],
                    "memory_mb": 128,
                },
                "limits": {"memory_mb": 512, "seconds": 120},
                "tolerance": 0.25,
                "accuracy": {"dataset": "wine", "top1": 0.97},
                "reference": {"output": "probabilities", "classes": [0.33, 0.4, 0.27]},
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 13]}],
                "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]}],
            },
        )
        self.accepted()

    def test_what_does_not_change_is_stored_once(self):
        self.add(1, b"same")
        self.add(2, b"same")
        places = [self.repository.place(self.targets()[f"models/wine/{version}/model.onnx"]) for version in (1, 2)]
        self.assertTrue(os.path.samefile(*places))
        self.accepted()

    def test_a_signed_version_is_never_changed(self):
        self.add(1)
        self.failed(
            "take the next version",
            "model",
            "add",
            self.repo,
            "wine",
            1,
            model_folder(self.models),
            "--keys",
            self.offline,
        )

    def test_a_golden_input_can_be_added(self):
        photograph = self.folder / "cup.png"
        photograph.write_bytes(b"\x89PNG")
        self.add(1, None, "--golden", f"{photograph}=espresso", "--golden-min-score", "0.5")
        self.assertIn("models/wine/1/cup.png", self.targets())
        toml = self.repository.place(self.targets()["models/wine/1/model.toml"]).read_text()
        self.assertIn('[[golden]]\nfile = "cup.png"\nlabel = "espresso"\nmin_score = 0.5\n', toml)

    def test_bad_folders_are_told(self):
        def refused(says, change, *more):
            folder = model_folder(self.models)
            change(folder)
            self.failed(
                says, "model", "add", self.repo, "wine", 1, folder, "--keys", self.online, "--keys", self.offline, *more
            )

        refused("holds no model", lambda folder: (folder / "1").rename(folder / "one"))
        refused("holds none of", lambda folder: (folder / "1" / "model.onnx").unlink())
        refused("more than one of", lambda folder: (folder / "1" / "model.tflite").write_text("x"))
        refused("names golden/rows.json, which is not there", lambda folder: (folder / "golden" / "rows.json").unlink())
        refused("names labels.txt, which is not there", lambda folder: (folder / "labels.txt").unlink())
        refused("no golden input", lambda folder: (folder / "model.toml").write_text(""))
        refused("model.toml:", lambda folder: (folder / "model.toml").write_text("a ="))
        refused("which is meant", lambda folder: ((folder / "1").rename(folder / "2"), (folder / "3").mkdir()))
        refused(
            "sum up to",
            lambda folder: (folder / "r.json").write_text('{"output": "p", "classes": [0.5, 0.1]}'),
            "--reference",
            self.models / "model-8" / "r.json",
        )
        self.failed(
            "no dot in front", "model", "add", self.repo, ".wine", 1, model_folder(self.models), "--keys", self.offline
        )
        self.assertEqual(self.targets(), {})

    def test_settings_and_runtimes_are_releases_too(self):
        settings, libraries = self.folder / "night.toml", self.folder / "libraries"
        settings.write_text("[serving]\n")
        libraries.mkdir()
        (libraries / "libonnxruntime.so.1").write_bytes(b"ELF")
        keys = ("--keys", self.online, "--keys", self.offline)
        self.done("configuration", "add", self.repo, "night", 1, settings, *keys)
        self.done("runtime", "add", self.repo, "onnxruntime", 7, libraries, *keys)
        self.assertEqual(
            sorted(self.targets()),
            ["configurations/night/1/settings.toml", "runtimes/onnxruntime/7/libonnxruntime.so.1"],
        )
        self.start("r-1", "configurations/night/1")
        self.start("r-2", "runtimes/onnxruntime/7")
        self.accepted()
        self.failed("there is no runtime", "runtime", "add", self.repo, "tflite", 1, libraries, *keys)

    def test_a_release_can_be_taken_out_unless_it_is_rolled_out(self):
        self.add(1)
        self.start()
        self.failed(
            "stop it first", "model", "remove", self.repo, "wine", 1, "--keys", self.online, "--keys", self.offline
        )
        self.steer("stop", "--id", "r-1")
        self.done("model", "remove", self.repo, "wine", 1, "--keys", self.online, "--keys", self.offline)
        self.assertEqual(self.targets(), {})
        self.accepted()
        left = [path.name for path in (self.repo / "targets").rglob("*") if path.is_file() and "wine" in str(path)]
        self.assertEqual(left, [], "its files are gone")

    def test_files_that_another_release_has_too_stay(self):
        for version in (1, 2):
            self.add(version, b"the same weights")
        self.done("model", "remove", self.repo, "wine", 1, "--keys", self.online, "--keys", self.offline)
        self.accepted()
        self.assertTrue(all(self.repository.place(target).is_file() for target in self.targets().values()))

    def test_nothing_outside_a_model_folder_is_published_by_a_link(self):
        secret = self.folder / "secret.txt"
        secret.write_text("not for boxes")
        for link in ("labels.txt", "model.toml", "1/model.onnx", "golden/rows.json", "1/model.float.onnx"):
            folder = model_folder(self.models)
            (folder / link).unlink(missing_ok=True)
            (folder / link).symlink_to(secret)
            self.failed("leads out of", "model", "add", self.repo, "wine", 1, folder, "--keys", self.online,
                        "--keys", self.offline)
        folder = model_folder(self.models)
        (folder / "labels.txt").rename(folder / "names.txt")
        (folder / "labels.txt").symlink_to("names.txt")
        self.done("model", "add", self.repo, "wine", 1, folder, "--keys", self.online, "--keys", self.offline)

    def test_no_private_key_is_published(self):
        pem = (self.online / "fleet.pem").read_bytes()
        der = load_pem_private_key(pem, None).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        offline = (self.offline / "root1.pem").read_bytes()
        for key in (pem, offline, b"labels\n" + pem, der, b"AGE-SECRET-KEY-1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L\n"):
            folder = model_folder(self.models)
            (folder / "labels.txt").write_bytes(key)
            self.failed("holds a private key", "model", "add", self.repo, "wine", 1, folder, "--keys", self.online,
                        "--keys", self.offline)
        self.assertEqual(self.targets(), {})

    def test_releases_are_listed(self):
        self.add(1)
        self.assertIn("models/wine/1  2.1.0", self.done("model", "list", self.repo))


class OnnxPorts(unittest.TestCase):
    def test_inputs_and_outputs_are_read_from_the_file(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        try:
            import onnx
            from onnx import TensorProto, helper
        except ImportError:
            self.fail("onnx is not installed: packaging/platform/setup --s3 --test")
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 13])
        y = helper.make_tensor_value_info("y", TensorProto.INT64, [None, 3])
        graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)], "g", [x], [y])
        path = Path(folder.name) / "model.onnx"
        onnx.save(helper.make_model(graph), path)
        expected = (
            [{"name": "x", "datatype": "FP32", "shape": [-1, 13]}],
            [{"name": "y", "datatype": "INT64", "shape": [-1, 3]}],
        )
        self.assertEqual(ports.of_onnx(path), expected)
        path.write_bytes(b"no model")
        with self.assertRaises(Failure):
            ports.of_onnx(path)


class Rollouts(Kit):
    def setUp(self):
        super().setUp()
        self.add(1)
        self.add(2)

    def test_a_rollout_has_the_form_that_boxes_read(self):
        self.start(
            "r-42",
            "models/wine/2",
            "--start",
            "2026-11-20T04:00:00+04:00",
            "--groups",
            "kitchen,hall",
            "--devices",
            "box-1",
            "--window",
            "Asia/Dubai mon,tue 01:00-05:00",
            "--gate",
            "golden_min=0.9,psi_max=0.25",
            "--shadow",
            "share=0.2,min_requests=100",
            "--canary",
            "share=0.05",
            "--soak",
            "min_s=2h",
            "--max-attempts",
            "5",
            "--byte-budget",
            "100000000",
            "--requires-ledge",
            "0.1.0",
            "--allow-downgrade",
            "--waves",
            "accelerated",
        )
        manifest = self.manifest()
        self.assertEqual(
            manifest["rollouts"],
            [
                {
                    "id": "r-42",
                    "target": "models/wine/2/model.onnx",
                    "start": "2026-11-20T00:00:00Z",
                    "waves": "accelerated",
                    "paused": False,
                    "groups": ["kitchen", "hall"],
                    "devices": ["box-1"],
                    "window": {"timezone": "Asia/Dubai", "days": ["mon", "tue"], "from": "01:00", "to": "05:00"},
                    # What was not said is there too: who reads the manifest knows what guards the rollout.
                    "gate": {
                        "p95_ratio_max": 1.5,
                        "error_rate_max": 0.02,
                        "memory_ratio_max": 1.5,
                        "agreement_min": None,
                        "psi_max": 0.25,
                        "golden_min": 0.9,
                    },
                    "shadow": {"share": 0.2, "min_s": 0, "min_requests": 100, "max_s": 3_600, "quiet": "pass"},
                    "canary": {"share": 0.05, "min_s": 0, "min_requests": 100, "max_s": 3_600, "quiet": "pass"},
                    "soak": {"share": 1.0, "min_s": 7_200, "min_requests": 100, "max_s": 7_200, "quiet": "pass"},
                    "max_attempts": 5,
                    "byte_budget": 100_000_000,
                    "allow_downgrade": True,
                    "requires_ledge": "0.1.0",
                }
            ],
        )
        self.assertEqual((manifest["schema"], manifest["fleet"]), (1, "default"))
        self.accepted()

    def test_a_rollout_waits_for_the_ledge_that_its_release_requires(self):
        self.add(3, None, "--requires-ledge", "0.9")
        self.start("r-3", "models/wine/3")
        self.start("r-4", "models/wine/3", "--requires-ledge", "1.0.0")
        self.start("r-5", "models/wine/2")
        required = [rollout.get("requires_ledge") for rollout in self.manifest()["rollouts"]]
        self.assertEqual(required, ["0.9.0", "1.0.0", None])

    def test_a_rollout_that_says_nothing_is_guarded_and_says_so(self):
        text = self.start("r-1", "models/wine/2")
        for told in (
            "gate    golden_min=1 p95_ratio_max=1.5 error_rate_max=0.02 memory_ratio_max=1.5 agreement_min=off psi_max=off",
            "shadow  share=0.1 min_s=0s max_s=1h min_requests=100 quiet=pass",
            "canary  off",
            "soak    min_s=10m max_s=1h min_requests=100 quiet=pass",
        ):
            self.assertIn(told, text.splitlines())
        rollout = self.manifest()["rollouts"][0]
        self.assertEqual({name: rollout[name] for name in form.STEP_DEFAULTS}, form.STEP_DEFAULTS)
        self.assertEqual(rollout["gate"], form.GATE_DEFAULTS)

    def test_guards_are_off_only_when_somebody_says_so(self):
        off = ("--gate", "off", "--shadow", "off", "--canary", "off", "--soak", "off")
        text = self.start("r-1", "models/wine/2", *off)
        self.assertIn("p95_ratio_max=off error_rate_max=off memory_ratio_max=off", text)
        self.assertEqual([line.split() for line in text.splitlines()[-3:]],
                         [["shadow", "off"], ["canary", "off"], ["soak", "off"]])
        rollout = self.manifest()["rollouts"][0]
        self.assertEqual(set(rollout["gate"].values()), {None})
        self.assertEqual((rollout["shadow"]["share"], rollout["soak"]["min_s"], rollout["soak"]["min_requests"]),
                         (0.0, 0, 0))
        self.start("r-2", "models/wine/2", "--gate", "p95_ratio_max=off,psi_max=0.25")
        gate = self.manifest()["rollouts"][1]["gate"]
        self.assertEqual(gate, {**form.GATE_DEFAULTS, "p95_ratio_max": None, "psi_max": 0.25})
        for words in ("golden_min=off", "speed=off", "p95_ratio_max=fast"):
            self.failed("gate: ", "rollout", "start", self.repo, "--id", "r-3", "--target", "models/wine/2",
                        "--gate", words, "--keys", self.online)
        self.accepted()

    def test_one_bound_of_a_stage_moves_the_other_with_it(self):
        for said, bounds in (("min_s=2d", (172_800, 172_800)), ("max_s=5m", (300, 300)), ("min_s=1m", (60, 3_600)),
                             ("min_s=0,max_s=1d", (0, 86_400))):
            step = form.completed_step("soak", form.parse_step(said, "soak"))
            self.assertEqual((step["min_s"], step["max_s"]), bounds, said)

    def test_the_help_says_what_each_guard_means(self):
        text = self.done("rollout", "start", "--help")
        for word in (*form.GATE, *form.STEP, "roll_back", "off", "gate    golden_min=1"):
            self.assertIn(word, text)

    def test_settings_soak_and_are_compared_with_nothing(self):
        settings = self.folder / "night.toml"
        settings.write_text("[serving]\n")
        self.done("configuration", "add", self.repo, "night", 1, settings, "--keys", self.online, "--keys", self.offline)
        text = self.start("r-1", "configurations/night/1")
        self.assertEqual(text.splitlines()[-1], "soak    min_s=10m max_s=1h")

    def test_after_every_verb_the_client_accepts_it(self):
        self.start("r-1", "models/wine/2")
        for verb, words in (
            ("widen", ("--id", "r-1")),
            ("widen", ("--id", "r-1", "--to", "30%")),
            ("widen", ("--id", "r-1", "--waves", "ohno")),
            ("pause", ("--id", "r-1")),
            ("resume", ("--id", "r-1")),
            ("minimum", ("models/wine", "1")),
            ("pin", ("box-7", "models/wine", "1")),
            ("revoke", ("models/wine/1",)),
            ("stop", ("--id", "r-1")),
            ("revoke", ("models/wine/1", "--undo")),
            ("minimum", ("models/wine", "none")),
            ("pin", ("box-7", "models/wine", "none")),
        ):
            self.steer(verb, *words)
            self.accepted()
        self.assertEqual(self.manifest()["rollouts"], [])

    def test_the_next_wave_comes_when_it_is_asked_for(self):
        self.start("r-1", "models/wine/2")
        with self.at(2 * 3_600):
            self.steer("widen", "--id", "r-1")
        waves = self.manifest()["rollouts"][0]["waves"]
        self.assertEqual(
            waves[:3],
            [
                {"seed_below": 20, "after_s": 3_600},
                {"seed_below": 102, "after_s": waves[1]["after_s"]},
                {"seed_below": 307, "after_s": 86_400},
            ],
        )
        self.assertAlmostEqual(waves[1]["after_s"], 7_200, delta=60)
        with self.at(2 * 3_600 + 60):
            self.steer("widen", "--id", "r-1", "--to", "50%")
        self.assertEqual(
            [wave["seed_below"] for wave in self.manifest()["rollouts"][0]["waves"]], [20, 102, 1024, 1228, 1843, 2048]
        )
        with self.at(2 * 3_600 + 60):
            self.failed(
                "has reached 50.0 % already",
                "rollout",
                "widen",
                self.repo,
                "--id",
                "r-1",
                "--to",
                "1%",
                "--keys",
                self.online,
            )

    def test_a_rollout_of_tomorrow_can_begin_now(self):
        self.start("r-1", "models/wine/2", "--start", moments.text(moments.after(moments.now(), 86_400)))
        self.steer("widen", "--id", "r-1")
        rollout = self.manifest()["rollouts"][0]
        self.assertEqual(rollout["waves"][0], {"seed_below": 20, "after_s": 0})
        self.assertLess(abs((moments.parse(rollout["start"]) - moments.now()).total_seconds()), 60)

    def test_a_paused_rollout_goes_on_where_it_stood(self):
        self.start("r-1", "models/wine/2")
        start = moments.parse(self.manifest()["rollouts"][0]["start"])
        with self.at(2 * 3_600):
            self.steer("pause", "--id", "r-1")
        with self.at(5 * 86_400):
            self.steer("resume", "--id", "r-1")
        moved = (moments.parse(self.manifest()["rollouts"][0]["start"]) - start).total_seconds()
        self.assertAlmostEqual(moved, 5 * 86_400 - 2 * 3_600, delta=60)
        with self.at(5 * 86_400 + 10):
            self.steer("pause", "--id", "r-1")
        with self.at(9 * 86_400):
            self.steer("resume", "--id", "r-1", "--catch-up")
        self.assertEqual(moved, (moments.parse(self.manifest()["rollouts"][0]["start"]) - start).total_seconds())

    def test_fleets_are_kept_apart(self):
        self.start("r-1", "models/wine/2")
        self.start("r-2", "models/wine/1", "--fleet", "shops")
        self.steer("pause", "--id", "r-2")
        self.assertFalse(self.manifest()["rollouts"][0]["paused"])
        self.assertTrue(self.manifest("shops")["rollouts"][0]["paused"])
        self.assertEqual(fleets.all_of(self.repository), ["default", "shops"])
        self.accepted()

    def test_what_boxes_would_refuse_is_refused_here(self):
        self.start("r-1", "models/wine/2")
        online = ("--keys", self.online)
        self.failed(
            "was used already", "rollout", "start", self.repo, "--id", "r-1", "--target", "models/wine/1", *online
        )
        self.failed(
            "of models/wine there is 1, 2",
            "rollout",
            "start",
            self.repo,
            "--id",
            "r-2",
            "--target",
            "models/wine/3",
            *online,
        )
        self.failed(
            "there is nothing of models/beer",
            "rollout",
            "start",
            self.repo,
            "--id",
            "r-2",
            "--target",
            "models/beer/1",
            *online,
        )
        self.failed(
            "min_s 172800 is more than max_s",
            "rollout",
            "start",
            self.repo,
            "--id",
            "r-2",
            "--target",
            "models/wine/1",
            "--soak",
            "min_s=2d,max_s=1d",
            *online,
        )
        self.failed(
            "is a version such as",
            "rollout",
            "start",
            self.repo,
            "--id",
            "r-2",
            "--target",
            "models/wine/1",
            "--requires-ledge",
            "new",
            *online,
        )
        self.failed("no fleet has a rollout", "rollout", "pause", self.repo, "--id", "r-9", *online)
        self.failed("is not paused", "rollout", "resume", self.repo, "--id", "r-1", *online)
        self.steer("stop", "--id", "r-1")
        self.failed(
            "was used already", "rollout", "start", self.repo, "--id", "r-1", "--target", "models/wine/1", *online
        )
        self.steer("revoke", "models/wine/1")
        self.failed("is revoked", "rollout", "start", self.repo, "--id", "r-3", "--target", "models/wine/1", *online)
        self.steer("minimum", "models/wine", "3")
        self.failed(
            "below the minimum", "rollout", "start", self.repo, "--id", "r-3", "--target", "models/wine/2", *online
        )
        self.accepted()

    def test_rollouts_are_shown(self):
        self.start("r-1", "models/wine/2")
        self.steer("pin", "box-7", "models/wine", "1")
        with self.at(5 * 3_600):
            text = self.done("rollout", "show", self.repo)
        self.assertIn("4.98 % of the boxes", text)
        self.assertIn('{"box-7": {"models/wine": 1}}', text)
        self.assertEqual(
            json.loads(self.done("rollout", "show", self.repo, "--json"))[0]["pins"], {"box-7": {"models/wine": 1}}
        )


if __name__ == "__main__":
    unittest.main()
