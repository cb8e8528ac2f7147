"""The user's samples: read from photographs, arrays or a CSV file, labelled if they are, and split in two.

One part calibrates, the other judges. Who goes where depends on a hash of each sample's content and on nothing else: not on
names, not on the order of a folder. Equal samples count once, so none is on both sides.
"""
import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import photographs
from progress import Failure

# Calibration on fewer photographs than this is filled up with random crops of them.
ENOUGH_CROPS = 100


@dataclass
class Sample:
    """FEED gives {input name: array with a batch of 1}; TRUTH is the index of the right class or None."""
    name: str
    digest: str
    feed: Callable
    truth: int | str | None = None
    photograph: bytes | None = field(default=None, repr=False)


@dataclass
class Samples:
    kind: str
    calibration: list
    held_out: list
    preparation: photographs.Preparation | None
    notes: list

    def calibration_feeds(self, ports):
        """The feeds to calibrate on; few photographs are joined by seeded crops of them."""
        feeds = [sample.feed() for sample in self.calibration]
        if self.preparation and len(feeds) < ENOUGH_CROPS:
            random, port = np.random.default_rng(0), ports[0]
            for index in range(ENOUGH_CROPS - len(feeds)):
                sample = self.calibration[index % len(self.calibration)]
                feeds.append({port.name: self.preparation.tensor(self.preparation.crop(sample.photograph, random), port.dtype)})
        return feeds


def read(options, ports, class_names, classes):
    """All samples, split. CLASSES: how many the model tells apart, None if unknown."""
    source = options.samples
    if not source.exists():
        raise Failure(f"{source}: no such file or folder")
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    suffixes = {path.suffix.lower() for path in files}
    if suffixes & photographs.SUFFIXES:
        if len(ports) != 1:
            raise Failure(f"photographs are for models with one input; this one has {', '.join(port.name for port in ports)}")
        kind, preparation = "photographs", photographs.preparation(options, ports[0])
        found = [photograph(path, source, preparation, ports[0]) for path in files if path.suffix.lower() in photographs.SUFFIXES]
    elif suffixes & {".npy", ".npz"}:
        kind, preparation = "arrays", None
        found = [sample for path in files if path.suffix.lower() in (".npy", ".npz") for sample in arrays(path, source, ports)]
    else:
        kind, preparation = "rows", None
        tables = [path for path in files if path.suffix.lower() == ".csv" and path.name != "labels.csv"]
        if not tables:
            raise Failure(f"{source} holds no photographs (.jpg, .png, .webp), no .npy or .npz files and no .csv file")
        found = [sample for path in tables for sample in rows(path, ports)]
    unique = list({sample.digest: sample for sample in found}.values())
    notes = [f"{len(found) - len(unique)} samples are copies of others and were left out"] if len(unique) < len(found) else []
    notes += label(unique, options, class_names, classes)
    return split(kind, unique, preparation, options.calibration_samples, notes)


