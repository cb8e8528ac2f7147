#!/usr/bin/env python3
"""Measures the range of every tensor between the layers and writes calibration.json. Run once; its result is committed.

usage: calibrate.py WEIGHTS_WHEEL      (the wheel that models/sources.json names for this model)

It needs packages that `make setup` does not install; in an environment of its own:
    pip install onnx==1.23.2 onnxruntime==1.31.1 scikit-image==0.26.0 scikit-learn==1.9.1 pillow==13.0.0

The pictures are the photographs inside scikit-image and scikit-learn: six seeded crops of each, between 45 % and 100 % of
the shorter side, every other one mirrored on average. A range is the smallest and the largest value over all crops.
"""
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import skimage
import sklearn
from onnx import helper
from PIL import Image

from build import read_layers
from graphs import float_model
from network import SIDE

HERE = Path(__file__).parent
PHOTOGRAPHS = [
    *(Path(skimage.__file__).parent / "data" / name for name in (
        "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg",
        "ihc.png", "retina.jpg", "color.png", "camera.png", "coins.png", "page.png", "brick.png", "grass.png",
        "gravel.png", "moon.png")),
    *(Path(sklearn.__file__).parent / "datasets" / "images" / name for name in ("china.jpg", "flower.jpg")),
]
CROPS_OF_EACH = 6
SEED = 0


def crops():
    random = np.random.default_rng(SEED)
    for path in PHOTOGRAPHS:
        photograph = Image.open(path).convert("RGB")
        for _ in range(CROPS_OF_EACH):
            side = int(min(photograph.size) * random.uniform(0.45, 1.0))
            left, top = (int(random.integers(0, length - side + 1)) for length in photograph.size)
            crop = photograph.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            if random.random() < 0.5:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            yield (np.asarray(crop, np.float32).transpose(2, 0, 1)[None] - 127) / 128


def main(weights_wheel):
    layers = read_layers(weights_wheel)
    model = float_model(layers)
    tensors = [layer.y for layer in layers if layer.y != "logits"]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in tensors)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    ranges = {"input": [-127 / 128, 1.0]}  # every value that a pixel can take
    for crop in crops():
        for name, values in zip(tensors, session.run(tensors, {"input": crop})):
            low, high = ranges.get(name, [np.inf, -np.inf])
            ranges[name] = [min(low, float(values.min())), max(high, float(values.max()))]

    rows = ",\n".join(f'  "{name}": [{low:.9g}, {high:.9g}]' for name, (low, high) in ranges.items())
    (HERE / "calibration.json").write_text("{\n" + rows + "\n}\n")
    print(f"{len(ranges)} ranges over {len(PHOTOGRAPHS) * CROPS_OF_EACH} crops")


if __name__ == "__main__":
    main(*sys.argv[1:])
