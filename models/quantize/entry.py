"""The model's folder as Ledge serves it: 1/model.onnx, model.toml, labels, a golden input and the report. All or nothing."""
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from progress import Failure

DATATYPES = {"float32": "FP32", "float16": "FP16", "float64": "FP64", "int64": "INT64", "int32": "INT32", "int16": "INT16",
             "int8": "INT8", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL"}
# Golden requests are JSON: of a model with larger tensors none is written.
LARGEST_GOLDEN = 20_000
# A golden photograph must score this share of what it scored here, for processors round differently.
GOLDEN_SHARE = 0.5


def check_free(output, replace):
    """Fails before any work is done if the folder could not be written in the end."""
    if output.exists() and not replace:
        raise Failure(f"{output} is there already: --replace replaces it, another --output leaves it alone")
    if output.exists() and not (output / "report.json").is_file():
        raise Failure(f"{output} was not written by this tool (it has no report.json), so --replace does not touch it")
    output.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def new_folder(output):
    """A folder to fill, beside OUTPUT, that takes its name when the block ends well and vanishes when it does not.

    It waits one level deeper than models do, in a folder whose name begins with a dot, so a daemon that looks at the
    repository meanwhile takes it for no model.
    """
    scratch = Path(tempfile.mkdtemp(prefix=".quantize-", dir=output.parent))
    try:
        new = scratch / "new"
        new.mkdir()
        yield new
        for path in sorted(new.rglob("*")):
            if path.is_file():
                sync(path)
        if output.exists():
            os.rename(output, scratch / "old")
        os.rename(new, output)
        sync(output.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync(path):
    """Waits until the disk has it: a power cut must not leave a model of zeros."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fill(folder, options, samples, models, ports, judged, class_names):
    """Writes all but the report. MODELS: the int8 file in each runtime that takes it; JUDGED: the outputs that were compared."""
    if samples.preparation:
        golden = golden_photograph(folder, options, samples, models, judged, class_names)
    else:
        golden = golden_request(folder, samples, models, ports)
    if class_names:
        (folder / "labels.txt").write_text("".join(f"{name}\n" for name in class_names))
    (folder / "model.toml").write_text(model_toml(options, samples, ports, judged, class_names, golden))


def model_toml(options, samples, ports, judged, class_names, golden):
    lines = [f"description = {quoted(options.description or f'{options.output.name}, int8')}"]
    lines += [f"license = {quoted(options.license)}"] if options.license else []
    lines += ['release = "1.0.0"', 'runtime = "auto"']
    if class_names and len(judged) == 1:
        lines += ["", "[[output]]", f"name = {quoted(judged[0])}", 'labels = "labels.txt"']
    if samples.preparation and len(judged) == 1:
        preparation = samples.preparation
        lines += ["", "[pipeline.image_classification]", f"input = {quoted(ports[0].name)}", f"output = {quoted(judged[0])}"]
        lines += [f"resize_shorter_side = {preparation.resize_short}"] if preparation.resize_short else []
        lines += [
            f"crop = [{preparation.size[0]}, {preparation.size[1]}]", f"mean = {decimals(preparation.mean)}",
            f"std = {decimals(preparation.std)}", f'layout = "{preparation.layout.upper()}"',
            f'color = "{preparation.color.upper()}"',
            f'activation = "{"softmax" if options.softmax else "none"}"']
    for entry in golden:
        lines += ["", "[[golden]]", *(f"{key} = {value}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def decimals(values):
    """TOML floats need a point: 127 is written 127.0."""
    return "[" + ", ".join(repr(round(float(value), 9)) for value in values) + "]"


def quoted(text):
    """A TOML basic string; JSON's escapes are among TOML's."""
    return json.dumps(text, ensure_ascii=False)


def golden_photograph(folder, options, samples, models, judged, class_names):
    """The held-out photograph whose class the int8 model is most certain of in every runtime; Ledge checks it at each load."""
    if not (class_names and options.softmax and len(judged) == 1):
        return []
    best = None
    for sample in samples.held_out:
        feed = sample.feed()
        rows = [softmax(model.run(feed)[judged[0]]) for model in models]
        index, share = int(rows[0].argmax()), float(min(row.max() for row in rows))
        named = index < len(class_names) and class_names[index]
        if named and all(row.argmax() == index for row in rows) and (best is None or share > best[0]):
            best = share, class_names[index], sample
    if best is None:
        return []
    share, name, sample = best
    file = f"golden/photograph{Path(sample.name).suffix.lower()}"
    (folder / "golden").mkdir()
    (folder / file).write_bytes(sample.photograph)
    return [{"file": quoted(file), "label": quoted(name), "min_score": f"{share * GOLDEN_SHARE:.2f}"}]


def softmax(scores):
    scores = np.ravel(scores).astype(np.float64)
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def golden_request(folder, samples, models, ports):
    """The first held-out sample as a request with the int8 model's answer; Ledge checks it at each load."""
    feed = samples.held_out[0].feed()
    answer, *others = (model.run(feed) for model in models)
    tensors = [*feed.values(), *answer.values()]
    if sum(tensor.size for tensor in tensors) > LARGEST_GOLDEN or any(tensor.dtype.name not in DATATYPES for tensor in tensors):
        return []
    (folder / "golden").mkdir()
    inputs, outputs = [entry(port.name, feed[port.name]) for port in ports], [entry(*pair) for pair in answer.items()]
    content = {"inputs": inputs, "outputs": outputs}
    (folder / "golden" / "request.json").write_text(json.dumps(content) + "\n")
    # Runtimes and processors round int8 sums differently by a step or two of 256, and later layers may widen that.
    reach = max(largest(tensor) for tensor in answer.values())
    apart = max((largest(answer[name] - other[name]) for other in others for name in answer), default=0.0)
    return [{"file": quoted("golden/request.json"), "tolerance": f"{max(0.02 * reach, 4 * apart, 1e-6):.6f}"}]


def largest(tensor):
    return float(np.abs(tensor.astype(np.float64)).max(initial=0))


def entry(name, tensor):
    return {"name": name, "shape": list(tensor.shape), "datatype": DATATYPES[tensor.dtype.name], "data": np.ravel(tensor).tolist()}
