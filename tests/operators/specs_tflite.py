"""Operators of TensorFlow Lite, each with its inputs."""
import sys
from pathlib import Path

import numpy as np

from cases import Spec, boolean, data, f32, i32, i64, numbered, steer

sys.path.append(str(Path(__file__).resolve().parent.parent / "models"))
from tflite_model import INT32, UINT8, Table, Vector, flatbuffer, operator, operator_code  # noqa: E402

TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9, "uint32": 15}
PICTURE = numbered(1, 4, 4, 2)
BYTE, BOOLEAN = "<b", "<?"

# BuiltinOperator, and the table of its options in the union BuiltinOptions.
CODES = {
    "EMBEDDING_LOOKUP": (7, 0), "RESHAPE": (22, 17), "RESIZE_BILINEAR": (23, 15), "PAD": (34, 22), "GATHER": (36, 23),
    "BATCH_TO_SPACE_ND": (37, 24), "SPACE_TO_BATCH_ND": (38, 25), "TRANSPOSE": (39, 26), "MEAN": (40, 27), "SQUEEZE": (43, 30),
    "STRIDED_SLICE": (45, 32), "TOPK_V2": (48, 34), "SPLIT": (49, 35), "ARG_MAX": (56, 40), "PADV2": (60, 43),
    "SLICE": (65, 48), "TRANSPOSE_CONV": (67, 49), "TILE": (69, 51), "EXPAND_DIMS": (70, 52), "SUM": (74, 27),
    "ARG_MIN": (79, 57), "REDUCE_MAX": (82, 27), "REDUCE_MIN": (89, 27), "REDUCE_PROD": (81, 27), "ONE_HOT": (85, 61), "FILL": (94, 68), "FLOOR_MOD": (95, 72), "FLOOR_DIV": (90, 65), "DIV": (42, 29),
    "RANGE": (96, 73), "RESIZE_NEAREST_NEIGHBOR": (97, 74), "MIRROR_PAD": (100, 77), "SPLIT_V": (102, 79),
    "UNIQUE": (103, 80), "REVERSE_V2": (105, 81), "GATHER_ND": (107, 83), "WHERE": (109, 85), "REVERSE_SEQUENCE": (112, 87),
    "SCATTER_ND": (122, 97), "SEGMENT_SUM": (125, 100), "CUMSUM": (128, 102), "BROADCAST_TO": (130, 104), "RFFT2D": (131, 105),
    "BROADCAST_ARGS": (145, 0), "BUCKETIZE": (147, 0), "DYNAMIC_UPDATE_SLICE": (151, 0), "UNSORTED_SEGMENT_SUM": (155, 0),
    "SPARSE_TO_DENSE": (68, 50), "RIGHT_SHIFT": (161, 0), "POW": (78, 56), "CAST": (53, 37), "NON_MAX_SUPPRESSION_V4": (120, 95),
    "NON_MAX_SUPPRESSION_V5": (121, 96), "MATRIX_DIAG": (113, 88), "ADD": (0, 11), "SELECT_V2": (123, 98), "RANDOM_UNIFORM": (148, 0), "MULTINOMIAL": (149, 0),
}


def model(spec, free, fixed=()):
    """The bytes of a model of one operator. Inputs in `free` are those of callers, the others are constants."""
    buffers, tensors, inputs = [Table({})], [], []

    def tensor(name, dtype, shape, buffer, is_variable):
        fields = Table({0: Vector(INT32, [1] * len(shape) if is_variable else shape), 1: (BYTE, TYPES[str(dtype)]), 2: ("<I", buffer), 3: name.encode()})
        if is_variable:
            fields[7] = Vector(INT32, [-1] * len(shape))
        tensors.append(fields)

    for number, made in enumerate(spec.inputs):
        if made.name in free:
            inputs.append(number)
            tensor(made.name, made.value.dtype, list(made.value.shape), 0, (made.name not in fixed) and made.value.ndim > 0)
        else:
            buffers.append(Table({0: Vector(UINT8, made.value.tobytes())}))
            tensor(made.name, made.value.dtype, list(made.value.shape), len(buffers) - 1, False)
    outputs = []
    for number, (dtype, rank) in enumerate(spec.how["outputs"]):
        outputs.append(len(tensors))
        tensor(f"y{number}", np.dtype(dtype), [1] * rank, 0, rank > 0)
    code, kind = CODES[spec.operator]
    node = operator(0, list(range(len(spec.inputs))), outputs, kind, Table(spec.how["options"]))
    if kind == 0:
        del node[3], node[4]
    graph = Table({0: Vector(None, tensors), 1: Vector(INT32, inputs), 2: Vector(INT32, outputs), 3: Vector(None, [node]), 4: b"main"})
    opcode = Table({0: (BYTE, min(code, 127)), 2: (INT32, 1), 3: (INT32, code)})
    return flatbuffer(Table({0: ("<I", 3), 1: Vector(None, [opcode]), 2: Vector(None, [graph]), 3: b"operators", 4: Vector(None, buffers)}), b"TFL3")


