"""One operator with its inputs, and the hostile numbers for one of them.

Numbers of which an address, a length or a count is made are `steers`; others are `data`, which are all different, so that a
number in the output that is none of them came from elsewhere.
"""
import itertools
import random
from dataclasses import dataclass, field

import numpy as np

DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32", "int16": "INT16",
    "int8": "INT8", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL",
}


@dataclass
class Input:
    name: str
    value: np.ndarray
    is_steer: bool


@dataclass
class Spec:
    """An operator with inputs that it accepts. `moves`: its output has no number that is not among its inputs, or 0."""
    operator: str
    inputs: list
    variant: str = ""
    moves: bool = False
    # What makes a model of it: attributes, or a function.
    how: dict = field(default_factory=dict)

    @property
    def steers(self):
        return [made for made in self.inputs if made is not None and made.is_steer]


def data(name, value):
    return Input(name, np.asarray(value), False)


def steer(name, value):
    return Input(name, np.asarray(value), True)


def f32(*numbers):
    return np.array(numbers, np.float32)


def i64(*numbers):
    return np.array(numbers, np.int64)


def i32(*numbers):
    return np.array(numbers, np.int32)


def boolean(*numbers):
    return np.array(numbers, np.bool_)


def numbered(*shape, dtype=np.float32, first=1001):
    """Numbers that are all different."""
    return np.arange(first, first + int(np.prod(shape)), dtype=dtype).reshape(shape)


def edges(dtype, lengths):
    """Numbers at which something changes: around none, around a length, and around the ends of the datatypes."""
    if dtype.kind == "b":
        return [False, True]
    if dtype.kind == "f":
        return [0.0, -1.0, 0.5, -0.5, 7.0, 1e-30, 1000.0, 2.0**31, -2.0**31, 1e30, -3.4e38, float("nan"), float("inf"), float("-inf")]
    length = max(lengths)
    near = [0, 1, -1, 3, 20, -9, length, length + 1, -length, -length - 1]
    far = [33, 64, 200, -100, 1000, -1000, 2**20, -2**20, 2**31 - 1, -2**31]
    if dtype.itemsize == 8:
        far += [2**31, 2**32 + 1, 2**62, 2**63 - 1, -2**63]
    info = np.iinfo(dtype)
    return [number for number in dict.fromkeys(near + far) if info.min <= number <= info.max]


# The pairs of numbers of a steer with two or more.
PAIRED = [20, -9, 200, -100, 2**31 - 1, -2**31]


def hostile(made, lengths, seed, count=3, resized=True):
    """The hostile values for a steer: each edge at each place, at all places, pairs, other lengths, and random ones."""
    value, dtype = made.value, made.value.dtype
    all_edges = edges(dtype, lengths)
    flat = value.reshape(-1)

    def at(places, numbers):
        changed = flat.copy()
        for place, number in zip(places, numbers):
            changed[place] = number
        return changed.reshape(value.shape)

    for place in sorted({0, flat.size - 1}) if flat.size else []:
        for edge in all_edges:
            yield at([place], [edge])
    if flat.size > 1:
        for edge in all_edges:
            yield np.full_like(value, edge)
        if dtype.kind == "i":
            for pair in itertools.permutations([edge for edge in PAIRED if edge in all_edges], 2):
                yield at([0, flat.size - 1], pair)
    generator = random.Random(seed)
    if dtype.kind != "b":
        for _ in range(count):
            yield at(range(flat.size), [generator.choice(all_edges) for _ in range(flat.size)])
            yield at(range(flat.size), [generator.choice(all_edges[:12]) for _ in range(flat.size)])
    if resized and value.ndim:
        first = value[:1]
        for length in (0, value.shape[0] - 1, value.shape[0] + 1, 64):
            if length >= 0 and length != value.shape[0]:
                yield np.concatenate([value] + [first] * max(0, length - value.shape[0]))[:length]


def as_order(made, value):
    value = np.ascontiguousarray(value, dtype=made.value.dtype)
    return {"name": made.name, "datatype": DATATYPES[str(value.dtype)], "shape": list(value.shape), "data": value.tobytes().hex()}
