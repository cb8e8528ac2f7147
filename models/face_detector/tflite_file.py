"""Reads what a TensorFlow Lite file says of its graph: operators, tensors and constants.

The file is a FlatBuffer: tables, which refer to their fields by number, and vectors. The numbers are those of TensorFlow's
schema.fbs, and only the needed ones are here.
"""
import collections
import struct

import numpy as np

OPERATORS = {
    0: "Add", 3: "Conv", 4: "DepthwiseConv", 6: "Dequantize", 17: "MaxPool", 19: "Relu", 22: "Reshape",
    23: "ResizeBilinear", 34: "Pad",
}
DATATYPES = {0: "<f4", 1: "<f2", 2: "<i4"}
# {kind: {option: (number of the field, format)}}; the default of each is 0.
STEPS = {"padding": (0, "b"), "stride_w": (1, "i"), "stride_h": (2, "i")}
OPTIONS = {
    "Conv": {**STEPS, "activation": (3, "b")},
    "DepthwiseConv": {**STEPS, "activation": (4, "b")},
    "MaxPool": {**STEPS, "filter_w": (3, "i"), "filter_h": (4, "i"), "activation": (5, "b")},
    "Add": {"activation": (0, "b")},
    "ResizeBilinear": {"align_corners": (2, "b"), "half_pixel_centers": (3, "b")},
}
SAME, NO_ACTIVATION = 0, 0

# INPUTS and OUTPUT are names of tensors; OPTIONS has those of the kind.
Operation = collections.namedtuple("Operation", "kind inputs output options")
# VALUE is an array for a constant, and None for what an operation computes.
Tensor = collections.namedtuple("Tensor", "name shape value")


class Table:
    def __init__(self, data, position):
        self.data, self.position = data, position
        self.fields = position - self.unpack("i", position)

    def unpack(self, form, position):
        return struct.unpack_from(f"<{form}", self.data, position)[0]

    def place(self, number):
        """The position of a field, or None when it is absent and has its default."""
        entry = 4 + 2 * number
        offset = self.unpack("H", self.fields + entry) if entry < self.unpack("H", self.fields) else 0
        return self.position + offset if offset else None

    def number(self, number, form):
        place = self.place(number)
        return self.unpack(form, place) if place else 0

    def target(self, number):
        place = self.place(number)
        return place + self.unpack("I", place) if place else None

    def table(self, number):
        target = self.target(number)
        return Table(self.data, target) if target else None

    def tables(self, number):
        start = self.target(number) + 4
        places = range(start, start + 4 * self.unpack("I", start - 4), 4)
        return [Table(self.data, place + self.unpack("I", place)) for place in places]

    def array(self, number, dtype):
        start = self.target(number)
        return np.frombuffer(self.data, dtype, self.unpack("I", start), start + 4) if start else np.zeros(0, dtype)


def read_graph(data):
    """([Operation], {name: Tensor}) of a file's only graph."""
    model = Table(data, struct.unpack_from("<I", data)[0])
    graph, = model.tables(2)
    buffers = [table.array(0, np.uint8) for table in model.tables(4)]
    # The first field is too short for newer operators, which are only in the second.
    kinds = [OPERATORS[max(code.number(0, "b"), code.number(3, "i"))] for code in model.tables(1)]
    tensors = [tensor(table, buffers) for table in graph.tables(0)]

    def operation(table):
        kind, given = kinds[table.number(0, "I")], table.table(4)
        options = {name: given.number(*field) if given else 0 for name, field in OPTIONS.get(kind, {}).items()}
        inputs, (output,) = ([tensors[index].name for index in table.array(number, "<i4")] for number in (1, 2))
        return Operation(kind, inputs, output, options)

    return [operation(table) for table in graph.tables(3)], {item.name: item for item in tensors}


def tensor(table, buffers):
    shape, content = table.array(0, "<i4").tolist(), buffers[table.number(2, "I")]
    value = content.view(DATATYPES[table.number(1, "b")]).reshape(shape) if content.size else None
    return Tensor(table.array(3, np.uint8).tobytes().decode(), shape, value)
