#!/usr/bin/env python3
"""Makes the model's folder by the recipe of coco_detector, for pictures of 512 x 512 pixels.

usage: build.py FOLDER NPM_PACKAGE      (an empty folder; `make setup MODELS=coco_detector_512` calls this)
"""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "coco_detector"))

from recipe import write_folder  # noqa: E402

SIDE = 512

if __name__ == "__main__":
    folder, package = sys.argv[1:]
    write_folder(folder, package, SIDE, HERE)
