"""Reads safetensors: the length of a JSON header, the header, and the bytes of all tensors."""
import json

import numpy as np

TYPES = {"F32": np.float32, "I64": np.int64}


def read_tensors(content):
    """The tensors of a file's content, by name."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }
