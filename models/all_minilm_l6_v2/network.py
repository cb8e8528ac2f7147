"""BERT as an ONNX graph of plain operators, with the names of weights that Hugging Face's BertModel has.

The attention of all heads is one MatMul each for the scores and for the values, and LayerNormalization and Gelu are
written out: both runtimes recognise these patterns and fuse them. Matrices are stored in 16 bits, which halves the file; both
runtimes widen them once, when they load the model, and compute in 32.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EPSILON = 1e-12
MASKED = -10000.0


class Graph:
    """Nodes and constants under construction. Each method returns the name of its result."""

    def __init__(self, tensors):
        self.tensors, self.nodes, self.constants = tensors, [], {}

    def constant(self, name, values):
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def op(self, kind, inputs, result, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [result], result, **attributes))
        return result

    def weight(self, name):
        """A weight as it is published."""
        return self.matrix(name, self.tensors[name]) if self.tensors[name].ndim > 1 else self.constant(name, self.tensors[name])

    def matrix(self, name, values):
        """A constant of 32 bits, stored in 16."""
        if f"{name}.half" in self.constants:
            return name
        return self.op("Cast", [self.constant(f"{name}.half", values.astype(np.float16))], name, to=TensorProto.FLOAT)

    def linear(self, x, name, result):
        # The published matrix is [out, in].
        matrix = self.matrix(f"{name}.weight", self.tensors[f"{name}.weight"].T)
        return self.op("Add", [self.op("MatMul", [x, matrix], f"{result}.product"), self.weight(f"{name}.bias")], result)

    def layer_norm(self, x, name, result):
        inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.op("LayerNormalization", inputs, result, axis=-1, epsilon=EPSILON)

    def gelu(self, x, result):
        half, one = self.constant("half", np.float32(0.5)), self.constant("one", np.float32(1))
        root = self.constant("sqrt2", np.float32(np.sqrt(2.0)))
        error = self.op("Erf", [self.op("Div", [x, root], f"{result}.scaled")], f"{result}.erf")
        doubled = self.op("Mul", [x, self.op("Add", [error, one], f"{result}.shifted")], f"{result}.doubled")
        return self.op("Mul", [doubled, half], result)


def attention(graph, x, mask, prefix, result, heads, size):
    split = graph.constant("split_heads", np.array([0, 0, heads, size // heads], np.int64))
    merge = graph.constant("merge_heads", np.array([0, 0, size], np.int64))
    orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    parts = {}
    for part, order in orders.items():
        line = graph.linear(x, f"{prefix}.self.{part}", f"{result}.{part}")
        rows = graph.op("Reshape", [line, split], f"{result}.{part}.heads")
        parts[part] = graph.op("Transpose", [rows], f"{result}.{part}.turned", perm=order)
    scale = graph.constant("root_of_head_size", np.float32(np.sqrt(size // heads)))
    scores = graph.op("MatMul", [parts["query"], parts["key"]], f"{result}.products")
    scores = graph.op("Div", [scores, scale], f"{result}.scores")
    scores = graph.op("Add", [scores, mask], f"{result}.masked")
    shares = graph.op("Softmax", [scores], f"{result}.shares", axis=-1)
    values = graph.op("MatMul", [shares, parts["value"]], f"{result}.values")
    values = graph.op("Transpose", [values], f"{result}.values.turned", perm=[0, 2, 1, 3])
    values = graph.op("Reshape", [values, merge], f"{result}.merged")
    out = graph.linear(values, f"{prefix}.output.dense", f"{result}.dense")
    return graph.layer_norm(graph.op("Add", [out, x], f"{result}.sum"), f"{prefix}.output.LayerNorm", result)


def onnx_model(tensors, config):
    """The model of safetensors' `tensors` and Hugging Face's `config.json`: tokens to one vector a token."""
    graph, size, heads = Graph(tensors), config["hidden_size"], config["num_attention_heads"]
    zero = graph.constant("zero", np.array([0], np.int64))
    length = graph.op("Shape", ["input_ids"], "length", start=1, end=2)
    positions = graph.op("Slice", [graph.weight("embeddings.position_embeddings.weight"), zero, length, zero], "position_vectors")
    words, types = (
        graph.op("Gather", [graph.weight(f"embeddings.{table}_embeddings.weight"), index], f"{table}_vectors", axis=0)
        for table, index in (("word", "input_ids"), ("token_type", "token_type_ids"))
    )
    x = graph.op("Add", [graph.op("Add", [words, types], "typed"), positions], "embedded")
    x = graph.layer_norm(x, "embeddings.LayerNorm", "embeddings")

    mask = graph.op("Unsqueeze", ["attention_mask", graph.constant("head_sides", np.array([1, 2], np.int64))], "mask_sides")
    mask = graph.op("Cast", [mask], "mask_float", to=TensorProto.FLOAT)
    mask = graph.op("Sub", [graph.constant("one", np.float32(1)), mask], "mask_away")
    mask = graph.op("Mul", [mask, graph.constant("masked", np.float32(MASKED))], "mask")

    for layer in range(config["num_hidden_layers"]):
        prefix, last = f"encoder.layer.{layer}", layer + 1 == config["num_hidden_layers"]
        x = attention(graph, x, mask, f"{prefix}.attention", f"layer{layer}.attention", heads, size)
        inner = graph.gelu(graph.linear(x, f"{prefix}.intermediate.dense", f"layer{layer}.inner"), f"layer{layer}.gelu")
        outer = graph.linear(inner, f"{prefix}.output.dense", f"layer{layer}.outer")
        total = graph.op("Add", [outer, x], f"layer{layer}.sum")
        x = graph.layer_norm(total, f"{prefix}.output.LayerNorm", "last_hidden_state" if last else f"layer{layer}")

    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in names]
    output = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["texts", "tokens", size])
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="ledge models")
    onnx.checker.check_model(model, full_check=True)
    return model
