"""Releases of one small classifier, as updates bring them: flat folders, each a good or a bad next version of `release_good`.

IN f32[N,4] -> OUT f32[N,3], the scores of three classes. README.md beside this file says what is wrong with each.
"""
import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

# The class is the largest of the first three columns; the fourth has no effect.
WEIGHTS = np.array([[4, 0, 0], [0, 4, 0], [0, 0, 4], [0, 0, 0]], np.float32)

MODEL_TOML = """\
description = "The largest of three numbers, for the tests of updates"
max_batch_size = 8
"""

# In the first four rows of GOLDEN the fourth column is 1.
GOLDEN = [
    ([2, 0, 0, 1], 0), ([0, 2, 0, 1], 1), ([0, 0, 2, 1], 2), ([2, 1, 0, 1], 0), ([0, 2, 1, 0], 1),
    ([1, 0, 2, 0], 2), ([2, 0, 1, 0], 0), ([1, 2, 0, 0], 1), ([0, 1, 2, 0], 2), ([2, 1, 1, 0], 0),
]


def constant(name, data, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(data, dtype), name)


def value(name, shape):
    return helper.make_tensor_value_info(name, FLOAT, shape)


def classifier(nodes=(), initializers=(), weights=WEIGHTS, source="IN", input=("IN", ["N", 4])):
    """A classifier of `source`, which `nodes` make of the input."""
    nodes = [
        *nodes,
        helper.make_node("MatMul", [source, "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["OUT"], axis=1),
    ]
    return written(nodes, initializers, weights, input)


def written(nodes, initializers, weights=WEIGHTS, input=("IN", ["N", 4])):
    graph = helper.make_graph(
        nodes, "release", [value(*input)], [value("OUT", ["N", 3])], [constant("weights", weights), *initializers])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="ledge test models")
    return model.SerializeToString(deterministic=True)


def crash():
    """Divides the least 64-bit integer by -1, whose result no such integer holds: x86 traps, and ONNX Runtime 1.31.1
    dies of SIGFPE. The numbers are made of the input's size, so that nothing is folded away, and not of its values: where
    those divide, the model is refused before it runs."""
    return classifier([*crash_nodes(), helper.make_node("Add", ["IN", "large"], ["spoilt"])], CRASH_NUMBERS, source="spoilt")


CRASH_NUMBERS = [constant("least", -2**63, np.int64), constant("minus_one", -1, np.int64)]


def crash_nodes():
    """A number, `large`, that no process lives to see."""
    return [
        helper.make_node("Size", ["IN"], ["whole"]),
        helper.make_node("Sub", ["whole", "whole"], ["nothing"]),
        helper.make_node("Add", ["nothing", "least"], ["dividend"]),
        helper.make_node("Add", ["nothing", "minus_one"], ["divisor"]),
        helper.make_node("Div", ["dividend", "divisor"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["large"], to=FLOAT),
    ]


def rarely_crash():
    """As `crash`, for one uniform row in fifty and no golden input. It chooses by `If`: ONNX Runtime is given no `Where` of
    the caller's numbers."""
    def branch(name, nodes, output):
        return helper.make_graph(nodes, name, [], [value(output, ["N", 3])])
    spoilt = branch("crash", [*crash_nodes(), helper.make_node("Add", ["right", "large"], ["spoilt"])], "spoilt")
    kept = branch("answer", [helper.make_node("Identity", ["right"], ["kept"])], "kept")
    right, own = faulty_rows(0.2, 0.22)
    nodes = [
        *right,
        helper.make_node("Cast", ["is_fault"], ["fault_of_row"], to=FLOAT),
        helper.make_node("ReduceMax", ["fault_of_row"], ["most_faulty"], keepdims=0),
        helper.make_node("Cast", ["most_faulty"], ["is_any"], to=TensorProto.BOOL),
        helper.make_node("If", ["is_any"], ["OUT"], then_branch=spoilt, else_branch=kept),
    ]
    return written(nodes, [*own, *CRASH_NUMBERS])


def memory(elements=1 << 28):
    """Answers right, after filling 1 GiB of memory (4 bytes an element)."""
    nodes = [
        helper.make_node("ReduceMax", ["IN"], ["most"], keepdims=0),
        helper.make_node("Expand", ["most", "elements"], ["many"]),
        helper.make_node("ReduceMin", ["many"], ["least"], keepdims=0),
        helper.make_node("Sub", ["most", "least"], ["zero"]),
        helper.make_node("Add", ["IN", "zero"], ["same"]),
    ]
    return classifier(nodes, [constant("elements", [elements], np.int64)], source="same")


def holds(elements):
    """Answers right, and holds so many numbers of 4 bytes from its load on, which runtimes fold out of the file's few bytes.
    Its time does not depend on them."""
    nodes = [
        helper.make_node("ConstantOfShape", ["elements"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("Size", ["IN"], ["whole"]),
        helper.make_node("Sub", ["whole", "whole"], ["first"]),
        helper.make_node("Gather", ["ones", "first"], ["one"]),
        helper.make_node("Mul", ["IN", "one"], ["same"]),
    ]
    return classifier(nodes, [constant("elements", [elements], np.int64)], source="same")


def matrix_nodes():
    """A square matrix M made of the input, all of whose elements are 1 over its side: its own square."""
    return [
        helper.make_node("Abs", ["IN"], ["size"]),
        helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0),
        helper.make_node("Add", ["largest", "one"], ["above_one"]),
        helper.make_node("Min", ["above_one", "one"], ["always_one"]),
        helper.make_node("Mul", ["always_one", "element"], ["entry"]),
        helper.make_node("Expand", ["entry", "shape"], ["M"]),
    ]


def slow(times, side=256):
    """Answers right, after `times` products of matrices in a loop: some 0.5 ms each on one core."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["before", "before"], ["after"]), helper.make_node("Identity", ["go"], ["go_on"])],
        "product",
        [helper.make_tensor_value_info("turn", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         value("before", [side, side])],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), value("after", [side, side])])
    nodes = [
        *matrix_nodes(),
        helper.make_node("Loop", ["times", "", "M"], ["product"], body=body),
        helper.make_node("ReduceMean", ["product"], ["mean"], keepdims=0),
        helper.make_node("Div", ["mean", "element"], ["unit"]),
        helper.make_node("Mul", ["IN", "unit"], ["same"]),
    ]
    initializers = [
        constant("one", 1.0), constant("element", 1.0 / side), constant("shape", [side, side], np.int64),
        constant("times", times, np.int64)]
    return classifier(nodes, initializers, source="same")


def bad_accuracy():
    """Confuses the first two classes where the fourth column is 1: wrong for three of the ten golden inputs."""
    weights = WEIGHTS.copy()
    weights[3] = [-20, 20, 0]
    return classifier(weights=weights)


def other_answers():
    """Its classes are in another order: every golden input has another answer."""
    return classifier(weights=WEIGHTS[:, [1, 2, 0]])


def faulty_rows(low, high):
    """Nodes, with their constants, of the `right` answer and of `is_fault`: true where the fourth column is between `low` and
    `high`, so for that share of uniform rows, and for no golden input."""
    nodes = [
        helper.make_node("MatMul", ["IN", "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["right"], axis=1),
        helper.make_node("MatMul", ["IN", "last"], ["column"]),
        helper.make_node("Greater", ["column", "low"], ["is_above"]),
        helper.make_node("Less", ["column", "high"], ["is_below"]),
        helper.make_node("And", ["is_above", "is_below"], ["is_fault"]),
    ]
    return nodes, [constant("last", [[0], [0], [0], [1]]), constant("low", low), constant("high", high)]


def rarely(fault, low, high, nodes=(), initializers=()):
    """Answers with `fault`, which `nodes` make, for the rows of `faulty_rows`."""
    right, own = faulty_rows(low, high)
    choice = helper.make_node("Where", ["is_fault", fault, "right"], ["OUT"])
    return written([*right, *nodes, choice], [*own, *initializers])


def rarely_nan():
    """NaN for a fifth of uniform rows."""
    return rarely("nothing", 0.2, 0.4, initializers=[constant("nothing", float("nan"))])


def rarely_negated():
    """The negative of the right answer for a fifth of uniform rows."""
    return rarely("negated", 0.2, 0.4, [helper.make_node("Neg", ["right"], ["negated"])])


def rarely_wrong():
    """Another class for a tenth of uniform rows."""
    return rarely("rotated", 0.2, 0.3, [helper.make_node("Gather", ["right", "places"], ["rotated"], axis=1)],
                  [constant("places", [1, 2, 0], np.int64)])


def retrained():
    """Weights that differ as those of another training do: it answers otherwise for some rows in a hundred."""
    noise = np.random.default_rng(7).normal(0, 0.08, WEIGHTS.shape).astype(np.float32)
    return classifier(weights=WEIGHTS + noise)


def other_inputs():
    """Takes five columns by another name."""
    return classifier(weights=np.vstack([WEIGHTS, np.zeros((1, 3), np.float32)]), source="X", input=("X", ["N", 5]))


def golden(row, label):
    """A labelled input: the right class must have more than 0.55, which leaves the others less."""
    expected = [1.0 if place == label else 0.0 for place in range(3)]
    request = {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": row}],
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 3], "data": expected}],
    }
    return json.dumps(request).encode() + b"\n"


def releases():
    """Path -> content of every release."""
    models = {
        "good": classifier(),
        "better": classifier(weights=WEIGHTS * np.float32(1.25)),
        "crash": crash(),
        "memory": memory(),
        "holds_some": holds(1 << 25),
        "holds_twice": holds(1 << 26),
        "huge": memory(1 << 32),
        "slow": slow(20),
        "endless": slow(1 << 40),
        "work": slow(4),
        "work_again": slow(4),
        "work_twice": slow(8),
        "rare_crash": rarely_crash(),
        "nan": rarely_nan(),
        "negated": rarely_negated(),
        "wrong": rarely_wrong(),
        "retrained": retrained(),
        "bad_accuracy": bad_accuracy(),
        "other_answers": other_answers(),
        "other_inputs": other_inputs(),
    }
    files = {}
    for name, model in models.items():
        folder, config = f"release_{name}", MODEL_TOML
        files[f"{folder}/model.onnx"] = model
        if name != "other_inputs":
            for number, (row, label) in enumerate(GOLDEN):
                file = f"golden_{number}.json"
                files[f"{folder}/{file}"] = golden(row, label)
                config += f'\n[[golden]]\nfile = "{file}"\ntolerance = 0.45\n'
        files[f"{folder}/model.toml"] = config.encode()
    return files
