"""Documents whose truth was read off the page, or taken from a test of the source. Their lines are in `truths/`.

The truths of the part "hidden" are in a file of their own, so that who writes rules of the reader does not read them by accident.
"""
import io
import json
import zipfile
from pathlib import Path

from documents.rows import read_rows

TRUTHS = Path(__file__).resolve().parents[1] / "truths"
PAGES = ("page=", "pages=")  # "#pages=1-3" behind a path
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
        file, _, part = path.partition("#")
        if part and not part.startswith(PAGES):
            continue  # in an archive
        content = collection.clones.open(repository).read(file)
        if content is None:
            collection.leave_out("not in the clone")
            continue
        collection.put(row["file"], with_pages(content, part.partition("=")[2]) if part else content)
        collection.add(repository=repository, path=path, **{"by": READ_BY, **row})


def with_pages(content, pages):
    """A PDF with only these of its pages: "2", or "1-3". The others are of other documents."""
    import pymupdf  # of `make setup-documents`
    first, _, last = pages.partition("-")
    with pymupdf.open(stream=content) as document:
        document.select(range(int(first) - 1, int(last or first)))
        return document.tobytes()


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
