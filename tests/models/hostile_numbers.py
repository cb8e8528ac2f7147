"""Models with which an input could end the process or reach into its memory, in one runtime or the other."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
# The number of elements of "x".
ROWS = 8


def model(nodes, inputs, output, initializers=(), opset=17):
    ports = [helper.make_tensor_value_info(name, datatype, shape) for name, datatype, shape in [*inputs, output]]
    weights = [numpy_helper.from_array(np.asarray(data, dtype), name) for name, data, dtype in initializers]
    graph = helper.make_graph(nodes, "hostile", ports[:-1], ports[-1:], weights)
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ledge test models")
    return made.SerializeToString(deterministic=True)


def divide():
    """Divides whole numbers by those of another input: the least one by -1 ends the process."""
    return model(
        [helper.make_node("Div", ["dividend", "divisor"], ["y"])],
        [("dividend", INT64, ["N"]), ("divisor", INT64, ["N"])], ("y", INT64, ["N"]))


def divide_computed():
    """The same with computed divisors, in a branch that no input of the node leads to."""
    branch = helper.make_graph(
        [helper.make_node("Div", ["dividend", "less"], ["quotient"])], "branch", [],
        [helper.make_tensor_value_info("quotient", INT64, ["N"])])
    other = helper.make_graph(
        [helper.make_node("Identity", ["dividend"], ["same"])], "other", [],
        [helper.make_tensor_value_info("same", INT64, ["N"])])
    return model(
        [helper.make_node("Sub", ["divisor", "one"], ["less"]),
         helper.make_node("If", ["always"], ["y"], then_branch=branch, else_branch=other)],
        [("dividend", INT64, ["N"]), ("divisor", INT64, ["N"])], ("y", INT64, ["N"]),
        [("one", [1], np.int64), ("always", True, np.bool_)])


def masked():
    """The rows of a matrix that a mask of any length chooses: x[mask] of PyTorch."""
    return model(
        [helper.make_node("NonZero", ["mask"], ["places"]),
         helper.make_node("Transpose", ["places"], ["indices"]),
         helper.make_node("GatherND", ["x", "indices"], ["y"])],
        [("x", FLOAT, ["N"]), ("mask", BOOL, ["M"])], ("y", FLOAT, [None]))


def scatter():
    """Writes numbers to the indices that a caller gives."""
    return model(
        [helper.make_node("ScatterElements", ["x", "indices", "updates"], ["y"])],
        [("x", FLOAT, ["N"]), ("indices", INT64, ["M"]), ("updates", FLOAT, ["M"])], ("y", FLOAT, ["N"]))


def steps():
    """The whole numbers below 10, in steps that a caller gives."""
    return model(
        [helper.make_node("Squeeze", ["step"], ["scalar"]), helper.make_node("Range", ["zero", "ten", "scalar"], ["y"])],
        [("step", INT64, [1])], ("y", INT64, [None]), [("zero", 0, np.int64), ("ten", 10, np.int64)])


def expand():
    """As many copies of a number as a caller requests."""
    return model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        [("x", FLOAT, [1]), ("shape", INT64, [1])], ("y", FLOAT, [None]))


def branch():
    """The sum of a tensor in a shape that a caller gives, in a branch: no shape of the main graph varies."""
    then = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["matrix"]),
         helper.make_node("ReduceSum", ["matrix", "first"], ["sums"], keepdims=0),
         helper.make_node("ReduceSum", ["sums"], ["sum"], keepdims=0)], "then", [],
        [helper.make_tensor_value_info("sum", FLOAT, [])], [numpy_helper.from_array(np.array([0], np.int64), "first")])
    other = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0)], "other", [],
        [helper.make_tensor_value_info("most", FLOAT, [])])
    return model(
        [helper.make_node("If", ["is_summed"], ["scalar"], then_branch=then, else_branch=other),
         helper.make_node("Reshape", ["scalar", "one"], ["y"])],
        [("is_summed", BOOL, [1]), ("x", FLOAT, [ROWS]), ("shape", INT64, [2])], ("y", FLOAT, [1]),
        [("one", [1], np.int64)])


def hostile_numbers():
    """Path in the repository -> content."""
    made = [divide, divide_computed, masked, scatter, steps, expand, branch]
    return {f"hostile_{function.__name__}/1/model.onnx": function() for function in made}
