#!/usr/bin/env python3
"""Makes the model's folder from weights.json: a network of 13 inputs, 16 hidden units and 3 outputs as plain ONNX operators.

usage: build.py FOLDER      (an empty folder; `make setup` calls this)
"""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent


def model(weights):
    features, classes = len(weights["mean"]), len(weights["output_bias"])
    shapes = {"hidden_weight": (features, -1), "output_weight": (-1, classes)}
    constants = [
        numpy_helper.from_array(np.array(values, np.float32).reshape(shapes.get(name, -1)), name)
        for name, values in weights.items() if name != "features"
    ]
    nodes = [
        helper.make_node("Sub", ["features", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "inverse_deviation"], ["standardized"]),
        helper.make_node("Gemm", ["standardized", "hidden_weight", "hidden_bias"], ["hidden_sum"]),
        helper.make_node("Relu", ["hidden_sum"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "output_weight", "output_bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "wine_mlp",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", features])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", classes])], constants)
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="ledge models")
    onnx.checker.check_model(result, full_check=True)
    return result


def main(folder):
    folder = Path(folder)
    (folder / "1").mkdir(parents=True)
    weights = json.loads((HERE / "weights.json").read_text())
    (folder / "1" / "model.onnx").write_bytes(model(weights).SerializeToString(deterministic=True))
    for name in ("model.toml", "labels.txt", "golden/rows.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(HERE / name, folder / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
