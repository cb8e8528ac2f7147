#!/usr/bin/env python3
"""Runs operators on numbers of every size in both runtimes, and writes src/engine/values.tsv: up to how many bits they are right.

usage: values.py --python FOLDER --root .ledge [--only WORD] [--format onnx|ir|tflite] [--out FILE] [--reads RUNNER]

With --reads the numbers go through Ledge's readers and checks: it writes no table, and counts what is wrong of what callers reach.
"""
import argparse
import collections
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / "src/engine/values.tsv"
ROWS_MAX = 4000
COLUMNS = ["format", "operator", "runtime", "datatypes", "bits", "wraps", "example"]
# Between 2^n and 2^(n+1) the numbers change at which a runtime may round or cut.
EDGES = sorted({0, 3, 5, 6, 7, 100, 200, 123456789, 2 * 10**9, 2 * 10**9 + 1} | {
    2**power + step for power in (0, 1, 2, 4, 7, 8, 12, 15, 16, 20, 23, 24, 28, 30, 31, 32, 40, 53, 62, 63, 64) for step in (-1, 0, 1)})
SIZES = [2, 4, 7, 8, 12, 15, 16, 20, 23, 24, 28, 30, 31, 32, 40, 53, 64]
REALS = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 1 / 3, 0.1, 0.1 + 1e-12, 3 - 1e-12, 2.5 + 1e-12, math.pi, 7.25, 42.42, 59.9, 1000.1, 65537.25, 2.0**24 - 1, 2.0**24 + 2, 123456789.0, 2.0**31, 1e10 + 0.1, 2.0**53 - 1, 1e30]
# Of integers OpenVINO keeps so many bits beside the sign.
KEPT_BITS = 31
CONSTANTS = [3, -2, 2**24 + 1, 2 * 10**9 + 1, 2**32 + 1]


def bits_of(number):
    """The bits of a number without its sign."""
    return abs(int(number)).bit_length()


def numbers(datatype, limits):
    if datatype.startswith("float"):
        both = [sign * real for real in REALS for sign in (1, -1)]
        return [float(np.float32(real)) for real in both] if datatype == "float32" else both
    return [sign * edge for edge in EDGES for sign in ((1, -1) if limits.min < 0 else (1,)) if limits.min <= sign * edge <= limits.max]


def rows_of(spec, datatype, limits):
    """Rows of operands, at most some thousands: of small numbers first."""
    every = numbers(datatype, limits)
    generator = random.Random(zlib.crc32(f"{spec.onnx} {spec.ir_name} {spec.variant} {datatype}".encode()))
    if len(every)**spec.arity <= ROWS_MAX:
        rows = list(itertools.product(every, repeat=spec.arity))
    else:
        # Neighbours, which are told apart last.
        ordered = sorted(every)
        rows = [(*pair, *pair[:spec.arity - 2])[:spec.arity] for one, other in zip(ordered, ordered[1:]) for pair in ((one, other), (other, one), (one, one))]
        for _ in range(ROWS_MAX):
            # Of one size, so that each size has rows without larger numbers.
            most = generator.choice(SIZES)
            near = [number for number in every if bits_of(number) <= most]
            row = tuple(generator.choice(near) for _ in range(spec.arity))
            rows.append(row)
    return [row for row in dict.fromkeys(rows) if spec.takes(row, limits)]


class Runtime:
    def __init__(self, name, content, suffix, folder, weights=None):
        path = folder / f"model.{suffix}"
        path.write_bytes(content)
        if weights is not None:
            path.with_suffix(".bin").write_bytes(weights)
        self.name = name
        if name == "onnxruntime":
            import onnxruntime
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        else:
            core = openvino.Core()
            self.model = core.read_model(path)
            self.compiled = core.compile_model(self.model, "CPU", SETTINGS)
            self.request = self.compiled.create_infer_request()

    def run(self, inputs):
        if self.name == "onnxruntime":
            return self.session.run(None, inputs)[0]
        for port in self.compiled.inputs:
            name = next(name for name in inputs if name in port.get_names() or name == port.get_node().get_friendly_name())
            self.request.set_tensor(port, openvino.Tensor(inputs[name]))
        self.request.infer()
        return np.array(self.request.get_output_tensor(0).data)


