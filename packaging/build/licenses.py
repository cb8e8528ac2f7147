"""The copyright file: every crate that is linked into the program, with its licence and each text that came with it, and the
same for the models. It fails for a crate or a model whose text is missing."""
import fnmatch
import json
import re
import zipfile
from pathlib import Path

from failure import Failure

TEXTS = re.compile(r"^(licen[cs]e|copying|notice|copyright|unlicense)([-._].*)?$", re.IGNORECASE)
MIT = Path(__file__).with_name("mit.txt")
# The texts of vendored code are in deeper folders. Texts of code for tests and documents are left out.
DEPTH = 4
HEAD = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ledge

Files: *
Copyright: the authors of Ledge
License: Apache-2.0
Comment:
 The program has the crates below linked in, each under the licence that stands behind its name. The texts that came with
 them follow, each once, under the names of those it came with. A crate whose licence may be chosen is used under the
 choice that deny.toml allows first. A crate under Apache-2.0 without a text of its own is under the text of /usr/bin/ledge.
 THIRD-PARTY.md tells of the runtimes and the models; the texts of the runtimes are in licenses/ beside this file.
"""


def copyright_file(checkout, metadata, models):
    crates = linked(metadata)
    texts, missing = {}, []

    def add(name, text):
        # Texts that differ only in line ends or indentation count as the same.
        texts.setdefault(" ".join(text.split()), (text, []))[1].append(name)

    add("ledge", (checkout / "LICENSE").read_text())
    for crate in crates:
        name, license = f"{crate['name']} {crate['version']}", crate["license"]
        files = own_texts(crate) or [text for twin in crates if is_twin(crate, twin) for text in own_texts(twin)]
        if not files and "MIT" in re.split(r" OR |/", license or "") and crate["authors"]:
            # It only names the licence, because its text is always the same; the notice is that of its authors.
            notice = ", ".join(re.sub(r" <.*?>", "", author) for author in crate["authors"])
            files = [f"Copyright (c) {notice}\n\n{MIT.read_text()}"]
        for text in files:
            add(name, text)
        # It requires a copy of its text, which is also Ledge's licence text, and the notices of the crate.
        if not license or not files and "Apache-2.0" not in re.split(r" OR |/", license):
            missing.append(f"{name} ({license or 'no licence at all'})")
    for name, text in model_texts(checkout, models):
        add(name, text)
    if missing:
        raise Failure("these crates come without the text of their licence: " + ", ".join(missing))
    lines = [HEAD, " .", " Linked in:"]
    lines += [f" {crate['name']} {crate['version']}: {crate['license']}" for crate in crates]
    for text, names in texts.values():
        body = "\n".join(" " + (line.rstrip() or ".") for line in text.strip().splitlines())
        lines += ["", "License: of " + ", ".join(sorted(set(names))), body]
    return "\n".join(lines) + "\n"


def own_texts(crate):
    return [path.read_text(errors="replace") for path in text_files(Path(crate["manifest_path"]).parent)]


def is_twin(crate, other):
    """True if both come from one repository, authors and licence: then one has the text of both."""
    def facts(crate):
        return [crate[key] for key in ("repository", "authors", "license")]

    return crate["repository"] is not None and facts(crate) == facts(other)


def linked(metadata):
    """The crates that are part of the program: its dependencies, without those of tests and build scripts only."""
    # The crates of this checkout have no other source.
    ids = linked_ids(metadata)
    others = (package for package in metadata["packages"] if package["id"] in ids and package["source"])
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def linked_ids(metadata):
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = {root}, [root]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            name = dependency["pkg"]
            if name not in found and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                found.add(name)
                waiting.append(name)
    return found


def text_files(folder, depth=DEPTH):
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if depth and path.name not in ("tests", "test", "benches", "examples", "docs", "target"):
                yield from text_files(path, depth - 1)
        elif TEXTS.match(path.name) and path.suffix not in (".rs", ".go", ".py", ".c", ".h"):
            yield path


def model_texts(checkout, models):
    """The licences in the Python packages from which the models are made; `make setup` keeps the packages."""
    sources = json.loads((checkout / "models" / "sources.json").read_text())["models"]
    for model in models:
        for requirement in sources[model].get("wheels", {}):
            package, version = requirement.split("==")
            pattern = f"{re.sub('[-.]+', '_', package)}-{version}-*.whl"
            wheels = sorted(path for path in (checkout / ".ledge/downloads").iterdir() if fnmatch.fnmatch(path.name, pattern))
            texts = [text for wheel in wheels for text in wheel_texts(wheel, (checkout / "LICENSE").read_text())]
            if not texts:
                raise Failure(
                    f"the licence of {requirement}, which {model} is made of, is not there: remove .ledge/models/{model} and "
                    "call `make setup`")
            for text in texts:
                yield f"{package} {version} (in the model {model})", text


def wheel_texts(wheel, apache):
    """The texts in a wheel. APACHE stands for that of one which only names the licence."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" in name]
        texts = [name for name in names if TEXTS.match(Path(name).name) or "/licenses/" in name]
        for name in texts:
            yield archive.read(name).decode(errors="replace")
        if not texts:
            metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode(errors="replace")
            if re.search(r"^License(-Expression)?: Apache-2\.0$", metadata, re.MULTILINE):
                yield apache
