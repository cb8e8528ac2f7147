"""The list of what a package brings, as CycloneDX 1.5: the crates that are linked into the program, the runtimes and the models of
models.list, with versions, licences, hashes and origins. It has neither a time nor a random number: the same sources make the same list."""
import json
import re
from urllib.parse import quote

from failure import Failure
from licenses import linked, linked_ids

# The libraries inside OpenVINO's wheel, which does not say their versions.
INSIDE = {"openvino": {"oneTBB": "Apache-2.0", "hwloc": "BSD-3-Clause"}}
PROGRAM = "ledge"


def bill_of_materials(checkout, metadata, version, architecture, package, models, publisher=None):
    """The list of PACKAGE with these models. "ledge" and "ledge-slim" have the program, and "ledge" the runtimes."""
    crates = linked(metadata) if package in (PROGRAM, "ledge-slim") else []
    known = checksums(checkout)
    components = [of_crate(crate, known) for crate in crates] + shipped(checkout, models, architecture if package == PROGRAM else None)
    about = {"type": "application" if crates else "data", "bom-ref": PROGRAM, "name": package, "version": version}
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {**about, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components, "dependencies": dependencies(metadata, crates, components)}
    if publisher:
        contact = {"name": publisher.name, "email": publisher.email}
        bom["metadata"]["supplier"] = {"name": publisher.name, "url": [publisher.homepage], "contact": [contact]}
    return (json.dumps(bom, indent=2) + "\n").encode()


def of_crate(crate, checksums):
    name, version = crate["name"], crate["version"]
    found = {
        "type": "library", "bom-ref": purl(crate), "name": name, "version": version,
        "hashes": [{"alg": "SHA-256", "content": checksums[name, version]}],
        "licenses": [{"expression": crate["license"].replace("/", " OR ")}], "purl": purl(crate)}
    if crate["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return found


def purl(crate):
    return f"pkg:cargo/{crate['name']}@{quote(crate['version'])}"


def checksums(checkout):
    """The SHA-256 of each crate's archive by its name and version."""
    lock = (checkout / "Cargo.lock").read_text()
    rows = re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"$', lock, re.MULTILINE)
    return {(name, version): checksum for name, version, checksum in rows}


def dependencies(metadata, crates, components):
    """What each crate uses. The crates of the checkout are the program, which also uses all that is no crate."""
    refs = {crate["id"]: purl(crate) for crate in crates}
    uses = {ref: set() for ref in (PROGRAM, *refs.values())}
    ids = linked_ids(metadata)
    for node in metadata["resolve"]["nodes"]:
        if node["id"] in ids:
            uses[refs.get(node["id"], PROGRAM)] |= {refs[dependency["pkg"]] for dependency in node["deps"] if dependency["pkg"] in refs}
    uses[PROGRAM] |= {component["bom-ref"] for component in components} - set(refs.values())
    return [{"ref": ref, "dependsOn": sorted(uses[ref])} for ref in uses]


def shipped(checkout, models, architecture):
    """The components that cargo does not know. ARCHITECTURE is that of the runtimes, or none."""
    sources = json.loads((checkout / "models" / "sources.json").read_text())
    rows = table((checkout / "packaging" / "THIRD-PARTY.md").read_text())
    found = [
        of_package("pypi", "library", wheel, source["wheels"][architecture.machine]["sha256"], rows)
        for wheel, source in sources["runtimes"].items() if architecture]
    for name in models:
        model = sources["models"][name]
        for registry, packages in (("pypi", model["wheels"]), ("npm", model.get("npm", {}))):
            found += [of_package(registry, "data", package, sha256, rows) for package, sha256 in packages.items()]
        found.append(of_model(name, model))
    # Several models may be made of one package.
    return list({component["bom-ref"]: component for component in found}.values())


def of_package(registry, kind, package, sha256, rows):
    name, version = re.fullmatch("(.+?)(?:==|@)([^@]+)", package).groups()
    if name not in rows or rows[name][0] != version:
        raise Failure(f"THIRD-PARTY.md has no row for {name} {version}")
    reference = f"pkg:{registry}/{quote(name, safe='/')}@{version}"
    inside = [
        {"type": "library", "name": part, "licenses": [{"license": {"id": license}}]}
        for part, license in INSIDE.get(name, {}).items()]
    found = {
        "type": kind, "bom-ref": reference, "name": name, "version": version, "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": [{"license": {"id": rows[name][1]}}], "purl": reference}
    return {**found, "components": inside} if inside else found


def of_model(name, model):
    files = [
        {"type": "file", "name": f"{name}/{path}", "hashes": [{"alg": "SHA-256", "content": sha256}]}
        for path, sha256 in model["built"].items()]
    # A model without packages was trained for Ledge.
    own = {} if model["wheels"] or "npm" in model else {"licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {"type": "machine-learning-model", "bom-ref": f"model/{name}", "name": name, **own, "components": files}


def table(text):
    """The version and the licence of each component from PyPI and npm, by its name there. The text after a ";" is about a part of it."""
    rows = re.findall(r"^\| .*? \| (\S+) \| ([^|;]+?)(?:;[^|]*)? \| (?:PyPI|npm) `(.+?)` \|$", text, re.MULTILINE)
    return {name: (version, license) for version, license, name in rows}
