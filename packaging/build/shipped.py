"""Adds the components that cargo does not list, the runtimes and the models of models.list, to a list in CycloneDX.

python3 packaging/build/shipped.py FILE
"""
import json
import platform
import re
import sys
from pathlib import Path
from urllib.parse import quote

sys.dont_write_bytecode = True
from failure import Failure  # noqa: E402
from stage import packaged_models  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]
# The libraries inside OpenVINO's wheel, which does not say their versions.
INSIDE = {"openvino": {"oneTBB": "Apache-2.0", "hwloc": "BSD-3-Clause"}}


def main(file):
    sources = json.loads((CHECKOUT / "models" / "sources.json").read_text())
    rows = table((CHECKOUT / "packaging" / "THIRD-PARTY.md").read_text())
    bom = json.loads(file.read_text())
    for wheel, source in sources["runtimes"].items():
        bom["components"].append(of_package("pypi", "library", wheel, source["wheels"][platform.machine()]["sha256"], rows))
    for name in packaged_models(CHECKOUT):
        model = sources["models"][name]
        for registry, packages in (("pypi", model["wheels"]), ("npm", model.get("npm", {}))):
            bom["components"] += [of_package(registry, "data", package, sha256, rows) for package, sha256 in packages.items()]
        bom["components"].append(of_model(name, model))
    file.write_text(json.dumps(bom, indent=2) + "\n")


def of_package(registry, kind, package, sha256, rows):
    name, version = re.fullmatch("(.+?)(?:==|@)([^@]+)", package).groups()
    if name not in rows or rows[name][0] != version:
        raise Failure(f"THIRD-PARTY.md has no row for {name} {version}")
    purl = f"pkg:{registry}/{quote(name, safe='/')}@{version}"
    inside = [
        {"type": "library", "name": part, "licenses": [{"license": {"id": license}}]}
        for part, license in INSIDE.get(name, {}).items()]
    found = {
        "type": kind, "bom-ref": purl, "name": name, "version": version, "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": [{"license": {"id": rows[name][1]}}], "purl": purl}
    return {**found, "components": inside} if inside else found


def of_model(name, model):
    files = [
        {"type": "file", "name": f"{name}/{path}", "hashes": [{"alg": "SHA-256", "content": sha256}]}
        for path, sha256 in model["built"].items()]
    # A model without packages was trained for Ledge.
    own = {} if model["wheels"] or "npm" in model else {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {"type": "machine-learning-model", "name": name, **own, "components": files}


def table(text):
    """The version and the licence of each component from PyPI and npm, by its name there. The text after a ";" is about a part of it."""
    rows = re.findall(r"^\| .*? \| (\S+) \| ([^|;]+?)(?:;[^|]*)? \| (?:PyPI|npm) `(.+?)` \|$", text, re.MULTILINE)
    return {name: (version, license) for version, license, name in rows}


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Failure as failure:
        sys.exit(f"packaging/sbom: {failure}")
