"""Reads a TensorFlow.js graph model, a JSON file and the file of its weights, without TensorFlow."""
import base64
import collections
import json

import numpy as np

# One operation of the graph: its name, its kind, the names of its inputs, and its attributes as Python values.
Operation = collections.namedtuple("Operation", "name kind inputs attributes")


def attribute(value):
    """An attribute as text, a number or a list of these; datatypes and shapes stay as they are."""
    if "s" in value:
        return base64.b64decode(value["s"]).decode()
    if "i" in value:
        return int(value["i"])
    items = value.get("list", {})
    if "i" in items:
        return [int(item) for item in items["i"]]
    return [base64.b64decode(item).decode() for item in items.get("s", [])]


def weights(manifest, data):
    """{name: array} in the order of the file. Floats are stored with 16 bits and stay so, because nothing is lost by it."""
    arrays, offset = {}, 0
    for entry in manifest:
        stored = np.dtype(entry.get("quantization", {}).get("dtype", entry["dtype"])).newbyteorder("<")
        count = int(np.prod(entry["shape"], dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(data, stored, count, offset).reshape(entry["shape"])
        offset += count * stored.itemsize
    if offset != len(data):
        raise ValueError(f"the weights have {len(data)} bytes and should have {offset}")
    return arrays


def read_graph(topology, data):
    """({name: Operation}, {name: array}) from the contents of the two files."""
    model = json.loads(topology)
    group, = model["weightsManifest"]
    operations = {
        node["name"]: Operation(
            node["name"], node["op"], node.get("input", []),
            {name: attribute(value) for name, value in node.get("attr", {}).items()})
        for node in model["modelTopology"]["node"]}
    return operations, weights(group["weights"], data)
