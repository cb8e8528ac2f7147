#!/usr/bin/env python3
"""Collects the receipts and invoices that `measure.py` asks Ledge for, with their truth, from public repositories.

    python3 benches/documents/collect.py ../documents
    python3 benches/documents/collect.py ../documents --sources ../clones --set facturx --set azure

Each repository of sources.tsv is fetched from GitHub at its pinned commit into FOLDER/.clones, 2 GB in all. With --sources
nothing is fetched: the clones are those in that folder, `<owner>+<name>`, bare or not. A set is made again from nothing. Then the documents
are divided into the parts "look" and "hidden" (split.py). README.md says what the sets are, and who may look at what.

The sets facturx and world need `make setup-documents`; the others need Python 3.9 and git. Many documents are of real people and companies and
have no licence: keep them where they are, and publish none of them.
"""
import argparse
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[0] = str(Path(__file__).resolve().parents[1])  # the packages `documents` and `peers`

from documents import split  # noqa: E402
from documents.clones import Clones  # noqa: E402
from documents.collection import LOOK, TRUTH, Collection  # noqa: E402
from documents.rows import read_rows, write_rows  # noqa: E402
from documents.sets import SETS  # noqa: E402
from peers import fetch  # noqa: E402


NEED_PACKAGES = {"facturx", "world"}


def parse():
    parser = argparse.ArgumentParser(prog="benches/documents/collect.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the sets are written")
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="a folder with clones, instead of fetching them")
    parser.add_argument("--set", action="append", dest="sets", choices=SETS, metavar="NAME",
                        help=f"only this set; may be given several times: {' '.join(SETS)}")
    return parser.parse_args()


def run_with_packages():
    """Runs this command again with the Python of `make setup-documents`, which has pymupdf."""
    python = fetch.python_of("documents")
    if not python:
        sys.exit("the sets facturx and world need pymupdf: run `make setup-documents` first, or choose other sets with --set")
    if Path(sys.executable) != python:
        os.execv(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]])


def collect(folder, name, clones):
    collection = Collection(folder, name, clones)
    for source in SETS[name]:
        source(collection)
    collection.save()
    left_out = "".join(f", left out: {count} {reason}" for reason, count in collection.left_out.items())
    print(f"  {name}: {len(collection.rows)} documents{left_out}", flush=True)


def divide(folder):
    """Writes the parts into the sets that are in the folder."""
    sets = {name: read_rows(folder / name / TRUTH) for name in SETS if (folder / name / TRUTH).exists()}
    not_joined = split.divide(sets)
    for name, rows in sets.items():
        write_rows(folder / name / TRUTH, rows)
        write_rows(folder / name / LOOK, [row for row in rows if row["part"] == split.LOOK])
    every = [row["part"] for rows in sets.values() for row in rows]
    print(f"  all: {len(every)} documents, {every.count(split.LOOK)} to look at, {every.count(split.HIDDEN)} hidden")
    for one, other in not_joined:
        print(f"  {one} and {other} seem to be one issuer, but same_issuer.tsv does not say so")


def main():
    options = parse()
    names = options.sets or list(SETS)
    if NEED_PACKAGES & set(names):
        run_with_packages()
    options.folder.mkdir(parents=True, exist_ok=True)
    clones = Clones(options.sources or options.folder / ".clones", may_fetch=options.sources is None)
    try:
        for name in names:
            collect(options.folder, name, clones)
    finally:
        clones.close()
    divide(options.folder)


if __name__ == "__main__":
    main()
