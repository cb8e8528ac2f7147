"""Tensors and requests of the Open Inference Protocol, in JSON and in binary."""
import json
import struct

FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}


def count(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def packed(datatype, values):
    """The elements in binary, little-endian."""
    if datatype == "BYTES":
        texts = [value if isinstance(value, bytes) else value.encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if datatype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def tensor(name, datatype, shape, data, **more):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


def document(inputs, **more):
    """A request in JSON."""
    return json.dumps({**more, "inputs": inputs}).encode()


def binary(inputs, **more):
    """A request with all INPUTS, as `tensor` makes them, in binary: its bytes and the length of its JSON."""
    heads, tail = [], b""
    for port in inputs:
        data = packed(port["datatype"], port["data"])
        head = {name: value for name, value in port.items() if name != "data"}
        heads.append({**head, "parameters": {"binary_data_size": len(data)}})
        tail += data
    head = json.dumps({**more, "inputs": heads}).encode()
    return head + tail, len(head)
