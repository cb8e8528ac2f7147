#!/usr/bin/env python3
"""Prints what the models find on labelled photographs in both runtimes, and the CPU time of one run.

usage: accuracy.py FOLDER MODEL_FOLDER...      e.g.  accuracy.py photographs .ledge/models/coco_detector

FOLDER keeps the downloaded photographs, 65 MB. It needs packages that `make setup` does not install; in an environment of
its own:
    pip install onnxruntime==1.31.1 openvino==2026.4.1 pillow==13.0.0

A photograph is prepared as Ledge prepares it, and the boxes are decoded as by the form `center`, with the thresholds of
model.toml. `found` counts at most as many boxes of a class as the photograph has objects of it, `wrong` counts the others.
Where boxes sit is for people to check: --draw FOLDER writes the photographs with their boxes.
"""
import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
from PIL import ImageDraw

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "quantize"), str(HERE.parent / "setup")]

from labelled import labelled_photographs  # noqa: E402
from photographs import Preparation, decode  # noqa: E402

STRIDE = 4
MIN_SCORE, IOU_THRESHOLD = 0.4, 0.5
ROUNDS = 30
OUTPUTS = ["heat", "extent"]


@dataclass
class Detection:
    label: str
    score: float
    edges: np.ndarray  # left, top, right, bottom in pixels of the photograph

    def iou(self, other):
        both = np.minimum(self.edges[2:], other.edges[2:]) - np.maximum(self.edges[:2], other.edges[:2])
        both = np.maximum(both, 0).prod()
        return both / (self.area() + other.area() - both)

    def area(self):
        return (self.edges[2:] - self.edges[:2]).prod()


class Model:
    """A model in both runtimes, each with one thread."""

    def __init__(self, folder):
        self.name, path = folder.name, str(folder / "1" / "model.onnx")
        self.labels = (folder / "labels.txt").read_text().splitlines()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.side = session.get_inputs()[0].shape[2]
        request = openvino.Core().compile_model(path, "CPU", {
            "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()

        def run_openvino(image):
            results = request.infer([image])
            return [results[name] for name in OUTPUTS]

        self.runtimes = {
            "ONNX Runtime": lambda image: session.run(OUTPUTS, {"image": image}), "OpenVINO": run_openvino}
        self.preparation = Preparation((self.side, self.side), None, (0.0,) * 3, (1.0,) * 3, "nchw", "rgb")

    def detections(self, runtime, content):
        """The boxes of one photograph, best first."""
        width, height = decode(content).size
        heat, extent = self.runtimes[runtime](self.preparation.tensor(self.preparation.whole(content), np.float32))
        scale, found = np.tile([width / self.side, height / self.side], 2), []
        for index, row, column in zip(*np.nonzero(heat[0] >= MIN_SCORE)):
            corner = STRIDE * np.array([column, row, column, row])
            edges = np.clip(corner + [-1, -1, 1, 1] * extent[0, :, row, column], 0, self.side) * scale
            found.append(Detection(self.labels[index], float(heat[0, index, row, column]), edges))
        found.sort(key=lambda detection: -detection.score)

        kept = []
        for detection in found:
            if all(detection.label != better.label or detection.iou(better) <= IOU_THRESHOLD for better in kept):
                kept.append(detection)
        return kept


def found_and_wrong(detections, objects):
    left, found = dict(objects), 0
    for detection in detections:
        if left.get(detection.label):
            left[detection.label] -= 1
            found += 1
    return found, len(detections) - found


def disagreement(ones, others):
    """(largest difference of a score, smallest IoU) between the same objects; None where one lacks an object."""
    if [detection.label for detection in ones] != [detection.label for detection in others]:
        return None
    pairs = list(zip(ones, others))
    return max((abs(a.score - b.score) for a, b in pairs), default=0), min((a.iou(b) for a, b in pairs), default=1)


def draw(content, detections, path):
    picture = decode(content)
    pen = ImageDraw.Draw(picture)
    for detection in detections:
        pen.rectangle(detection.edges.tolist(), outline="red", width=3)
        pen.text(detection.edges[:2].tolist(), f"{detection.label} {detection.score:.2f}", fill="red", font_size=20)
    picture.save(path)


def report(model, photographs, drawings):
    print(f"\n## {model.name}, {model.side} x {model.side}\n\n| photograph | objects | found | wrong | boxes |\n|---|---|---|---|---|")
    totals, differences = np.zeros(3, int), []
    for name, content, objects in photographs:
        ones, others = (model.detections(runtime, content) for runtime in model.runtimes)
        counts = sum(objects.values()), *found_and_wrong(ones, objects)
        totals += counts
        differences.append(disagreement(ones, others))
        boxes = ", ".join(f"{detection.label} {detection.score:.2f}".replace("0.", ".") for detection in ones)
        print("|", name, "|", " | ".join(map(str, counts)), "|", boxes, "|")
        if drawings:
            draw(content, ones, drawings / f"{model.name}-{name.replace(' ', '-')}.png")
    print("| together |", " | ".join(map(str, totals)), "| |")
    agreeing = [difference for difference in differences if difference]
    print(
        f"\nOpenVINO finds the same objects on {len(agreeing)} of {len(differences)} photographs; largest difference of a score "
        f"{max(score for score, _ in agreeing):.1e}, smallest IoU {min(iou for _, iou in agreeing):.5f}.")

    # In turn, so that a busy machine slows both alike.
    image = model.preparation.tensor(model.preparation.whole(photographs[0][1]), np.float32)
    times = {runtime: [] for runtime in model.runtimes}
    for _ in range(ROUNDS):
        for runtime, run in model.runtimes.items():
            started = time.process_time()
            run(image)
            times[runtime].append(1000 * (time.process_time() - started))
    print("CPU of one run, median:", ", ".join(f"{runtime} {statistics.median(values):.1f} ms" for runtime, values in times.items()))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    given = parser.parse_args()
    if given.draw:
        given.draw.mkdir(parents=True, exist_ok=True)
    photographs = list(labelled_photographs(given.folder))
    for folder in given.models:
        report(Model(folder), photographs, given.draw)


if __name__ == "__main__":
    main()
