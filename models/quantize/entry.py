"""The model's folder as Ledge serves it: 1/model.onnx, model.toml, labels, a golden input and the report. All or nothing."""
import json
import math
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from progress import Failure

DATATYPES = {"float32": "FP32", "float16": "FP16", "float64": "FP64", "int64": "INT64", "int32": "INT32", "int16": "INT16",
             "int8": "INT8", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL"}
# A golden request holds so many samples where the model takes several at once: one may miss what the others show.
GOLDEN_SAMPLES = 8
# Golden requests are JSON: of a model with larger tensors, in numbers, none is written.
LARGEST_GOLDEN = 1_000_000
# A golden photograph must score this share of what it scored here, for processors round differently.
GOLDEN_SHARE = 0.5
# An answer may be so many times as far from the float model's as the int8 model's is here, and never needs to be nearer than
# the least. Runtimes and processors that compute right differ by a tenth of that distance, those that do not by several times.
GOLDEN_REACH, LEAST_REACH = 1.5, 0.01


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


def fill(folder, options, samples, original, models, ports, judged, class_names):
    """Writes all but the report, and returns notes for it.

    ORIGINAL: the float model; MODELS: the int8 file in each runtime that takes it; JUDGED: the outputs that were compared.
    """
    (folder / "golden").mkdir()
    if samples.preparation and len(judged) == 1:
        golden = golden_photograph(folder, options, samples, original, models, judged[0], class_names)
    else:
        golden = golden_request(folder, samples, original, models, ports, judged)
    notes = [] if golden else ["its tensors are too large for a golden request: Ledge cannot check the model's answers at a load"]
    if not golden:
        (folder / "golden").rmdir()
    if class_names:
        (folder / "labels.txt").write_text("".join(f"{name}\n" for name in class_names))
    (folder / "model.toml").write_text(model_toml(options, samples, ports, judged, class_names, golden))
    return notes


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


def golden_photograph(folder, options, samples, original, models, output, class_names):
    """A held-out photograph with the float model's answer, which Ledge compares at each load.

    With names of classes it is the one whose class the int8 model is most certain of in every runtime.
    """
    best, label = samples.held_out[0], {}
    if class_names and options.softmax:
        share = -1.0
        for sample in samples.held_out:
            feed = sample.feed()
            rows = [softmax(model.run(feed)[output]) for model in models]
            index, least = int(rows[0].argmax()), float(min(row.max() for row in rows))
            named = index < len(class_names) and class_names[index]
            if named and all(row.argmax() == index for row in rows) and least > share:
                best, share = sample, least
                label = {"label": quoted(named), "min_score": f"{share * GOLDEN_SHARE:.2f}"}
    feed = best.feed()
    expected, got = original.run(feed)[output], [model.run(feed)[output] for model in models]
    file = f"golden/photograph{Path(best.name).suffix.lower()}"
    (folder / file).write_bytes(best.photograph)
    write_json(folder / "golden" / "outputs.json", {"outputs": [entry(output, expected)]})
    outputs = {"outputs": quoted("golden/outputs.json")}
    return [{"file": quoted(file), **label, **outputs, **limit([expected], [[answer] for answer in got])}]


def softmax(scores):
    scores = np.ravel(scores).astype(np.float64)
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def golden_request(folder, samples, original, models, ports, judged):
    """Held-out samples as a request with the float model's answer, which Ledge compares at each load."""
    for count in (GOLDEN_SAMPLES, 1):
        feeds = [sample.feed() for sample in samples.held_out[:count]]
        feed = {port.name: np.concatenate([one[port.name] for one in feeds]) for port in ports}
        try:
            expected, *got = ([model.run(feed)[name] for name in judged] for model in (original, *models))
        except Exception:  # a model that takes one sample only says so in its runtime's words
            if count == 1:
                raise
            continue
        if sum(tensor.size for tensor in [*feed.values(), *expected]) > LARGEST_GOLDEN:
            continue
        if any(tensor.dtype.name not in DATATYPES for tensor in [*feed.values(), *expected]):
            return []
        content = {"inputs": [entry(*pair) for pair in feed.items()], "outputs": list(map(entry, judged, expected))}
        write_json(folder / "golden" / "request.json", content)
        return [{"file": quoted("golden/request.json"), **limit(expected, got)}]
    return []


def limit(expected, answers):
    """The key for how far an answer may be from EXPECTED, by how far ANSWERS are: of each model a tensor for each output."""
    errors = [relative_error(*pair) for answer in answers for pair in zip(expected, answer)]
    if all(map(math.isfinite, errors)):
        return {"max_relative_error": f"{max(GOLDEN_REACH * max(errors), LEAST_REACH):.4f}"}
    # An expected output of zeros has no size that an error could be a share of.
    apart = max(largest(got.astype(np.float64) - want) for answer in answers for want, got in zip(expected, answer))
    return {"tolerance": f"{max(GOLDEN_REACH * apart, 1e-6):.6f}"}


def relative_error(expected, got):
    """As Ledge computes it: the Euclidean distance as a share of the norm of EXPECTED."""
    expected, got = (np.ravel(tensor).astype(np.float64) for tensor in (expected, got))
    distance, norm = np.linalg.norm(got - expected), np.linalg.norm(expected)
    return float(distance / norm) if norm else (0.0 if distance == 0 else math.inf)


def write_json(path, content):
    path.write_text(json.dumps(content) + "\n")


def largest(tensor):
    return float(np.abs(tensor.astype(np.float64)).max(initial=0))


def entry(name, tensor):
    # A float as the shortest decimals that give it back: those of its double are twice as long.
    values = np.ravel(tensor)
    data = [float(str(value)) for value in values] if tensor.dtype.kind == "f" else values.tolist()
    return {"name": name, "shape": list(tensor.shape), "datatype": DATATYPES[tensor.dtype.name], "data": data}
