#!/usr/bin/env python3
"""Makes the model's folder from trees.json: the file that skl2onnx makes of the pipeline in train.py, to the byte.

usage: build.py FOLDER      (an empty folder; `make setup` calls this)
"""
import json
import shutil
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

HERE = Path(__file__).resolve().parent
ML = "ai.onnx.ml"
STRING, INT64, BOOL, FLOAT = TensorProto.STRING, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
COLUMNS = {
    "month": STRING, "weekday": STRING, "weather": STRING, "hour": INT64, "day_off": BOOL, "temperature": FLOAT, "humidity": FLOAT,
    "wind": FLOAT}
NAMES, MEASURED = ["month", "weekday", "weather"], ["temperature", "humidity", "wind"]


def regressor(weights):
    """The attributes of the trees. A node is [feature, threshold, left child], the right child being the next one, or a leaf's number."""
    node_keys = (
        "treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "hitrates", "missing_value_tracks_true")
    nodes, leaves = {key: [] for key in node_keys}, {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree, content in enumerate(weights["trees"]):
        for place, node in enumerate(content):
            is_leaf = not isinstance(node, list)
            feature, threshold, left, right = (0, 0.0, 0, 0) if is_leaf else (*node, node[2] + 1)
            mode = "LEAF" if is_leaf else "BRANCH_LEQ"
            for key, value in zip(node_keys, (tree, place, mode, feature, threshold, left, right, 1.0, 0)):
                nodes[key].append(value)
            if is_leaf:
                for key, value in zip(leaves, (tree, place, 0, node * weights["rate"])):
                    leaves[key].append(value)
    return {
        "base_values": [weights["base"]], "n_targets": 1, "post_transform": "NONE",
        **{f"nodes_{key}": values for key, values in nodes.items()}, **{f"target_{key}": values for key, values in leaves.items()}}


def model(weights):
    categories = weights["categories"]
    width = sum(map(len, categories.values()))
    encoders = [
        helper.make_node(
            "OneHotEncoder", [name], [f"{name}out"], f"OneHotEncoder{place or ''}", domain=ML, cats_strings=categories[name], zeros=1)
        for place, name in enumerate(NAMES)]
    nodes = [
        helper.make_node("Cast", ["day_off"], ["day_off_cast"], "Cast", domain="", to=INT64),
        helper.make_node("Concat", MEASURED, ["merged_columns"], "Concat1", domain="", axis=1),
        *encoders,
        helper.make_node("Concat", [f"{name}out" for name in NAMES], ["concat_result"], "Concat", domain="", axis=-1),
        helper.make_node("Concat", ["hour", "day_off_cast"], ["merged_columns1"], "Concat2", domain="", axis=1),
        helper.make_node(
            "Imputer", ["merged_columns"], ["variable1"], "Imputer", domain=ML, imputed_value_floats=weights["medians"],
            replaced_value_float=float("nan")),
        helper.make_node("Reshape", ["concat_result", "shape_tensor"], ["variable3"], "Reshape", domain=""),
        helper.make_node("Cast", ["merged_columns1"], ["variable2_cast"], "Cast1", domain="", to=FLOAT),
        helper.make_node(
            "Concat", ["variable3", "variable1", "variable2_cast"], ["transformed_column"], "Concat3", domain="", axis=1),
        helper.make_node(
            "TreeEnsembleRegressor", ["transformed_column"], ["variable"], "TreeEnsembleRegressor", domain=ML, **regressor(weights)),
    ]
    graph = helper.make_graph(
        nodes, "ONNX(Pipeline)", [helper.make_tensor_value_info(name, datatype, [None, 1]) for name, datatype in COLUMNS.items()],
        [helper.make_tensor_value_info("variable", FLOAT, [None, 1])],
        [helper.make_tensor("shape_tensor", INT64, [2], [-1, width])])
    result = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(ML, 1)], ir_version=10, producer_name="skl2onnx",
        producer_version="1.20.0", domain="ai.onnx", model_version=0, doc_string="")
    onnx.checker.check_model(result, full_check=True)
    return result


def main(folder):
    folder = Path(folder)
    (folder / "1").mkdir(parents=True)
    weights = json.loads((HERE / "trees.json").read_text())
    (folder / "1" / "model.onnx").write_bytes(model(weights).SerializeToString(deterministic=True))
    for name in ("model.toml", "golden/rows.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(HERE / name, folder / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
