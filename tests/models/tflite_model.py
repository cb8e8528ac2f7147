"""A quantized TensorFlow Lite classifier, written without TensorFlow: which colour is a photograph?

input u8[1,4,4,3] -> scores u8[1,4]: nothing, red, green, blue. As those made for Coral's accelerators, it takes pixels as they
are, and its scores are 256ths. Written by the tables of TensorFlow Lite's schema.fbs as a FlatBuffer, parents before children.
"""
import struct

FLOAT, INT32, UINT8, INT64 = "<f", "<i", "<B", "<q"

# TensorType and BuiltinOperator of schema.fbs.
TYPE_INT32, TYPE_UINT8 = 2, 3
AVERAGE_POOL_2D, FULLY_CONNECTED, RESHAPE, SOFTMAX = 1, 9, 22, 25
# The union BuiltinOptions.
POOL_OPTIONS, FULLY_CONNECTED_OPTIONS, SOFTMAX_OPTIONS, RESHAPE_OPTIONS = 5, 8, 9, 17
PADDING_VALID = 1


class Table(dict):
    """Field number -> value: a (format, number), a Table, a Vector, or bytes, which become a string."""


class Vector:
    """Elements of one format, or tables where there is none."""

    def __init__(self, form, values):
        self.form, self.values = form, list(values)


def flatbuffer(root, identifier):
    out = bytearray(4) + identifier
    struct.pack_into("<I", out, 0, put(out, root))
    return bytes(out)


def align(out, size, offset=0):
    while (len(out) + offset) % size:
        out.append(0)


def put(out, value):
    """Appends a value and those below it; its position."""
    if isinstance(value, Table):
        return put_table(out, value)
    if isinstance(value, bytes):
        align(out, 4)
        position = len(out)
        out += struct.pack("<I", len(value)) + value + b"\0"
        return position
    if value.form is None:
        align(out, 4)
        position = len(out)
        out += struct.pack("<I", len(value.values)) + bytes(4 * len(value.values))
        for number, child in enumerate(value.values):
            refer(out, position + 4 + 4 * number, child)
        return position
    align(out, struct.calcsize(value.form), offset=4)
    align(out, 4)
    position = len(out)
    out += struct.pack("<I", len(value.values)) + b"".join(struct.pack(value.form, item) for item in value.values)
    return position


def put_table(out, table):
    count = max(table) + 1 if table else 0
    align(out, 2)
    vtable = len(out)
    out += bytes(4 + 2 * count)
    align(out, 8)
    position = len(out)
    out += struct.pack("<i", position - vtable)
    children = []
    for field, value in sorted(table.items()):
        form, number = value if isinstance(value, tuple) else ("<I", 0)
        align(out, struct.calcsize(form))
        struct.pack_into("<H", out, vtable + 4 + 2 * field, len(out) - position)
        if not isinstance(value, tuple):
            children.append((len(out), value))
        out += struct.pack(form, number)
    struct.pack_into("<HH", out, vtable, 4 + 2 * count, len(out) - position)
    for slot, child in children:
        refer(out, slot, child)
    return position


def refer(out, slot, child):
    struct.pack_into("<I", out, slot, put(out, child) - slot)


def tensor(name, shape, kind, buffer, scale=None, zero_point=0):
    fields = Table({0: Vector(INT32, shape), 1: (UINT8, kind), 2: ("<I", buffer), 3: name.encode()})
    if scale is not None:
        fields[4] = Table({2: Vector(FLOAT, [scale]), 3: Vector(INT64, [zero_point])})
    return fields


def operator(opcode, inputs, outputs, options_kind, options):
    return Table({
        0: ("<I", opcode), 1: Vector(INT32, inputs), 2: Vector(INT32, outputs), 3: (UINT8, options_kind), 4: options})


def operator_code(code):
    return Table({0: ("<b", code), 2: ("<i", 1), 3: ("<i", code)})


def colours():
    # A colour is twice its own channel minus the others; "nothing" is always 1. In 32nds around 128.
    weights = [128, 128, 128, 192, 96, 96, 96, 192, 96, 96, 96, 192]
    bias = [4096, 0, 0, 0]
    buffers = [b"", bytes(weights), struct.pack("<4i", *bias), struct.pack("<2i", 1, 3)]
    tensors = [
        tensor("pixels", [1, 4, 4, 3], TYPE_UINT8, 0, 1 / 128, 128),
        tensor("mean", [1, 1, 1, 3], TYPE_UINT8, 0, 1 / 128, 128),
        tensor("row_shape", [2], TYPE_INT32, 3),
        tensor("row", [1, 3], TYPE_UINT8, 0, 1 / 128, 128),
        tensor("weights", [4, 3], TYPE_UINT8, 1, 1 / 32, 128),
        tensor("bias", [4], TYPE_INT32, 2, 1 / 4096, 0),
        tensor("logits", [1, 4], TYPE_UINT8, 0, 0.05, 128),
        tensor("scores", [1, 4], TYPE_UINT8, 0, 1 / 256, 0),
    ]
    pool = Table({0: ("<b", PADDING_VALID), 1: (INT32, 1), 2: (INT32, 1), 3: (INT32, 4), 4: (INT32, 4)})
    operators = [
        operator(0, [0], [1], POOL_OPTIONS, pool),
        operator(1, [1, 2], [3], RESHAPE_OPTIONS, Table({0: Vector(INT32, [1, 3])})),
        operator(2, [3, 4, 5], [6], FULLY_CONNECTED_OPTIONS, Table({})),
        operator(3, [6], [7], SOFTMAX_OPTIONS, Table({0: (FLOAT, 1.0)})),
    ]
    graph = Table({
        0: Vector(None, tensors), 1: Vector(INT32, [0]), 2: Vector(INT32, [7]), 3: Vector(None, operators), 4: b"main"})
    codes = [operator_code(code) for code in (AVERAGE_POOL_2D, RESHAPE, FULLY_CONNECTED, SOFTMAX)]
    model = Table({
        0: ("<I", 3), 1: Vector(None, codes), 2: Vector(None, [graph]), 3: b"ledge test models",
        4: Vector(None, [Table({0: Vector(UINT8, data)}) if data else Table({}) for data in buffers])})
    return flatbuffer(model, b"TFL3")


COLOURS_TOML = b"""\
description = "Which colour is a photograph? For the tests of quantized classifiers"

[[output]]
name = "scores"
labels = "labels.txt"

[pipeline.image_classification]
crop = [4, 4]
layout = "NHWC"
top_k = 4

[[golden]]
file = "red.png"
label = "red"
min_score = 0.9
"""

COLOURS_LABELS = b"nothing\nred\ngreen\nblue\n"
