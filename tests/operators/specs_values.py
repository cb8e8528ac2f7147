"""Operators that compute with numbers or move them, each with its right answer in Python's exact numbers.

A row is one case. Operands are columns, or for `width` one matrix whose columns they are; `right` gets the numbers of a row and
returns those of the answer.
"""
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import openvino
from openvino import opset15 as ov

SIGNED = ["int64", "int32", "int16", "int8"]
UNSIGNED = ["uint64", "uint32", "uint16", "uint8"]
INTEGERS, FLOATS = SIGNED + UNSIGNED, ["float32", "float64"]
NUMBERS = INTEGERS + FLOATS


@dataclass
class Value:
    right: callable
    arity: int
    datatypes: list
    onnx: str = ""
    attributes: dict = field(default_factory=dict)
    ir: callable = None
    ir_name: str = ""
    tflite: str = ""
    options: tuple = (0, {})                       # BuiltinOptions of TFLite
    to: str = ""                                   # the datatype of the answer, if it is another one
    variant: str = ""
    takes: callable = lambda row, info: True       # rows whose answer is defined
    width: bool = False
    constants: list = field(default_factory=list)  # operands behind the others
    is_comparison: bool = False                    # the smaller operand decides about the answer
    follows: bool = True                           # also between other operators
    scalars: int = 0                               # these last columns are scalars, the same in all rows


def trunc_div(a, b):
    return int(Fraction(a, b)) if isinstance(a, int) else a / b


def divisible(row, info):
    return row[1] != 0 and (isinstance(row[0], float) or not (row[0] == info.min < 0 and row[1] == -1))


def exponent(row, info):
    return 0 <= row[1] <= 7 and (isinstance(row[0], int) or row[1] == int(row[1]) and abs(row[0]) < 1e4)


def shift(row, info):
    return row[0] >= 0 and 0 <= row[1] < info.bits - (info.min < 0)


def positive(row, info):
    return 0.01 < row[0] < 60