class Reader:
    """Ledge's reader of model files, and the checks of each call that follow from it."""

    def __init__(self, runner, folder):
        self.process = subprocess.Popen([runner, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def bits(self, path, runtime):
        """The bits that integers of callers may have; None if the runtime does not get the model."""
        self.process.stdin.write(json.dumps({"refused": str(path)}) + "\n")
        self.process.stdin.flush()
        refused, bits = json.loads(self.process.stdout.readline())["refused"]["Ok"]
        if any(name == runtime for name, _ in refused):
            return None
        return min([bits for name, bits in bits if name == runtime], default=64)


def is_taken(row, datatype, runtime, bits):
    """Whether Ledge gives these integers to the runtime."""
    if datatype not in ("int64", "uint64", "uint32", "int32"):
        return True
    most = min(bits, KEPT_BITS) if runtime == "openvino" and datatype != "int32" else bits
    return all(bits_of(number) <= most for number in row)


def onnx_graph(spec, names, datatype):
    """The nodes of an operator, whose output is `y`, and its constants."""
    words = [one for one in spec.constants if isinstance(one, str)]
    constants = [one.astype(datatype) if words == ["typed"] else one for one in spec.constants if not isinstance(one, str) and words != ["tflite"]]
    weights = {f"c{number}": value for number, value in enumerate(constants)}
    node = helper.make_node
    attributes = {key: helper.np_dtype_to_tensor_dtype(np.dtype(value)) if key == "to" else value for key, value in spec.attributes.items()}
    if spec.variant == "columns":
        weights["one"] = np.array([1])
        return [node("Unsqueeze", [names[0], "one"], ["u0"]), node("Unsqueeze", [names[1], "one"], ["u1"]), node("Concat", ["u0", "u1"], ["y"], axis=1)], weights
    if spec.variant == "first row":
        weights |= {"i": np.array([[0]]), "r": np.array([0])}
        return [node("Gather", [names[0], "r"], ["u"]), node("ScatterND", [names[0], "i", "u"], ["y"])], weights
    if spec.variant == "true":
        weights["t"] = np.array([True])
        return [node("Where", ["t", *names], ["y"])], weights
    if spec.onnx == "Range":
        weights |= {"three": np.array(3, datatype), "step": np.array(1, datatype)}
        return [node("Add", [names[0], "three"], ["end"]), node("Range", [names[0], "end", "step"], ["y"])], weights
    outputs = ["y", "indices"] if spec.onnx == "TopK" else ["y"]
    return [node(spec.onnx, [*names, *weights], outputs, **attributes)], weights


def onnx_model(spec, datatype, shapes, constant, follows):
    kind = helper.np_dtype_to_tensor_dtype
    names = list(shapes)
    inputs = {name: (datatype, shape) for name, shape in shapes.items()}
    weights, before, after, last = {}, [], [], "y"
    if constant is not None:
        weights[names[-1]] = np.array([constant], datatype)
        del inputs[names[-1]]
    operands = list(names)
    to = spec.to or datatype
    if follows == "sums":
        inputs["zero"] = (datatype, [])
        before = [helper.make_node("Add", [names[0], "zero"], ["before"])]
        operands[0] = "before"
        if to != "bool":
            inputs["nothing"] = (to, [])
            after, last = [helper.make_node("Add", ["y", "nothing"], ["after"])], "after"
    elif follows == "floats":
        after, last = [helper.make_node("Cast", ["y"], ["after"], to=1), helper.make_node("Relu", ["after"], ["relu"]), helper.make_node("Neg", ["after"], ["neg"]), helper.make_node("Relu", ["neg"], ["relu2"]), helper.make_node("Sub", ["relu", "relu2"], ["whole"])], "whole"
        to = "float32"
    nodes, more = onnx_graph(spec, operands, datatype)
    weights |= more
    ports = [helper.make_tensor_value_info(name, kind(np.dtype(dtype)), shape) for name, (dtype, shape) in inputs.items()]
    graph = helper.make_graph([*before, *nodes, *after], "values", ports, [helper.make_tensor_value_info(last, kind(np.dtype(to)), None)], [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString(), None


def ir_model(spec, datatype, shapes, constant, follows):
    from openvino import opset15 as ov
    nodes, parameters = [], []

    def parameter(name, dtype, shape):
        made = ov.parameter(openvino.PartialShape([-1 if isinstance(side, str) else side for side in shape]), np.dtype(dtype), name=name)
        made.output(0).get_tensor().set_names({name})
        parameters.append(made)
        return made

    for name, shape in shapes.items():
        nodes.append(parameter(name, datatype, shape))
    if constant is not None:
        parameters.pop()
        nodes[-1] = ov.constant(np.array([constant], datatype))
    to = spec.to or datatype
    if follows == "sums":
        nodes[0] = ov.add(nodes[0], parameter("zero", datatype, []))
    last = spec.ir(*nodes).output(0)
    if follows == "sums" and to != "bool":
        last = ov.add(last, parameter("nothing", to, [])).output(0)
    elif follows == "floats":
        last = ov.convert(last, "f32")
        last = ov.subtract(ov.relu(last), ov.relu(ov.negative(last))).output(0)
    model = openvino.Model([ov.result(last)], parameters, "values")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino.serialize(model, path, path.with_suffix(".bin"))
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def tflite_model(spec, datatype, shapes, constant, follows):
    import specs_tflite as tflite
    from cases import Spec, data
    tflite.CODES.setdefault(spec.tflite, (tflite_names().index(spec.tflite), spec.options[0]))
    to = np.dtype(spec.to or datatype)
    free = [data(name, np.zeros([2 if isinstance(side, str) else side for side in shape], datatype)) for name, shape in shapes.items()]
    fixed = [data(f"c{number}", np.asarray(value, np.int32)) for number, value in enumerate(one for one in spec.constants if not isinstance(one, str))]
    if constant is not None:
        free[-1].value = np.array([constant], datatype)
    ranks = {"ARG_MAX": 1, "ARG_MIN": 1}
    rank = 1 if not spec.width or spec.options[0] == 27 else ranks.get(spec.tflite, 2)
    options = dict(spec.options[1])
    if spec.tflite == "CAST":
        options = {0: ("<b", tflite.TYPES[datatype]), 1: ("<b", tflite.TYPES[str(to)])}
    outputs = [(to, rank)] + ([(np.int32, 2)] if spec.tflite == "TOPK_V2" else [])
    made = Spec(spec.tflite, free + fixed, "", False, {"outputs": outputs, "options": options})
    names = {one.name for one in free} - ({list(shapes)[-1]} if constant is not None else set())
    return tflite.model(made, names), None


def tflite_names():
    reader = (HERE.parent.parent / "src/engine/tflite.rs").read_text()
    names = reader[reader.index("const NAMES"):]
    return [name.strip().strip('"') for name in names[names.index("= [") + 3:names.index("];")].split(",") if name.strip()]


class Measured:
    """The right and the wrong cases of an operator with one datatype."""

    def __init__(self):
        self.right, self.wrong, self.wraps, self.example = collections.Counter(), {}, set(), ""
        self.wrong_cases = collections.Counter()

    def add(self, bits, wraps, is_right, example):
        if wraps:
            self.wraps.add(is_right)
        elif is_right:
            self.right[bits] += 1
        self.wrong_cases[bits] += not is_right and not wraps
        if not wraps and not is_right and bits not in self.wrong:
            self.wrong[bits] = example
        if wraps and not is_right and not self.example:
            self.example = example

    def limit(self):
        """The bits up to which all was right."""
        return "all" if not self.wrong else str(max(0, min(self.wrong) - 1))


def close(made, right, datatype, terms):
    """Right but for rounding. `terms`: the size of what was summed up."""
    made, right = np.asarray(made, np.float64), np.asarray(right, np.float64)
    tolerance = 4e-6 if datatype == "float32" else 1e-12
    with np.errstate(all="ignore"):
        return (np.abs(made - right) <= tolerance * np.maximum(np.abs(right), terms)) | (made == right) | (np.isnan(made) & np.isnan(right))


def measure(spec, datatype, form, runtime, folder, measured, stats, reader=None):
    limits = np.finfo(datatype) if datatype.startswith("float") else np.iinfo(datatype)
    rows = rows_of(spec, datatype, limits)
    if not rows:
        return
    to = spec.to or datatype
    build, suffix = {"onnx": (onnx_model, "onnx"), "ir": (ir_model, "xml"), "tflite": (tflite_model, "tflite")}[form]
    makes = {"onnx": spec.onnx, "ir": spec.ir_name, "tflite": spec.tflite}[form]
    columns = ["x"] if spec.width else ["a", "b", "c"][:spec.arity]
    shapes = {name: ["n", 3] if spec.width else [] if number >= len(columns) - spec.scalars else ["n"] for number, name in enumerate(columns)}
    attempts = [(None, "")]
    if form != "tflite" and spec.follows:
        attempts += [(None, "sums")] + ([(None, "floats")] if datatype not in FLOATS and to != "bool" else [])
    if not spec.width and spec.arity == 2 and spec.onnx != "Concat":
        attempts += [(constant, "") for constant in CONSTANTS if datatype not in FLOATS and limits.min <= constant <= limits.max]
    for constant, follows in attempts:
        chosen = [row for row in rows if row[-1] == constant] if constant is not None else rows
        if constant is not None:
            chosen = [(*row[:-1], constant) for row in dict.fromkeys((*row[:-1], 0) for row in rows) if spec.takes((*row[:-1], constant), limits)]
        if not chosen:
            continue
        try:
            content, weights = build(spec, datatype, shapes, constant, follows)
            model = Runtime(runtime, content, suffix, folder, weights)
        except Exception as error:
            stats.append(f"{form} {makes} {datatype} {runtime} {constant} {follows}: {' '.join(str(error).split())[-200:]}")
            continue
        if reader:
            bits = reader.bits(folder / f"model.{suffix}", runtime)
            chosen = [] if bits is None else [row for row in chosen if is_taken(row[:-1] if constant is not None else row, datatype, runtime, bits)]
            if not chosen:
                continue
        # Rows of which the last operands are scalars go together.
        groups = collections.defaultdict(list)
        for row in chosen:
            groups[row[spec.arity - spec.scalars:] if spec.scalars else ()].append(row)
        for scalars, group in list(groups.items())[:120]:
            for part in [group, group[:3]] if len(groups) == 1 else [group]:
                exact = [spec.right(*row) for row in part]
                inputs = {"x": np.array(part, datatype)} if spec.width else {
                    name: np.array(part[0][number] if shapes[name] == [] else [row[number] for row in part], datatype) for number, name in enumerate(columns)}
                if constant is not None:
                    del inputs[columns[-1]]
                if follows == "sums":
                    inputs["zero"] = np.array(0, datatype)
                    if to != "bool":
                        inputs["nothing"] = np.array(0, to)
                if spec.arity == 1 and spec.scalars:
                    inputs["a"] = np.array(part[0][0], datatype)
                try:
                    made = model.run(inputs)
                except Exception as error:
                    stats.append(f"{form} {makes} {datatype} {runtime} {constant} {follows} run: {' '.join(str(error).split())[-200:]}")
                    break
                made = made.reshape(len(part), -1)
                judge(spec, datatype, to, follows, part, exact, made, measured, constant)


def judge(spec, datatype, to, follows, rows, exact, made, measured, constant):
    is_float = to.startswith("float") or follows == "floats"
    for row, right, answer in zip(rows, exact, made):
        rights = right if isinstance(right, list) else [right]
        if len(answer) != len(rights):
            measured.add(max(map(bits_of, row)), False, False, f"{row}: {answer.tolist()}")
            continue
        sizes = [bits_of(number) for number in row if not isinstance(number, float)]
        results = [bits_of(number) for number in rights if isinstance(number, int)] if to != "bool" and not spec.is_comparison else []
        if spec.is_comparison:
            # The second largest operand: another one that is larger is still told apart, as long as its bits are kept.
            bits = sorted(sizes)[-2] if len(sizes) > 1 and max(sizes) <= KEPT_BITS else max(sizes, default=0)
        else:
            bits = max(sizes + results, default=0)
        if isinstance(row[0], float):
            # Numbers of FP64 that FP32 has as well have 24 bits. A number of FP32 is right or wrong.
            with np.errstate(over="ignore"):
                is_single = all(float(np.float32(number)) == number for number in [*row, *map(float, rights)])
            bits = max([1 if datatype == "float32" else 24 if is_single else 53, *results])
        wraps = False
        if not is_float and to not in ("bool",) and not spec.is_comparison:
            info = np.iinfo(to)
            wraps = any(not info.min <= int(number) <= info.max for number in rights)
            size = 1 << info.bits
            rights = [(int(number) - info.min) % size + info.min for number in rights]
        elif follows == "floats":
            info = np.iinfo(to) if not to.startswith("float") else None
            wraps = info is not None and any(not info.min <= int(number) <= info.max for number in rights)
            if wraps:
                continue
        terms = sum(abs(float(number)) for number in row) if spec.width and isinstance(row[0], float) else 1e-3
        try:
            is_right = bool(close(answer, [float(number) for number in rights], "float32" if follows == "floats" else to, terms).all()) if is_float else [int(number) for number in answer] == [int(number) for number in rights]
        except OverflowError:
            continue
        if is_float and any(abs(float(number)) > 3e38 for number in rights):
            continue
        given = " with a constant" if constant is not None else {"sums": " of a sum", "floats": " as a float"}.get(follows, "")
        shown = lambda values: ", ".join(f"{value:.17g}" if isinstance(value, float) else str(int(value)) for value in values)
        measured.add(bits, wraps, is_right, f"{shown(row)}{given}: {shown(answer.tolist())}, not {shown(rights)}")


def count(found):
    """Prints what is wrong of what callers reach."""
    for form, runtime in dict.fromkeys((form, runtime) for form, _, runtime, _, _ in found):
        of = {key: measured for key, measured in found.items() if (key[0], key[2]) == (form, runtime)}
        cases = sum(sum(measured.right.values()) + sum(measured.wrong_cases.values()) for measured in of.values())
        wrong = sum(sum(measured.wrong_cases.values()) for measured in of.values())
        print(f"{form} in {runtime}: {cases} cases, {wrong} wrong")
        for key, measured in of.items():
            for bits, example in sorted(measured.wrong.items())[:1]:
                print(f"  {key[1]} {key[3]} {key[4]}: {example}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".ledge", type=Path)
    parser.add_argument("--python", type=Path, help="where the wheels of the runtimes are unpacked")
    parser.add_argument("--only", default="")
    parser.add_argument("--format", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--reads", type=Path, help="target/debug/examples/operators")
    arguments = parser.parse_args()
    sys.path[:0] = [str(path) for path in (arguments.python, arguments.root / "tools/python") if path and path.exists()] + [str(HERE)]
    global np, openvino, helper, numpy_helper, SETTINGS, FLOATS, DATATYPES
    import numpy as np
    import openvino
    from onnx import helper, numpy_helper
    from cases import DATATYPES
    from specs_values import FLOATS, specs
    SETTINGS = {"NUM_STREAMS": 0, "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False, "INFERENCE_PRECISION_HINT": "f32"}

    stats, found = [], collections.OrderedDict()
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(arguments.reads, folder) if arguments.reads else None
        for form, runtime in (("onnx", "onnxruntime"), ("onnx", "openvino"), ("ir", "openvino"), ("tflite", "openvino")):
            for spec in specs():
                name = {"onnx": spec.onnx, "ir": spec.ir_name, "tflite": spec.tflite}[form]
                name += " fmod" if form == "onnx" and spec.variant == "fmod" else ""
                if not name or arguments.only not in name or arguments.format not in ("", form):
                    continue
                for datatype in spec.datatypes:
                    measured = found.setdefault((form, name, runtime, datatype, spec.to if "to " in spec.variant else ""), Measured())
                    measure(spec, datatype, form, runtime, Path(folder), measured, stats, reader)
    if reader:
        count(found)
        return
    lines = collections.OrderedDict()
    for (form, name, runtime, datatype, to), measured in found.items():
        if not measured.right and not measured.wrong:
            stats.append(f"{form} {name} {datatype} {runtime} no rows")
            continue
        wraps = "-" if not measured.wraps else "wrong" if False in measured.wraps else "right"
        key = (form, f"{name} {DATATYPES[to]}" if to else name, runtime, measured.limit(), wraps)
        datatypes, examples = lines.setdefault(key, ([], []))
        datatypes.append(DATATYPES[datatype])
        examples += [measured.wrong[min(measured.wrong)]] if measured.wrong else [measured.example] if measured.example else []
    text = ["\t".join(COLUMNS)]
    for (form, name, runtime, bits, wraps), (datatypes, examples) in sorted(lines.items()):
        text.append("\t".join([form, name, runtime, ",".join(datatypes), bits, wraps, *examples[:1]]))
    arguments.out.write_text("\n".join(text) + "\n")
    print("\n".join(stats), file=sys.stderr)


if __name__ == "__main__":
    main()
