#!/usr/bin/env python3
"""Writes the shipped photograph model in float32, and in int8 with weights of the full range, as it was made once.

usage: efficientnet.py FLOAT.onnx FULL_RANGE.onnx WEIGHTS_WHEEL
"""
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
RECIPE = Path(__file__).resolve().parents[3] / "models" / "efficientnet_lite0"
sys.path.insert(0, str(RECIPE))

from build import read_layers  # noqa: E402
from graphs import float_model, int8_model  # noqa: E402

original, full_range, wheel = sys.argv[1:]
layers = read_layers(wheel)
ranges = json.loads((RECIPE / "calibration.json").read_text())
Path(original).write_bytes(float_model(layers).SerializeToString(deterministic=True))
Path(full_range).write_bytes(int8_model(layers, ranges, full_range=True).SerializeToString(deterministic=True))
