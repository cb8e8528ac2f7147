#!/usr/bin/env python3
"""For maintainers: writes a requirements file with the hashes of every wheel that a supported machine could need.

usage: pin.py [--python 3.MINOR] [--without NAME,NAME...] FILE REQUIREMENT...      e.g.  pin.py models/requirements.txt onnx

Asks the package index, without downloading the wheels, what each supported CPython would install on x86-64 Linux with
glibc 2.28 and on aarch64 with 2.35, as the runtimes need it, and turns differences between Python versions into
environment markers. It needs the interpreters python3.9 ... python3.14 on the PATH, because pip judges a dependency's
markers by the interpreter that runs it; instead of a missing one the next lower one is used. Each needs pip 25.1 or newer:
`PYTHONPATH=.ledge/tools/pip pin.py ...`. --python names the oldest supported version if it is not 3.9; --without leaves
packages out.
"""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile

NEWEST_MINOR = 14
GLIBC_MINOR = {"x86_64": 28, "aarch64": 35}


def resolve(requirements, minor, machine):
    """[(name, version, sha256)] of what Python 3.MINOR would install."""
    interpreter = next(filter(None, (shutil.which(f"python3.{m}") for m in range(minor, 8, -1))))
    names = ["manylinux2014", *(f"manylinux_2_{glibc}" for glibc in range(17, GLIBC_MINOR[machine] + 1))]
    platforms = [argument for name in names for argument in ("--platform", f"{name}_{machine}")]
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        subprocess.run(
            [interpreter, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:",
             "--target", scratch, "--python-version", f"3.{minor}", *platforms, "--report", report, *requirements],
            check=True)
        with open(report) as file:
            installs = json.load(file)["install"]
    for install in installs:
        name = install["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        yield name, install["metadata"]["version"], install["download_info"]["archive_info"]["hashes"]["sha256"]


def marker(minors, machine, supported):
    """The environment marker that is true for exactly these of the SUPPORTED versions, on MACHINE or, if None, on all."""
    low, high = min(minors), max(minors)
    if sorted(minors) != list(range(low, high + 1)):
        raise SystemExit(f"versions {sorted(minors)} have a gap: write this marker by hand")
    conditions = [f'python_version >= "3.{low}"'] if low > supported[0] else []
    conditions += [f'python_version < "3.{high + 1}"'] if high < supported[-1] else []
    conditions += [f'platform_machine == "{machine}"'] if machine else []
    return " ; " + " and ".join(conditions) if conditions else ""


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--python", default="3.9")
    parser.add_argument("--without", default="")
    parser.add_argument("path")
    parser.add_argument("requirements", nargs="+")
    given = parser.parse_args()
    supported = range(int(given.python.split(".")[1]), NEWEST_MINOR + 1)
    minors, hashes = collections.defaultdict(set), collections.defaultdict(set)
    for machine in GLIBC_MINOR:
        for minor in supported:
            for name, version, sha256 in resolve(given.requirements, minor, machine):
                if name in given.without.split(","):
                    continue
                minors[name, version, machine].add(minor)
                hashes[name, version, machine].add(sha256)
    first, second = GLIBC_MINOR
    for name, version in {pin[:2] for pin in minors}:
        if minors[name, version, first] == minors[name, version, second]:
            minors[name, version, None] = minors.pop((name, version, first))
            hashes[name, version, None] = hashes[name, version, first] | hashes[name, version, second]
            del minors[name, version, second]
    with open(given.path, "w") as file:
        file.write(f"# Written by `models/setup/pin.py {' '.join(sys.argv[1:])}`: do not edit by hand.\n")
        for pin in sorted((pin for pin in minors if minors[pin]), key=str):
            name, version, machine = pin
            file.write(f"{name}=={version}{marker(minors[pin], machine, supported)}")
            file.writelines(f" \\\n    --hash=sha256:{sha256}" for sha256 in sorted(hashes[pin]))
            file.write("\n")


if __name__ == "__main__":
    main()