def specs():
    made = []

    def op(operator, inputs, outputs, variant="", moves=False, options=None):
        made.append(Spec(operator, inputs, variant, moves, {"outputs": outputs, "options": options or {}}))

    f = np.float32
    x, x24, matrix = data("x", numbered(8)), data("x", numbered(2, 3, 4)), data("x", numbered(3, 4))
    picture = data("x", PICTURE)
    for kind in (i32, i64):
        word = kind.__name__
        op("PAD", [matrix, steer("pads", kind(0, 1, 1, 0).reshape(2, 2))], [(f, 2)], word, moves=True)
        op("PADV2", [matrix, steer("pads", kind(0, 1, 1, 0).reshape(2, 2)), steer("value", np.float32(9001))], [(f, 2)], word, moves=True)
        op("MIRROR_PAD", [matrix, steer("pads", kind(0, 1, 1, 0).reshape(2, 2))], [(f, 2)], word, moves=True, options={0: (BYTE, 0)})
        op("SLICE", [matrix, steer("begin", kind(0, 1)), steer("size", kind(2, 2))], [(f, 2)], word, moves=True)
        op("GATHER", [data("x", numbered(8, 2)), steer("indices", kind(1, 7, 0))], [(f, 2)], word, moves=True)
        op("GATHER_ND", [data("x", numbered(2, 4)), steer("indices", kind(1, 3, 0, 2).reshape(2, 2))], [(f, 1)], word, moves=True)
        op("TILE", [matrix, steer("repeats", kind(1, 2))], [(f, 2)], word, moves=True)
        op("FILL", [steer("shape", kind(2, 4)), data("value", np.float32(5001))], [(f, 2)], word, moves=True)
        op("BROADCAST_TO", [data("x", numbered(1, 4)), steer("shape", kind(2, 4))], [(f, 2)], word, moves=True)
        op("SCATTER_ND", [steer("indices", kind(1, 3).reshape(2, 1)), data("updates", numbered(2)), steer("shape", kind(8))], [(f, 1)], word, moves=True)
        op("FLOOR_DIV", [steer("x", kind(1, 2, 30, 4)), steer("by", kind(1, 2, 3, 4))], [(kind(1).dtype, 1)], word)
        op("FLOOR_MOD", [steer("x", kind(1, 2, 30, 4)), steer("by", kind(1, 2, 3, 4))], [(kind(1).dtype, 1)], word)
        op("REVERSE_SEQUENCE", [data("x", numbered(4, 3)), steer("lengths", kind(1, 2, 4))], [(f, 2)], word, moves=True, options={0: (INT32, 0), 1: (INT32, 1)})
        op("RANGE", [steer("start", kind(0)[0]), steer("limit", kind(8)[0]), steer("delta", kind(1)[0])], [(kind(1).dtype, 1)], word)
    op("GATHER", [data("x", numbered(2, 8)), steer("indices", i32(1, 7, 0))], [(f, 2)], "axis 1", moves=True, options={0: (INT32, 1)})
    op("EMBEDDING_LOOKUP", [steer("indices", i32(1, 7, 0)), data("x", numbered(8, 2))], [(f, 2)], moves=True)
    op("RANGE", [steer("start", np.float32(0)), steer("limit", np.float32(8)), steer("delta", np.float32(1))], [(f, 1)], "float")
    op("STRIDED_SLICE", [matrix, steer("begin", i32(0, 1)), steer("end", i32(2, 3)), steer("strides", i32(1, 1))], [(f, 2)], moves=True)
    op("RESHAPE", [x, steer("shape", i32(2, 4))], [(f, 2)], moves=True)
    op("ONE_HOT", [steer("indices", i32(1, 3, 0)), steer("depth", np.int32(4)), data("on", np.float32(5001)), data("off", np.float32(5002))], [(f, 2)], moves=True, options={0: (INT32, -1)})
    op("ONE_HOT", [steer("indices", i64(1, 3, 0)), steer("depth", np.int32(4)), data("on", np.float32(5001)), data("off", np.float32(5002))], [(f, 2)], "i64", moves=True, options={0: (INT32, -1)})
    op("TOPK_V2", [x, steer("k", np.int32(3))], [(f, 1), (np.int32, 1)], moves=True)
    for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        op(name, [picture, steer("size", i32(8, 8))], [(f, 4)], moves="NEAREST" in name)
    op("SEGMENT_SUM", [x, steer("segments", i32(0, 0, 1, 1, 2, 2, 3, 3))], [(f, 1)])
    op("UNSORTED_SEGMENT_SUM", [x, steer("segments", i32(0, 0, 1, 1, 2, 2, 3, 3)), steer("count", np.int32(4))], [(f, 1)])
    op("BATCH_TO_SPACE_ND", [data("x", numbered(4, 2, 2, 1)), steer("block", i32(2, 2)), steer("crops", i32(0, 0, 0, 0).reshape(2, 2))], [(f, 4)], moves=True)
    op("SPACE_TO_BATCH_ND", [data("x", numbered(1, 4, 4, 1)), steer("block", i32(2, 2)), steer("pads", i32(0, 0, 0, 0).reshape(2, 2))], [(f, 4)], moves=True)
    op("TRANSPOSE", [x24, steer("order", i32(1, 0, 2))], [(f, 3)], moves=True)
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        op(name, [x24, steer("axes", i32(1))], [(f, 3)], options={0: (BOOLEAN, True)})
    for name in ("ARG_MAX", "ARG_MIN"):
        op(name, [matrix, steer("axis", np.int32(1))], [(np.int32, 1)], options={0: (BYTE, 2)})
    op("SPLIT", [steer("axis", np.int32(1)), data("x", numbered(4, 8))], [(f, 2), (f, 2)], moves=True, options={0: (INT32, 2)})
    op("SPLIT_V", [data("x", numbered(4, 8)), steer("sizes", i32(3, 5)), steer("axis", np.int32(1))], [(f, 2), (f, 2)], moves=True, options={0: (INT32, 2)})
    op("EXPAND_DIMS", [x, steer("axis", np.int32(0))], [(f, 2)], moves=True)
    op("REVERSE_V2", [matrix, steer("axis", i32(1))], [(f, 2)], moves=True)
    op("CUMSUM", [matrix, steer("axis", np.int32(1))], [(f, 2)])
    op("TRANSPOSE_CONV", [steer("shape", i32(1, 4, 4, 1)), data("w", numbered(1, 2, 2, 1)), data("x", numbered(1, 2, 2, 1))], [(f, 4)], options={0: (BYTE, 0), 1: (INT32, 2), 2: (INT32, 2)})
    op("DYNAMIC_UPDATE_SLICE", [matrix, data("update", numbered(1, 2, first=2001)), steer("start", i32(0, 1))], [(f, 2)], moves=True)
    op("RFFT2D", [data("x", numbered(4, 8)), steer("length", i32(4, 8))], [(f, 2)])
    op("UNIQUE", [steer("x", i32(3, 1, 2, 1))], [(np.int32, 1), (np.int32, 1)], options={0: (BYTE, 2)})
    op("WHERE", [steer("x", boolean(1, 0, 1))], [(np.int64, 2)])
    op("BROADCAST_ARGS", [steer("x", i32(1, 4)), steer("z", i32(2, 1))], [(np.int32, 1)])
    op("SPARSE_TO_DENSE", [steer("indices", i32(1, 3)), steer("shape", i32(8)), data("values", numbered(2)), data("default", np.float32(5001))], [(f, 1)], moves=True)
    for kind in (np.int32, np.uint8):
        op("RIGHT_SHIFT", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], [(kind, 1)], kind.__name__)
        op("DIV", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], [(kind, 1)], kind.__name__)
    op("POW", [steer("x", i32(1, 2, 30, 4)), steer("by", i32(1, 2, 3, 4))], [(np.int32, 1)])
    op("CAST", [steer("x", f32(1, 2, 3))], [(np.int32, 1)], options={0: (BYTE, 0), 1: (BYTE, 2)})
    op("ADD", [steer("x", i32(1, 2, 30, 4)), steer("by", i32(1, 2, 3, 4))], [(np.int32, 1)])
    boxes = f32(0, 0, 1, 1, 0, .1, 1, 1.1, 0, 10, 1, 11).reshape(3, 4)
    op("NON_MAX_SUPPRESSION_V4", [steer("boxes", boxes), steer("scores", f32(.9, .75, .6)), steer("count", np.int32(3)), steer("iou", np.float32(.5)), steer("score", np.float32(.1))], [(np.int32, 1), (np.int32, 0)])
    op("NON_MAX_SUPPRESSION_V5", [steer("boxes", boxes), steer("scores", f32(.9, .75, .6)), steer("count", np.int32(3)), steer("iou", np.float32(.5)), steer("score", np.float32(.1)), steer("sigma", np.float32(0))], [(np.int32, 1), (f, 1), (np.int32, 0)])
    return made