def split(kind, samples, preparation, most, notes):
    if len(samples) < 4:
        raise Failure(
            f"{len(samples)} samples: at least 4 are needed, some to calibrate on and others to judge by; 200 and more are better")
    samples.sort(key=lambda sample: sample.digest)
    count = min(len(samples) // 2, most)
    return Samples(kind, samples[:count], samples[count:], preparation, notes)


def digest(*parts):
    result = hashlib.sha256()
    for part in parts:
        result.update(part)
    return result.hexdigest()


def relative(path, source):
    return str(path.relative_to(source)) if source.is_dir() else path.name


def photograph(path, source, preparation, port):
    content, name = path.read_bytes(), relative(path, source)

    def feed():
        try:
            return {port.name: preparation.tensor(preparation.whole(content), port.dtype)}
        except Failure as failure:
            raise Failure(f"{path} {failure}") from failure

    return Sample(name, digest(content), feed, photograph=content)


def arrays(path, source, ports):
    """The samples of one .npy or .npz file: one, or many along the first dimension."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    columns = {ports[0].name: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    truths = columns.pop("label", columns.pop("labels", None))
    missing = [port.name for port in ports if port.name not in columns]
    if missing:
        raise Failure(f"{path} has no array named {', '.join(missing)}; the model's inputs are {', '.join(p.name for p in ports)}")
    batches = {port.name: batch(columns[port.name], port, path) for port in ports}
    counts = {len(values) for values in batches.values()}
    if len(counts) != 1:
        raise Failure(f"{path}: its arrays hold different numbers of samples: {sorted(counts)}")
    count, = counts
    if truths is not None and np.size(truths) != count:
        raise Failure(f"{path}: {np.size(truths)} labels for {count} samples")
    for index in range(count):
        feed = {name: np.ascontiguousarray(values[index:index + 1]) for name, values in batches.items()}
        truth = None if truths is None else int(np.ravel(truths)[index])
        name = relative(path, source) + (f"#{index}" if count > 1 else "")
        yield Sample(name, digest(*(feed[port.name].tobytes() for port in ports)), lambda feed=feed: feed, truth)


def batch(values, port, path):
    """VALUES with a leading batch dimension and the input's datatype, checked against its shape."""
    if values.ndim == len(port.shape) - 1:
        values = values[None]
    wanted = port.shape[1:]
    if values.ndim != len(port.shape) or any(fixed not in (None, dim) for fixed, dim in zip(wanted, values.shape[1:])):
        raise Failure(f"{path} has shape {list(values.shape)}; {port.name} of the model takes {photographs.show(port.shape)}")
    if not np.can_cast(values.dtype, port.dtype, "same_kind") and not (values.dtype.kind in "iu" and port.dtype.kind in "iu"):
        raise Failure(f"{path} holds {values.dtype}; {port.name} of the model takes {port.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise Failure(f"{path} holds values that are not finite")
    return values.astype(port.dtype, copy=False)


def rows(path, ports):
    """One sample for each line; a first line of names is recognised, and its column `label` is the truth."""
    if len(ports) != 1:
        raise Failure(f"a CSV file is for models with one input; this one has {', '.join(port.name for port in ports)}")
    with open(path, newline="") as file:
        lines = [line for line in csv.reader(file) if line]
    header = lines.pop(0) if lines and not all(map(is_number, lines[0])) else []
    at = header.index("label") if "label" in header else None
    for number, line in enumerate(lines, start=2 if header else 1):
        truth = line.pop(at) if at is not None and at < len(line) else None
        if not line or not all(map(is_number, line)):
            raise Failure(f"{path} line {number}: expected numbers only (and a column named `label`, if labels are there)")
        values = batch(np.array([[float(cell) for cell in line]]), ports[0], f"{path} line {number}")
        # The number of the line is no part of the digest: the order of a file must not matter.
        yield Sample(f"line {number}", digest(values.tobytes()), lambda values=values: {ports[0].name: values}, truth)


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def label(samples, options, class_names, classes):
    """Gives samples their truth as an index; returns notes. Labels come with the samples, from a file, or from folders."""
    file = options.labels or (options.samples / "labels.csv" if options.samples.is_dir() else None)
    if file and (file.exists() or options.labels):
        with open(file, newline="") as lines:
            known = {line[0]: line[1].strip() for line in csv.reader(lines) if len(line) >= 2}
        for sample in samples:
            sample.truth = known.get(sample.name, sample.truth)
    elif all("/" in sample.name and sample.truth is None for sample in samples):
        for sample in samples:
            sample.truth = sample.name.split("/")[0]
    labelled = [sample for sample in samples if sample.truth is not None]
    words = sorted({str(sample.truth) for sample in labelled})
    notes = []
    index = {name: number for number, name in reversed(list(enumerate(class_names)))}
    if any(not word.isdigit() and word not in index for word in words):
        if class_names:
            odd = next(word for word in words if not word.isdigit() and word not in index)
            raise Failure(f"label {odd!r} is not in {options.class_names}")
        if len(words) != classes:
            for sample in samples:
                sample.truth = None
            return [
                f"the samples come in {len(words)} groups or labels, the model has {classes or 'an unknown number of'} classes: "
                "not taken for labels. --class-names tells which name is which class."]
        index = {word: number for number, word in enumerate(words)}
        notes.append(f"no --class-names: the labels in alphabetical order are taken for classes 0 to {len(words) - 1}")
    for sample in labelled:
        word = str(sample.truth)
        sample.truth = index[word] if word in index else int(word)
    if labelled and len(labelled) < len(samples):
        notes.append(f"{len(samples) - len(labelled)} of {len(samples)} samples have no label; accuracy is counted on the others")
    return notes
