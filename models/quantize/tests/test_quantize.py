"""Quantizes small models for real, through the command that people type.

usage: python3 -m unittest discover -s models/quantize/tests     (the packages are fetched into .ledge/tools/ the first time)
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if sys.version_info < (3, 11):
    raise AssertionError("the quantizer needs Python 3.11 or newer: make test-quantize PYTHON=python3.11")

import tomllib  # noqa: E402

HERE = Path(__file__).resolve().parent
TOOL = HERE.parent
CHECKOUT = TOOL.parents[1]
PACKAGES = CHECKOUT / ".ledge" / "tools" / "quantize"


def setUpModule():
    """Fetches the packages if they are missing, and makes them importable for the tests' own models."""
    subprocess.run([sys.executable, "-B", str(TOOL), "--install"], check=True, stdout=subprocess.DEVNULL)
    sys.path[:0] = [str(PACKAGES), str(HERE), str(TOOL), str(TOOL.parent / "setup")]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Quantizing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.output = self.folder / "models" / "mine"

    def quantize(self, model, samples, *more, output=None):
        command = [sys.executable, "-B", str(TOOL), str(model), "--samples", str(samples),
                   "--output", str(output or self.output), "--rounds", "2", *map(str, more)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def accepted(self, *arguments, **more):
        result = self.quantize(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stdout)
        return json.loads(((more.get("output") or self.output) / "report.json").read_text())

    def failed(self, status, words, *arguments):
        """Asserts how the run ends and that it leaves no model, not even half of one."""
        result = self.quantize(*arguments)
        self.assertEqual(result.returncode, status, result.stdout)
        self.assertIn(words, result.stdout)
        self.assertFalse(self.output.exists())
        left = sorted(path.name for path in self.output.parent.glob("*")) if self.output.parent.exists() else []
        self.assertEqual(left, ["mine.rejected.json"] if status == 1 else [])

    def operators(self, path):
        import onnx
        return [node.op_type for node in onnx.load(path).graph.node]


class AModelThatKeepsItsAnswers(Quantizing):
    def test_rows_become_an_int8_model_with_golden_request(self):
        import small_models
        report = self.accepted(*small_models.wine(self.folder), "--method", "static")
        self.assertIn("QuantizeLinear", self.operators(self.output / "1" / "model.onnx"))
        chosen = report["candidates"][0]
        self.assertEqual(chosen["layers"], {"int8": {"Gemm": 2}, "float": []})
        self.assertGreaterEqual(min(agreement["top1_agreement"] for agreement in chosen["agreement"].values()), 0.98)
        self.assertEqual(set(chosen["agreement"]), {"ONNX Runtime", "OpenVINO"})
        self.assertEqual((report["samples"]["calibration"], report["samples"]["held_out"]), (80, 80))
        self.assertEqual(chosen["sha256"], digest(self.output / "1" / "model.onnx"))
        golden, = tomllib.loads((self.output / "model.toml").read_text())["golden"]
        self.assertLess(0.01, golden["max_relative_error"])
        request = json.loads((self.output / golden["file"]).read_text())
        self.assertEqual(request["inputs"][0]["shape"], [8, 13])
        # The expected answer is the float model's, to the last bit.
        import numpy as np
        import onnxruntime
        session = onnxruntime.InferenceSession(str(self.folder / "wine.onnx"))
        rows = np.array(request["inputs"][0]["data"], np.float32).reshape(8, 13)
        want = session.run(None, {"features": rows})[0]
        self.assertEqual(np.array(request["outputs"][0]["data"], np.float32).tolist(), want.ravel().tolist())

    def test_photographs_of_an_opset_11_model_become_an_image_pipeline(self):
        import small_models
        model, pictures, names = small_models.colors(self.folder)
        report = self.accepted(
            model, pictures, "--method", "static", "--class-names", names, "--softmax", "--resize-short", 36,
            "--scale", 1 / 255, "--mean", "0.5", "--std", "0.5", "--max-loss", 0, "--keep-fp32")
        self.assertEqual(report["metric"], "accuracy")
        self.assertEqual(report["candidates"][0]["agreement"]["OpenVINO"]["accuracy"], 1)
        self.assertIn("converted from opset 11 to 13", report["notes"])
        config = tomllib.loads((self.output / "model.toml").read_text())
        pipeline = config["pipeline"]["image_classification"]
        self.assertEqual((pipeline["crop"], pipeline["mean"], pipeline["std"]), ([32, 32], [127.5] * 3, [127.5] * 3))
        golden, = config["golden"]
        self.assertTrue((self.output / golden["file"]).is_file())
        self.assertGreater(golden["min_score"], 0)
        outputs, = json.loads((self.output / golden["outputs"]).read_text())["outputs"]
        self.assertEqual((outputs["name"], outputs["shape"]), ("logits", [1, 3]))
        self.assertEqual(digest(self.output / "float32.onnx"), digest(model))

    def test_nncf_makes_convolutions_that_both_runtimes_take(self):
        import small_models
        model, pictures, names = small_models.colors(self.folder)
        report = self.accepted(model, pictures, "--method", "nncf", "--class-names", names, "--scale", 1 / 255)
        chosen = report["candidates"][0]
        self.assertEqual((chosen["layers"]["int8"].get("Conv"), chosen["refused_by"]), (1, {}))

    def test_the_same_samples_give_the_same_bytes(self):
        import small_models
        model, rows = small_models.wine(self.folder)
        header, *lines = rows.read_text().splitlines()
        turned = self.folder / "turned.csv"
        turned.write_text("\n".join([header, *reversed(lines)]) + "\n")
        outputs = [self.folder / "first", self.folder / "second"]
        for samples, output in zip((rows, turned), outputs):
            self.accepted(model, samples, "--method", "static", "--calibration", "percentile", output=output)
        self.assertEqual(*(digest(output / "1" / "model.onnx") for output in outputs))

    def test_a_node_may_stay_in_float(self):
        import small_models
        report = self.accepted(*small_models.wine(self.folder), "--method", "dynamic", "--keep-float", "Gemm", "--metric", "cosine")
        self.assertEqual(report["candidates"][0]["layers"]["int8"], {})


class WeightsOnProcessorsWithoutVnni(Quantizing):
    def pair(self, *more):
        """The largest sum of two weights, by the report and by the file."""
        import onnx
        import overflow
        import small_models
        model, rows = small_models.wine(self.folder)
        report = self.accepted(model, rows, "--replace", "--max-loss", 1, *more)
        chosen = report["candidates"][0]
        pair = overflow.largest_pair(onnx.load(self.output / "1" / "model.onnx"))
        self.assertEqual(chosen["largest_weight_pair"], pair)
        self.assertTrue(chosen["layers"]["int8"])
        return pair

    def test_two_weights_of_an_output_fit_whatever_the_method(self):
        for method in ("static", "nncf", "dynamic"):
            with self.subTest(method):
                self.assertLessEqual(self.pair("--method", method), 128)
                self.assertGreater(self.pair("--method", method), 100)

    def test_the_full_range_is_there_for_the_asking_and_says_what_it_costs(self):
        for method in ("static", "nncf", "dynamic"):
            with self.subTest(method):
                self.assertGreater(self.pair("--method", method, "--full-range"), 128)
        notes = json.loads((self.output / "report.json").read_text())["notes"]
        self.assertTrue(any("without VNNI compute this model wrong" in note for note in notes), notes)

    def test_weights_keep_their_values_and_biases_their_sums(self):
        """Random layers of every kind: made to fit, they give what they gave, but for rounding."""
        import numpy as np
        import onnx
        import onnxruntime
        import overflow
        import small_models
        exact = onnxruntime.SessionOptions()
        # Without it a processor without VNNI adds products of the full range in 16 bits.
        exact.add_session_config_entry("session.x64quantprecision", "1")
        for seed in range(12):
            model, feed, coarse, original = small_models.quantized_layer(seed)
            before = onnxruntime.InferenceSession(model.SerializeToString(), exact).run(None, feed)[0]
            self.assertGreater(overflow.largest_pair(model), overflow.LARGEST_PAIR)
            overflow.fit(model, [np.ones((2, 2), np.float32), original] if seed % 2 else [])
            self.assertLessEqual(overflow.largest_pair(model), overflow.LARGEST_PAIR)
            after = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
            self.assertLess(np.abs(after - before).max(), coarse, seed)
            if seed % 2:
                # Rounded once, from the original.
                weights, = overflow.all_weights(model)
                constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
                steps, scale = constants[weights.steps], constants[weights.scale]
                fits = overflow.along_axis(np.ravel(scale), steps, weights.scale_axis) * steps
                self.assertLessEqual((np.abs(fits - original) / np.max(scale)).max(), 0.501)


class AModelThatLosesTooMuch(Quantizing):
    def test_it_is_refused_and_only_a_report_is_written(self):
        import small_models
        self.failed(1, "REFUSED", *small_models.fragile(self.folder), "--method", "static")
        report = json.loads((self.folder / "models" / "mine.rejected.json").read_text())
        self.assertFalse(report["accepted"])
        self.assertGreater(report["candidates"][0]["loss"], 0.02)

    def test_too_few_held_out_samples_prove_nothing(self):
        import small_models
        model, rows = small_models.wine(self.folder)
        rows.write_text("\n".join(rows.read_text().splitlines()[:5]) + "\n")
        self.failed(1, "NOT PROVEN: 2 samples are held out", model, rows, "--method", "dynamic", "--metric", "cosine")

    def test_what_is_there_stays_when_a_replacement_is_refused(self):
        import small_models
        self.accepted(*small_models.wine(self.folder), "--method", "static")
        before = {path: digest(path) for path in self.output.rglob("*") if path.is_file()}
        result = self.quantize(*small_models.fragile(self.folder), "--method", "static", "--replace")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(before, {path: digest(path) for path in self.output.rglob("*") if path.is_file()})


class WhatTheHelpSays(unittest.TestCase):
    def test_it_names_the_files_that_are_written(self):
        told = subprocess.run([sys.executable, "-B", str(TOOL), "--help"], stdout=subprocess.PIPE, text=True).stdout
        written = (TOOL / "tool.py").read_text()
        for name in ("float32.onnx", ".rejected.json"):
            self.assertIn(name, told)
            self.assertIn(name, written)


class WhatCannotBeDone(Quantizing):
    def test_a_model_that_is_quantized_already(self):
        import small_models
        _model, rows = small_models.wine(self.folder)
        self.failed(2, "quantized already", small_models.quantized(self.folder), rows, "--method", "static")

    def test_samples_of_another_shape(self):
        import small_models
        model, _rows = small_models.wine(self.folder)
        _other, arrays = small_models.fragile(self.folder)
        self.failed(2, "has shape [80, 8]; features of the model takes [N,13]", model, arrays, "--method", "static")

    def test_an_operator_to_keep_that_is_not_there(self):
        import small_models
        model, rows = small_models.wine(self.folder)
        self.failed(2, "Its operators are Gemm, Mul, Relu, Sub", model, rows, "--keep-float", "Conv", "--method", "static")

    def test_too_few_samples(self):
        import small_models
        model, rows = small_models.wine(self.folder)
        rows.write_text("\n".join(rows.read_text().splitlines()[:3]) + "\n")
        self.failed(2, "at least 4 are needed", model, rows, "--method", "static")

    def test_a_batch_that_is_fixed(self):
        import small_models
        model, pictures, _names = small_models.colors(self.folder, batch=4)
        self.failed(2, "batches of exactly 4", model, pictures, "--method", "static")

    def test_a_folder_that_is_there(self):
        import small_models
        self.output.mkdir(parents=True)
        result = self.quantize(*small_models.wine(self.folder), "--method", "static")
        self.assertEqual(result.returncode, 2)
        self.assertIn("is there already", result.stdout)
        self.assertEqual(os.listdir(self.output), [])


if __name__ == "__main__":
    unittest.main()
