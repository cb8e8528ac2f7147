#!/usr/bin/env python3
"""For maintainers: writes requirements/NAME.txt with the hash of every wheel that fetch.py may install for NAME.

usage: PYTHONPATH=.ledge/tools/pip benches/peers/pin.py NAME REQUIREMENT...
       e.g.  pin.py mosec mosec==0.9.8 onnxruntime==1.31.1

The peers are measured on x86-64 Linux under one of the Pythons in MINORS, so that is what is pinned; what differs between
them gets an environment marker. pip judges a dependency's markers by the interpreter that runs it, so each of them must
be on the PATH. The wheels themselves are not downloaded.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MINORS = (11, 12, 13)
GLIBC = range(17, 37)


def resolve(requirements, minor):
    """{name==version: sha256} of what Python 3.MINOR would install."""
    platforms = [part for glibc in GLIBC for part in ("--platform", f"manylinux_2_{glibc}_x86_64")]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        subprocess.run(
            [f"python3.{minor}", "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
             "--only-binary=:all:", "--target", scratch, "--python-version", f"3.{minor}", *platforms,
             "--platform", "manylinux2014_x86_64", "--report", str(report), *requirements], check=True)
        installs = json.loads(report.read_text())["install"]
    return {f"{i['metadata']['name'].lower()}=={i['metadata']['version']}": i["download_info"]["archive_info"]["hashes"]["sha256"]
            for i in installs}


def main(name, *requirements):
    resolved = {minor: resolve(requirements, minor) for minor in MINORS}
    lines = [f"# Written by `benches/peers/pin.py {name} {' '.join(requirements)}`: do not edit by hand."]
    for pin in sorted(set().union(*resolved.values())):
        minors = [minor for minor in MINORS if pin in resolved[minor]]
        marker = " or ".join(f'python_version == "3.{minor}"' for minor in minors)
        marker = "" if len(minors) == len(MINORS) else f" ; {marker}"
        hashes = sorted({resolved[minor][pin] for minor in minors})
        lines.append(f"{pin}{marker}" + "".join(f" \\\n    --hash=sha256:{value}" for value in hashes))
    Path(__file__).with_name("requirements").joinpath(f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
