"""Documents whose truth was read off the page, or taken from a test of the source. Their lines are in `truths/`.

The truths of the part "hidden" are in a file of their own, so that who writes rules of the reader does not read them by accident.
"""
import io
import json
import zipfile
from pathlib import Path

from documents.collection import read_rows

TRUTHS = Path(__file__).resolve().parents[1] / "truths"
READ_BY = "looked"  # without another word: read off the picture


def rows_of(name):
    """The lines of a set, each with the file of the repository that it is about."""
    for file in sorted(TRUTHS.glob("*.jsonl")):
        for row in read_rows(file):
            if row.pop("set") == name:
                repository, _, path = row.pop("source").partition(":")
                yield repository, path, row


def collect(collection):
    for repository, path, row in rows_of(collection.name):
        if "#" in path:
            continue  # in an archive
        content = collection.clones.open(repository).read(path)
        if content is None:
            collection.leave_out("not in the clone")
            continue
        collection.put(row["file"], content)
        collection.add(repository=repository, path=path, **{"by": READ_BY, **row})


def azure_training(collection):
    """Five invoices in an archive, with the text of an OCR and labels, whose words the source's own form readers were trained with."""
    for repository, path, row in rows_of(collection.name):
        archive, _, member = path.partition("#")
        if not member:
            continue
        with zipfile.ZipFile(io.BytesIO(collection.clones.open(repository).read(archive))) as files:
            labels = json.loads(files.read(f"{member}.labels.json"))["labels"]
            collection.put(row["file"], files.read(member))
            boxes = collection.put(f"{row['file']}.ocr.json", files.read(f"{member}.ocr.json"), "boxes")
        raw = {label["label"]: " ".join(part["text"] for part in label["value"]) for label in labels}
        collection.add(repository=repository, path=path, boxes=boxes, raw=raw, **row)
