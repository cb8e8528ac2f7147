#!/usr/bin/env python3
"""Makes the model's folder: the published TensorFlow.js graph becomes an ONNX model for pictures of 320 x 320 pixels.

usage: build.py FOLDER NPM_PACKAGE      (an empty folder; `make setup` calls this)
"""
import sys
from pathlib import Path

from recipe import write_folder

SIDE = 320

if __name__ == "__main__":
    folder, package = sys.argv[1:]
    write_folder(folder, package, SIDE, Path(__file__).resolve().parent)