def specs():
    made = []

    def op(onnx, ir, tflite, arity, right, datatypes=NUMBERS, **how):
        ir_name, ir = ir if isinstance(ir, tuple) else ("", ir)
        tflite, options = tflite if isinstance(tflite, tuple) else (tflite, (0, {}))
        made.append(Value(right, arity, datatypes, onnx, ir=ir, ir_name=ir_name, tflite=tflite, options=options, **how))

    for onnx, ir, tflite, right in (
        ("Add", ("Add", ov.add), ("ADD", (11, {})), lambda a, b: a + b),
        ("Sub", ("Subtract", ov.subtract), ("SUB", (28, {})), lambda a, b: a - b),
        ("Mul", ("Multiply", ov.multiply), ("MUL", (21, {})), lambda a, b: a * b),
        ("Max", ("Maximum", ov.maximum), ("MAXIMUM", (39, {})), max),
        ("Min", ("Minimum", ov.minimum), ("MINIMUM", (39, {})), min),
        ("", ("SquaredDifference", ov.squared_difference), ("SQUARED_DIFFERENCE", (76, {})), lambda a, b: (a - b)**2),
    ):
        op(onnx, ir, tflite, 2, right)
    op("Div", ("Divide", ov.divide), ("DIV", (29, {})), 2, trunc_div, takes=divisible)
    op("", "", ("FLOOR_DIV", (65, {})), 2, lambda a, b: a // b, INTEGERS, takes=divisible)
    op("Mod", ("FloorMod", ov.floor_mod), ("FLOOR_MOD", (72, {})), 2, lambda a, b: a % b, INTEGERS, takes=divisible)
    op("Mod", ("Mod", ov.mod), "", 2, lambda a, b: a - b * trunc_div(a, b) if isinstance(a, int) else math.fmod(a, b), takes=divisible, attributes={"fmod": 1}, variant="fmod")
    op("Pow", ("Power", ov.power), ("POW", (56, {})), 2, lambda a, b: a**b, takes=exponent)
    for onnx, ir, tflite, right in (
        ("Equal", ("Equal", ov.equal), ("EQUAL", (53, {})), lambda a, b: a == b),
        ("", ("NotEqual", ov.not_equal), ("NOT_EQUAL", (54, {})), lambda a, b: a != b),
        ("Less", ("Less", ov.less), ("LESS", (41, {})), lambda a, b: a < b),
        ("LessOrEqual", ("LessEqual", ov.less_equal), ("LESS_EQUAL", (46, {})), lambda a, b: a <= b),
        ("Greater", ("Greater", ov.greater), ("GREATER", (44, {})), lambda a, b: a > b),
        ("GreaterOrEqual", ("GreaterEqual", ov.greater_equal), ("GREATER_EQUAL", (45, {})), lambda a, b: a >= b),
    ):
        op(onnx, ir, tflite, 2, right, to="bool", is_comparison=True)
    op("Clip", "", "", 3, lambda a, low, high: min(max(a, low), high), takes=lambda row, info: row[1] <= row[2], scalars=2)
    for onnx, ir, tflite, right in (
        ("Abs", ("Abs", ov.absolute), ("ABS", (78, {})), abs),
        ("Sign", ("Sign", ov.sign), "SIGN", lambda a: (a > 0) - (a < 0)),
        ("Relu", ("ReLU", ov.relu), "RELU", lambda a: max(a, 0)),
        ("Identity", "", "", lambda a: a),
    ):
        op(onnx, ir, tflite, 1, right, follows=onnx != "Identity")
    op("Neg", ("Negative", ov.negative), ("NEG", (42, {})), 1, lambda a: -a, SIGNED + FLOATS)
    op("BitwiseAnd", ("BitwiseAnd", ov.bitwise_and), "", 2, lambda a, b: a & b, INTEGERS)
    op("BitwiseOr", ("BitwiseOr", ov.bitwise_or), "", 2, lambda a, b: a | b, INTEGERS)
    op("BitwiseXor", ("BitwiseXor", ov.bitwise_xor), "BITWISE_XOR", 2, lambda a, b: a ^ b, INTEGERS)
    op("BitwiseNot", ("BitwiseNot", ov.bitwise_not), "", 1, lambda a: ~a, SIGNED)
    op("BitShift", "", "", 2, lambda a, b: a << b, UNSIGNED, variant="left", attributes={"direction": "LEFT"}, takes=shift)
    op("BitShift", "", "", 2, lambda a, b: a >> b, UNSIGNED, variant="right", attributes={"direction": "RIGHT"}, takes=shift)
    op("", ("BitwiseLeftShift", ov.bitwise_left_shift), "", 2, lambda a, b: a << b, INTEGERS, takes=shift)
    op("", ("BitwiseRightShift", ov.bitwise_right_shift), "RIGHT_SHIFT", 2, lambda a, b: a >> b, INTEGERS, takes=shift)
    for onnx, ir, tflite, right in (
        ("Floor", ("Floor", ov.floor), "FLOOR", lambda a: float(math.floor(a))), ("Ceil", ("Ceiling", ov.ceiling), "CEIL", lambda a: float(math.ceil(a))),
        ("Round", ("Round", lambda x: ov.round(x, "half_to_even")), "ROUND", lambda a: float(round(a))), ("Sqrt", ("Sqrt", ov.sqrt), "SQRT", math.sqrt),
        ("Exp", ("Exp", ov.exp), "EXP", math.exp), ("Log", ("Log", ov.log), "LOG", math.log), ("Sigmoid", ("Sigmoid", ov.sigmoid), "LOGISTIC", lambda a: 1 / (1 + math.exp(-a))),
        ("Tanh", ("Tanh", ov.tanh), "TANH", math.tanh), ("Sin", ("Sin", ov.sin), "SIN", math.sin), ("Erf", ("Erf", ov.erf), "", math.erf), ("Reciprocal", "", "", lambda a: 1 / a),
    ):
        op(onnx, ir, tflite, 1, right, FLOATS, takes=positive)

    # Along the columns of a row.
    reduce = lambda made: lambda x: made(x, np.array([1]), False)
    for onnx, ir, tflite, right in (
        ("ReduceSum", ("ReduceSum", reduce(ov.reduce_sum)), "SUM", lambda *row: sum(row)), ("ReduceMax", ("ReduceMax", reduce(ov.reduce_max)), "REDUCE_MAX", lambda *row: max(row)),
        ("ReduceMin", ("ReduceMin", reduce(ov.reduce_min)), "REDUCE_MIN", lambda *row: min(row)), ("ReduceProd", ("ReduceProd", reduce(ov.reduce_prod)), "REDUCE_PROD", lambda *row: math.prod(row)),
        ("ReduceL1", ("ReduceL1", reduce(ov.reduce_l1)), "", lambda *row: sum(map(abs, row))), ("ReduceSumSquare", "", "", lambda *row: sum(one * one for one in row)),
        ("ReduceMean", ("ReduceMean", reduce(ov.reduce_mean)), "MEAN", lambda *row: sum(row) // 3 if isinstance(row[0], int) else sum(row) / 3),
    ):
        takes = (lambda row, info: isinstance(row[0], float) or sum(row) % 3 == 0) if onnx == "ReduceMean" else Value.takes
        op(onnx, ir, (tflite, (27, {0: ("<?", False)})), 3, right, width=True, constants=[np.array([1])], attributes={"keepdims": 0}, takes=takes)
    op("CumSum", ("CumSum", lambda x: ov.cum_sum(x, np.int64(1))), ("CUMSUM", (102, {})), 3, lambda *row: [row[0], row[0] + row[1], sum(row)], width=True, constants=[np.array(1)])
    op("ArgMax", "", ("ARG_MAX", (40, {0: ("<b", 4)})), 3, lambda *row: row.index(max(row)), width=True, to="int64", attributes={"keepdims": 0, "axis": 1}, constants=["tflite", np.array(1)])
    op("ArgMin", "", ("ARG_MIN", (57, {0: ("<b", 4)})), 3, lambda *row: row.index(min(row)), width=True, to="int64", attributes={"keepdims": 0, "axis": 1}, constants=["tflite", np.array(1)])
    op("TopK", ("TopK", lambda x: openvino.opset11.topk(x, np.int64(2), 1, "max", "value")), "TOPK_V2", 3, lambda *row: sorted(row, reverse=True)[:2], width=True, constants=[np.array([2])])
    op("MatMul", ("MatMul", lambda x: ov.matmul(x, ov.convert_like(ov.constant(np.array([[1, 0], [2, 1], [3, 0]], np.int32)), x), False, False)), "", 3, lambda *row: [row[0] + 2 * row[1] + 3 * row[2], row[1]], width=True, constants=["typed", np.array([[1, 0], [2, 1], [3, 0]])])

    # Those that only move.
    op("Concat", ("Concat", lambda a, b: ov.concat([ov.unsqueeze(a, np.int64(1)), ov.unsqueeze(b, np.int64(1))], 1)), "", 2, lambda a, b: [a, b], attributes={"axis": 1}, variant="columns")
    op("Gather", ("Gather", lambda x: ov.gather(x, np.array([2, 0]), np.int64(1))), ("GATHER", (23, {0: ("<i", 1)})), 3, lambda *row: [row[2], row[0]], width=True, constants=[np.array([2, 0])], attributes={"axis": 1})
    op("ScatterND", ("ScatterNDUpdate", lambda x: ov.scatter_nd_update(x, np.array([[0]]), ov.gather(x, np.array([0]), np.int64(0)))), "", 3, lambda *row: list(row), width=True, variant="first row")
    op("Pad", ("Pad", lambda x: ov.pad(x, np.array([0, 1]), np.array([0, 0]), "constant", ov.convert_like(ov.constant(np.int32(0)), x))), "", 3, lambda *row: [0, *row], width=True, constants=[np.array([0, 1, 0, 0])])
    op("Tile", ("Tile", lambda x: ov.tile(x, np.array([1, 2]))), "TILE", 3, lambda *row: list(row * 2), width=True, constants=[np.array([1, 2])])
    op("Where", ("Select", lambda a, b: ov.select(ov.constant(np.array([True])), a, b)), "", 2, lambda a, b: a, variant="true")

    # Numbers of other datatypes.
    converts = {"bool": lambda a: a != 0, "float32": float, "float64": float}
    for to in [*NUMBERS, "bool"]:
        low, high = (0, 1) if to == "bool" else (-math.inf, math.inf) if "float" in to else (np.iinfo(to).min, np.iinfo(to).max)
        takes = lambda row, info, low=low, high=high, to=to: isinstance(row[0], int) or to == "bool" or low <= math.trunc(row[0]) <= high
        op("Cast", (f"Convert", lambda x, to=to: ov.convert(x, "boolean" if to == "bool" else to.replace("uint", "u").replace("int", "i").replace("float", "f"))), ("CAST", (37, {})), 1, converts.get(to, int), [kind for kind in NUMBERS if kind != to], to=to, variant=f"to {to}", attributes={"to": to}, takes=takes, follows=False)
    op("OneHot", ("OneHot", lambda x: ov.one_hot(x, np.int64(3), np.float32(1), np.float32(0), 1)), "", 1, lambda a: [float(a == 0), float(a == 1), float(a == 2)], ["int64", "int32"], to="float32", takes=lambda row, info: row[0] >= 0, constants=[np.array(3), np.array([0, 1], np.float32)], is_comparison=True)
    op("Range", ("Range", lambda a: ov.range(a, ov.add(a, np.array(3, a.get_element_type().to_dtype())), np.array(1, a.get_element_type().to_dtype()), a.get_element_type().to_dtype().type)), "", 1, lambda a: [a, a + 1, a + 2], ["int64", "int32"], follows=False, scalars=1, takes=lambda row, info: row[0] + 3 <= info.max)
    return made
