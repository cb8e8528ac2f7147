"""A set of documents on the disk: `files/` with the documents, `truth.jsonl` with a line of JSON for each, and what their source has besides."""
import json
import re
import shutil
from collections import Counter
from pathlib import Path

from documents import readings
from documents.rows import write_rows

TRUTH, LOOK = "truth.jsonl", "look.jsonl"
MADE = ("files", "boxes", "pages", "xml", TRUTH, LOOK)  # what a set has of ours


class Collection:
    """A set that is being written. It replaces an earlier one of its name."""

    def __init__(self, folder, name, clones):
        self.name, self.clones, self.rows, self.left_out = name, clones, [], Counter()
        self.folder = Path(folder) / name
        for made in MADE:
            path = self.folder / made
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        (self.folder / "files").mkdir(parents=True, exist_ok=True)

    def put(self, name, content, kind="files"):
        """Writes a file to `files/`, or to the folder of another KIND. Returns its path in the set."""
        folder = self.folder / kind
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return f"{kind}/{name}"

    def put_json(self, name, value, kind):
        return self.put(name, json.dumps(value, ensure_ascii=False).encode(), kind)

    def add(self, file, repository, path, truth, *, issuer, region, kind, beside="", **more):
        """Adds the row of a document that was put. BESIDE names where the truth is from, if that is another file."""
        row = {"file": f"files/{file}", "issuer": issuer or "unknown", "region": region, "kind": kind, "truth": filled(truth),
               "source": f"{repository}:{path}" + (f" + {beside}" if beside else ""), "licence": self.clones.licence(repository)}
        row.update(filled(more))
        self.rows.append(row)

    def leave_out(self, reason):
        self.left_out[reason] += 1

    def save(self):
        readings.complete(self.name, self.rows)
        write_rows(self.folder / TRUTH, sorted(self.rows, key=lambda row: row["file"]))


def filled(values):
    """Without the keys that have no value. An empty dictionary is one: a source may have a record without a word."""
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def file_name(path):
    """The last part of a path, with signs that every file system takes."""
    return re.sub(r"[^\w.-]+", "_", path.rsplit("/", 1)[-1])
