"""Universal Sentence Encoder Multilingual v3 as an ONNX graph of plain operators, with the published names of weights.

Three branches combine the vector of each token with those of 1, 2 and 4 neighbours. The sum over all tokens goes through a small
dense network. Each window is a Concat of slices of the padded text, and one MatMul. The attention mask keeps padding out: it is
applied before each window, because the published model has zeros next to a text, and before the sum.

Matrices are whole numbers times a step, stored in 16 bits; both runtimes convert them to float32 when they load the model. With
8 bits OpenVINO would quantize the activations as well, and the numbers of a vector would change by up to .005.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS = 17  # of the published table: piece i is row i / 17 of block i % 17
# The length of each window in tokens: the number of them before the token itself.
WINDOWS = {2: 0, 3: 1, 5: 2}
NIBBLE = 16


class Graph:
    """Nodes and constants under construction. Each method returns the name of its result."""

    def __init__(self, tensors):
        self.tensors, self.nodes, self.constants = tensors, [], {}

    def constant(self, name, values):
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def integers(self, *values):
        return self.constant("integers" + "".join(f"_{value}" for value in values), np.array(values, np.int64))

    def scalar(self, value):
        return self.constant(f"scalar_{value}", np.float32(value))

    def op(self, kind, inputs, result, **attributes):
        results = [result] if isinstance(result, str) else result
        self.nodes.append(helper.make_node(kind, inputs, results, results[0], **attributes))
        return result

    def float(self, x):
        return self.op("Cast", [x], f"{x}.float", to=TensorProto.FLOAT)

    def weight(self, name):
        return self.constant(name, self.tensors[name])

    def matrix(self, name):
        """A published matrix, the numbers of which are -127 to 127 times a step."""
        values = self.tensors[name].astype(np.float64)
        levels = np.unique(values)
        step = np.diff(levels).min()
        step = levels[-1] / np.rint(levels[-1] / step)
        multiples = np.rint(values / step)
        if np.abs(multiples).max() > 127 or np.abs(multiples * step - values).max() > 1e-5 * np.abs(values).max():
            raise ValueError(f"{name} is not made of whole numbers from -127 to 127 times a step")
        whole = self.float(self.constant(f"{name}.multiples", multiples.astype(np.float16)))
        return self.op("Mul", [whole, self.constant(f"{name}.step", np.float32(step))], name)

    def linear(self, x, name, result):
        return self.op("MatMul", [x, self.matrix(name)], result)

    def layer_norm(self, x, name, result):
        gain, bias = (self.weight(name.format(part)) for part in "gb")
        return self.op("LayerNormalization", [x, gain, bias], result, axis=-1, epsilon=float(self.tensors["eps"]))


def digits(graph, x, base, count, result):
    """The `count` digits in `base` of each whole number of x: a block of the lowest digits first, then the next ones."""
    columns = []
    for index in range(count - 1):
        rest = graph.op("Floor", [graph.op("Div", [x, graph.scalar(base)], f"{result}.quotient{index}")], f"{result}.rest{index}")
        tens = graph.op("Mul", [rest, graph.scalar(base)], f"{result}.tens{index}")
        columns.append(graph.op("Sub", [x, tens], f"{result}.digit{index}"))
        x = rest
    return graph.op("Concat", [*columns, x], result, axis=-1)


def packed(values, base, count):
    """Bytes from which `digits` restores VALUES."""
    columns = np.split(values, count, axis=1)
    return sum(column * base**index for index, column in enumerate(columns)).astype(np.uint8)


def embeddings(graph, ids, pieces):
    """The vectors of tokens, from the published table of 6-bit numbers, which is packed without loss.

    The numbers of most pieces span less than 16 steps, so a number has 4 bits, counted from the smallest of its piece. The pieces
    that span more have 2 high bits a number in a second table; row 0 of it is zero, for all other pieces.
    """
    blocks = [graph.tensors[f"q{block + 1}"] for block in range(BLOCKS)]
    table = np.stack(blocks, axis=1).reshape(-1, blocks[0].shape[1])[:pieces]
    block = np.arange(pieces) % BLOCKS
    least = table.min(axis=1)
    scale = graph.tensors["scale"][block]
    offset = graph.tensors["lo"][block] + scale * least
    above = table - least[:, None]
    wide = above.max(axis=1) >= NIBBLE
    row_of_high = np.where(wide, np.cumsum(wide), 0).astype(np.int32)
    high = np.concatenate([np.zeros((1, above.shape[1]), np.uint8), above[wide] // NIBBLE])

    def rows(name, values, indices):
        return graph.op("Gather", [graph.constant(f"{name}_table", values), indices], name, axis=0)

    low = digits(graph, graph.float(rows("low_bits", packed(above % NIBBLE, NIBBLE, 2), ids)), NIBBLE, 2, "low")
    high = packed(high, 4, 4)
    # Not Gather: OpenVINO does not check its indices, so Ledge refuses those that do not come from an input.
    row = graph.op("Reshape", [rows("row_of_high_bits", row_of_high, ids), graph.integers(-1, 1)], "row_column")
    row = graph.op("Expand", [row, graph.integers(1, high.shape[1])], "row_of_columns")
    high_rows = graph.op("GatherElements", [graph.constant("high_bits_table", high), row], "high_bits_rows", axis=0)
    shape = graph.op("Concat", [graph.op("Shape", [ids], "shape_of_ids"), graph.integers(high.shape[1])], "shape_of_high_bits", axis=0)
    high = digits(graph, graph.float(graph.op("Reshape", [high_rows, shape], "high_bits")), 4, 4, "high")
    high = graph.op("Mul", [high, graph.scalar(NIBBLE)], "high_steps")
    scale, offset = (
        graph.op("Unsqueeze", [rows(name, values, ids), graph.integers(-1)], f"{name}_column")
        for name, values in (("scale", scale), ("offset", offset)))
    steps = graph.op("Mul", [graph.op("Add", [low, high], "steps"), scale], "scaled")
    return graph.op("Add", [steps, offset], "embeddings")


def window(graph, x, size, before, result):
    """For each token, the vectors of the window around it, concatenated."""
    pads = graph.constant(f"pads{size}", np.array([0, before, 0, 0, size - 1 - before, 0], np.int64))
    x = graph.op("Pad", [x, pads], f"{result}.padded")
    slices = []
    for first in range(size):
        # A negative end counts from the end of the padded text; the last slice extends to the end.
        end = first + 1 - size or np.iinfo(np.int64).max
        slices.append(graph.op("Slice", [x, graph.integers(first), graph.integers(end), graph.integers(1)], f"{result}.slice{first}"))
    return graph.op("Concat", slices, result, axis=-1)


def branch(graph, embedded, mask, size):
    name = f"branch{size}"
    x = graph.op("Add", [graph.linear(embedded, f"proj{size}", f"{name}.projected"), graph.weight(f"proj_b{size}")], f"{name}.biased")
    x = graph.layer_norm(x, f"ln_{{}}{size}", f"{name}.normed")
    for layer in (1, 2):
        x = graph.op("Mul", [x, mask], f"{name}.{layer}.masked")
        around = window(graph, x, size, WINDOWS[size], f"{name}.{layer}.window")
        out = graph.linear(around, f"w{layer}_{size}", f"{name}.{layer}.product")
        out = graph.op("Relu", [graph.op("Add", [out, graph.weight(f"b{layer}_{size}")], f"{name}.{layer}.biased")], f"{name}.{layer}.relu")
        x = graph.op("Add", [out, x], f"{name}.{layer}")
    return x


def dense(graph, x):
    """Dense layers; the second and the fourth also take the input of the layer before."""
    first = graph.op("Relu", [graph.linear(x, "d0", "dense0.product")], "dense0")
    both = graph.op("Add", [graph.linear(x, "p1", "dense1.past"), graph.linear(first, "d1", "dense1.product")], "dense1.sum")
    second = graph.op("Relu", [both], "dense1")
    third = graph.op("Relu", [graph.linear(second, "d2", "dense2.product")], "dense2")
    both = graph.op("Add", [graph.linear(second, "p3", "dense3.past"), graph.linear(third, "d3", "dense3.product")], "dense3.sum")
    return graph.op("Tanh", [both], "dense3")


def onnx_model(tensors, pieces):
    """The model of the published `tensors` for a vocabulary of `pieces`: tokens to one vector for each text."""
    graph = Graph(tensors)
    mask = graph.op("Unsqueeze", [graph.float("attention_mask"), graph.integers(-1)], "mask")
    embedded = embeddings(graph, "input_ids", pieces)
    branches = [branch(graph, embedded, mask, size) for size in WINDOWS]
    features = graph.op("Concat", [embedded, *branches], "features", axis=-1)
    features = graph.op("Mul", [graph.layer_norm(features, "ln_{}", "features_normed"), mask], "features_masked")

    # The published model projects each token and adds. Adding first gives the same result with one projection.
    total = graph.op("ReduceSum", [features, graph.integers(1)], "total", keepdims=0)
    count = graph.op("ReduceSum", [mask, graph.integers(1)], "count", keepdims=0)
    biases = graph.op("Mul", [count, graph.weight("cnn_b")], "biases")
    total = graph.op("Add", [graph.linear(total, "cnn_W", "total_projected"), biases], "total_biased")
    x = dense(graph, graph.op("Div", [total, graph.op("Sqrt", [count], "root_of_count")], "average"))
    length = graph.op("ReduceL2", [x, graph.integers(-1)], "length", keepdims=1)
    output = graph.op("Div", [x, length], "embedding")

    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["texts", tensors["d3"].shape[1]])]
    made = helper.make_graph(graph.nodes, "universal_sentence_encoder", inputs, outputs, list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8, producer_name="ledge models")
    onnx.checker.check_model(model, full_check=True)
    return model
