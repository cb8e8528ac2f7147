"""Reads the tensors of a PyTorch file in the old (pre-zip) format, without PyTorch and without running code from the file.

A pickle can name any Python function to be called on load. This reader knows the three names that a plain state dict
needs and refuses every other, so a tampered file can at worst fail to load.

The file is a row of pickles (magic number, protocol, machine, tensors, storage keys) and then the storages' raw bytes.
"""
import collections
import pickle

import numpy as np

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class Storage:
    def __init__(self, dtype, length):
        self.dtype, self.length, self.data = dtype, length, None


class View:
    """A tensor: a strided look at a storage whose bytes come later in the file."""

    def __init__(self, storage, offset, shape, strides, *_gradient_settings):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self):
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        if min(self.offset, *self.strides, 0) < 0 or 0 in self.shape or last >= self.storage.length:
            raise ValueError(f"a tensor of shape {self.shape} reaches beyond its storage")
        strides = [stride * self.storage.dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(self.storage.data[self.offset:], self.shape, strides)


class StateDictUnpickler(pickle.Unpickler):
    ALLOWED = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): View,
        **{("torch", name): dtype for name, dtype in STORAGES.items()},
    }

    def __init__(self, file):
        super().__init__(file)
        self.storages = {}

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which no plain state dict needs")
        return self.ALLOWED[module, name]

    def persistent_load(self, reference):
        kind, dtype, key, _device, length, view = reference
        if kind != "storage" or view is not None:
            raise pickle.UnpicklingError(f"unknown reference {reference!r}")
        return self.storages.setdefault(key, Storage(dtype, length))


def read_state_dict(file):
    """{name: numpy array} of a binary file object."""
    if StateDictUnpickler(file).load() != MAGIC_NUMBER or StateDictUnpickler(file).load() != PROTOCOL:
        raise ValueError("not a PyTorch file of the old format")
    StateDictUnpickler(file).load()  # the sizes of C types on the machine that wrote it
    tensors = StateDictUnpickler(file)
    views = tensors.load()
    for key in StateDictUnpickler(file).load():
        storage = tensors.storages[key]
        if int.from_bytes(file.read(8), "little") != storage.length:
            raise ValueError(f"storage {key} has another length than its tensors say")
        storage.data = np.frombuffer(file.read(storage.length * storage.dtype.itemsize), storage.dtype)
    return {name: view.array() for name, view in views.items()}
