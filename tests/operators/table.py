#!/usr/bin/env python3
"""Writes the table of operators, src/engine/operators.tsv, from what `run.py` measured.

usage: table.py --python FOLDER --root .ledge RESULT.json...

Operators that no spec has take no lengths, places or counts as inputs; they are listed as such, so that the readers of models
know them.
"""
import argparse
import importlib
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / "src/engine/operators.tsv"
COLUMNS = ["format", "operator", "operand", "runtime", "cases", "answered", "errors", "crashes", "foreign", "endless", "example"]

# With lengths, places or counts among their inputs, and not measured: callers' integers are refused.
UNKNOWN = {
    "onnx": {"SequenceMap", "ImageDecoder", "StringSplit", "CausalConvWithState", "LinearAttention", "CategoryMapper"},
    "ir": {
        "Loop", "TensorIterator", "PagedAttentionExtension", "GatedDeltaNet", "EmbeddingBag", "ExperimentalDetectronDetectionOutput",
        "ExperimentalDetectronGenerateProposalsSingleImage", "ExperimentalDetectronROIFeatureExtractor", "ExperimentalDetectronTopKROIs",
        "ExperimentalDetectronPriorGridGenerator", "GenerateProposals", "SparseFillEmptyRows", "StringTensorPack", "RegionYolo"},
    "tflite": {
        "LSH_PROJECTION", "EMBEDDING_LOOKUP_SPARSE", "SKIP_GRAM", "CALL", "CUSTOM", "DELEGATE", "HASHTABLE_LOOKUP",
        "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN", "DENSIFY", "RANDOM_STANDARD_NORMAL",
        "RANDOM_UNIFORM", "MULTINOMIAL", "MATRIX_SET_DIAG", "PLACEHOLDER"},
}


# Their names in an IR are not those of the functions that make them.
NAMED_OTHERWISE = {
    "ReLU", "PReLU", "SoftMax", "MatMul", "LSTMCell", "GRUCell", "RNNCell", "If", "Result", "Assign", "LRN", "MVN", "GRN", "FakeQuantize",
    "NotEqual", "LogicalNot", "ConvertLike", "ConcatV2", "L2Normalization", "NormalizeL2", "BatchNormInference", "HSwish", "HSigmoid",
    "SoftPlus", "SoftSign", "LogSoftmax", "RMS", "RandomPoisson", "Identity"}


def others():
    """(format, operator, runtime) of the operators that the runtimes know."""
    import onnx
    from onnxruntime.capi import onnxruntime_pybind11_state as state
    for schema in onnx.defs.get_all_schemas():
        for runtime in ("onnxruntime", "openvino"):
            if schema.domain in ("", "ai.onnx.ml"):
                yield "onnx", schema.name if not schema.domain else f"{schema.domain}.{schema.name}", runtime
    for schema in state.get_all_operator_schema():
        of_integers = any("(int32)" in put.typeStr or "(int64)" in put.typeStr or put.typeStr in ("M", "Tind", "I", "F", "Tid", "S") for put in schema.inputs)
        if schema.domain == "com.microsoft" and not of_integers:
            yield "onnx", f"com.microsoft.{schema.name}", "onnxruntime"
            yield "onnx", f"com.microsoft.{schema.name}", "openvino"
    for kind in ir_operators():
        yield "ir", kind, "openvino"
    reader = (HERE.parent.parent / "src/engine/tflite.rs").read_text()
    names = reader[reader.index("const NAMES"):]
    for name in names[names.index("= [") + 3:names.index("];")].replace('"', "").replace("\n", " ").split(","):
        if name.strip():
            yield "tflite", name.strip(), "openvino"


def ir_operators():
    """The names of the types in an IR, which OpenVINO's library has as texts."""
    found = set()
    for number in range(1, 17):
        module = importlib.import_module(f"openvino.opset{number}")
        for name in dir(module):
            if not name.startswith("_") and callable(getattr(module, name)):
                found.add(name)
    library = next((Path(sys.modules["openvino"].__file__).parent / "libs").glob("libopenvino.so.*")).read_bytes()
    flat = {name.replace("_", "").lower() for name in found}
    words = {word.decode() for word in re.findall(rb"(?<=\0)[A-Z][A-Za-z0-9]{1,50}(?=\0)", library)}
    words = {word for word in words if word.lower() in flat}
    words |= {"".join(part.capitalize() for part in name.split("_")) for name in found if name.islower()}
    return sorted(words | NAMED_OTHERWISE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path)
    parser.add_argument("--root", type=Path, default=".ledge")
    parser.add_argument("results", nargs="+", type=Path)
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.python), str(arguments.root / "tools/python")]
    rows = {}
    for path in arguments.results:
        for row in json.loads(path.read_text())["rows"]:
            example = next((row[10][kind] for kind in ("crashes", "foreign", "endless") if kind in row[10]), "")
            before = rows.get(tuple(row[:4]), row[:4] + [0] * 6 + [""])
            counts = [one + other for one, other in zip(before[4:10], row[4:10])]
            rows[tuple(row[:4])] = row[:4] + counts + [before[10] or example]
    # An operator with lengths among its inputs that was not measured is none without them.
    measured = set()
    for form in ("onnx", "ir", "tflite"):
        for spec in __import__(f"specs_{form}").specs():
            measured.add((form, spec.operator))
            # What the runtime did not take, or nobody ran, is in the table without a case.
            for steer in spec.steers:
                operand = f"{[given.name if given else '' for given in spec.inputs].index(steer.name)} {steer.name}"
                for runtime in ("onnxruntime", "openvino") if form == "onnx" else ("openvino",):
                    place = operand.split(" ")[0]
                    if not any(row[:2] == (form, spec.operator) and row[3] == runtime and row[2].split(" ")[0] == place for row in rows):
                        rows[form, spec.operator, operand, runtime] = [form, spec.operator, operand, runtime, 0, 0, 0, 0, 0, 0, ""]
    for form, operator, runtime in others():
        if (form, operator) not in measured and operator.split(".")[-1] not in UNKNOWN[form]:
            rows[form, operator, "-", runtime] = [form, operator, "-", runtime, 0, 0, 0, 0, 0, 0, ""]
    lines = ["\t".join(COLUMNS)]
    for _, row in sorted(rows.items()):
        lines.append("\t".join(str(field).replace("\t", " ")[:120] for field in row).rstrip())
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} lines, {sum(1 for row in rows.values() if row[7] or row[8])} with harm, in {OUT}")


if __name__ == "__main__":
    main()
