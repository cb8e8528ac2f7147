#!/usr/bin/env python3
"""Measures how right the fields are that Ledge reads from the receipts and invoices of `collect.py`, and prints tables in Markdown.

    python3 benches/documents/measure.py ../documents --url http://127.0.0.1:8000 --save look.jsonl --wrong
    python3 benches/documents/measure.py ../documents --from look.jsonl --set facturx
    python3 benches/documents/measure.py ../documents --url http://127.0.0.1:8000 --part hidden --save hidden.jsonl

Documents are sent one at a time. Those whose truth is in doubt are counted apart. Of the part "hidden" only totals are printed, together, by set
and by region, and no name or text of a document: rules of the reader that were written after a look at it would be measured on what they were
written for. So leave the saved answers of that part closed, too. compare.py says when an answer is right. Needs Python 3.9 and nothing else.
"""
import argparse
import http.client
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.dont_write_bytecode = True
sys.path[0] = str(Path(__file__).resolve().parents[1])  # the package `documents`

from documents import tables  # noqa: E402
from documents.collection import LOOK, TRUTH  # noqa: E402
from documents.compare import FIELDS, INVENTED, WRONG, confidence_of, value_of  # noqa: E402
from documents.rows import read_rows  # noqa: E402

MODEL = "document_reader"
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".pdf": "application/pdf", ".tiff": "image/tiff", ".webp": "image/webp"}
TIMEOUT_S = 330  # the reader takes 300 s at most
PROGRESS_EVERY = 25
NOT_ABOUT_THE_DOCUMENT = (401, 403, 404, 429, 503)  # no key, no model, or too busy


def parse():
    parser = argparse.ArgumentParser(prog="benches/documents/measure.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where collect.py wrote the sets")
    answers = parser.add_mutually_exclusive_group(required=True)
    answers.add_argument("--url", help="the daemon to ask")
    answers.add_argument("--from", dest="saved", type=Path, metavar="FILE", help="answers that --save kept, instead of asking")
    parser.add_argument("--model", default=MODEL, help=f"the model to ask [{MODEL}]")
    parser.add_argument("--part", choices=("look", "hidden"), default="look", help="the documents to ask about [look]")
    parser.add_argument("--set", action="append", dest="sets", metavar="NAME", help="only this set; may be given several times")
    parser.add_argument("--limit", type=int, metavar="N", help="only N documents, from each set by turns")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="without the first N of them, which an earlier measurement read")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the fields of each answer, a line of JSON for each document")
    parser.add_argument("--lines", action="store_true", help="keep the lines of the pages with them, for fit.py")
    parser.add_argument("--wrong", action="store_true", help="list the wrong answers with the expected ones")
    parser.add_argument("--show", action="store_true", help="print of the part hidden what is printed of the other: it is not hidden after that")
    options = parser.parse_args()
    if options.wrong and not is_open(options):
        parser.error("--wrong prints texts of documents: of the part hidden only with --show")
    return options


def documents_of(options):
    """[(set, row of the truth)] of the chosen documents."""
    found = sorted(path.parent.name for path in options.folder.glob(f"*/{TRUTH}"))
    unknown = sorted(set(options.sets or ()) - set(found))
    if unknown or not found:
        sys.exit(f"{options.folder} lacks {', '.join(unknown) or 'sets'}: collect.py makes them")
    sets = []
    for name in options.sets or found:
        rows = read_rows(options.folder / name / (LOOK if options.part == "look" else TRUTH))
        sets.append([(name, row) for row in rows if row["part"] == options.part and row["truth"]])
    by_turns = (each for turn in itertools.zip_longest(*sets) for each in turn if each)
    last = None if options.limit is None else options.skip + options.limit
    return list(itertools.islice(by_turns, options.skip, last))


class Reader:
    """Asks the daemon, over one connection."""

    def __init__(self, url, model, with_lines=False):
        self.with_lines = with_lines
        address = urlsplit(url)
        connection = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self.connection = connection(address.hostname, address.port, timeout=TIMEOUT_S)
        self.path = f"{address.path.rstrip('/')}/v2/models/{model}/infer"

    def ask(self, file):
        """The status, the fields and the time of an answer. Fields are empty if the document was refused."""
        began = time.monotonic()
        try:
            status, body = self.post(file)
        except (http.client.HTTPException, ConnectionError):  # an idle connection that was closed meanwhile
            self.connection.close()
            status, body = self.post(file)
        if status in NOT_ABOUT_THE_DOCUMENT:
            sys.exit(f"the daemon answers {status}: {body.get('error')}")
        answer = {"status": status, "seconds": round(time.monotonic() - began, 3), "fields": {}, "doubtful": {}}
        answer.update({kind: body.get("document", {}).get(kind, {}) for kind in ("fields", "doubtful")})
        if self.with_lines:
            answer["pages"] = [{"lines": page["lines"]} for page in body.get("document", {}).get("pages", [])]
        if status != 200:
            answer["error"] = body.get("error")
        return answer

    def post(self, file):
        self.connection.request("POST", self.path, file.read_bytes(), {"Content-Type": KINDS[file.suffix.lower()], "Accept": "application/json"})
        response = self.connection.getresponse()
        return response.status, json.loads(response.read() or "{}")


def ask_all(options, documents):
    """{(set, file): answer}. What is answered is saved at once, so an interrupted measurement is not lost."""
    reader, answers = Reader(options.url, options.model, options.lines), {}
    save = open(options.save, "w", encoding="utf-8") if options.save else None
    try:
        for number, (name, row) in enumerate(documents, 1):
            answer = answers[name, row["file"]] = reader.ask(options.folder / name / row["file"])
            if save:
                save.write(json.dumps({"set": name, "file": row["file"], **answer}, ensure_ascii=False) + "\n")
                save.flush()
            if number % PROGRESS_EVERY == 0:
                print(f"  {number} of {len(documents)} documents", file=sys.stderr, flush=True)
    finally:
        if save:
            save.close()
    return answers


def report(options, documents, answers):
    """The lines of the report."""
    asked = [(name, row, answers[name, row["file"]]) for name, row in documents if (name, row["file"]) in answers]
    if not asked:
        yield "There is no answer to these documents."
        return
    judged = [tables.Judged(name, row, answer["fields"], answer.get("doubtful")) for name, row, answer in asked]
    certain, doubtful = ([each for each in judged if each.has_doubt == doubt] for doubt in (False, True))
    yield from overview(options, documents, asked)
    yield from tables.by_field(certain, f"The fields of {len(certain)} documents")
    if doubtful:
        yield from tables.by_field(doubtful, f"The fields of {len(doubtful)} more documents, whose truth is in doubt")
    yield from tables.by_group(certain, "By set", lambda document: document.set)
    yield from tables.by_group(certain, "By region", lambda document: document.row["region"])
    made = tables.curves(certain)
    yield from itertools.chain(tables.summary(made), tables.by_threshold(made), tables.by_coverage(made))
    if is_open(options) and options.wrong:
        yield from wrong_answers(judged)


def is_open(options):
    """True if names and texts of documents may be printed."""
    return options.part != "hidden" or options.show


def overview(options, documents, asked):
    seconds = statistics.median(answer["seconds"] for _, _, answer in asked)
    refused = sum(answer["status"] != 200 for _, _, answer in asked)
    yield f"Part {options.part}: {len(asked)} of {len(documents)} documents answered, {seconds:.2f} s each (median), {refused} refused."
    yield "The fields of refused documents are missing. Documents whose truth is in doubt have a separate table, and are in no other table or curve."
    unknown = [field for field in FIELDS if field != "currency" and not any(field in {**answer["fields"], **answer.get("doubtful", {})} for _, _, answer in asked)]
    if unknown:
        yield f"No answer has these fields, which count as missing: {', '.join(unknown)}."


def wrong_answers(judged):
    """The expected and the read value of each wrong field."""
    yield "\n### Wrong answers\n"
    for document in judged:
        for field, state in document.states.items():
            if state in (WRONG, INVENTED):
                read, sure = value_of(field, document.fields), confidence_of(field, document.fields)
                doubt = f" (in doubt: {'; '.join(document.row['doubt'])})" if document.has_doubt else ""
                expected = shown(document.row["truth"].get(field, "none"))
                yield f"* {document.set}/{document.row['file']}: {field} is {expected}, read {shown(read)} at {sure:.3f}{doubt}"


def shown(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def main():
    options = parse()
    documents = documents_of(options)
    if options.saved:
        answers = {(row["set"], row["file"]): row for row in read_rows(options.saved)}
    else:
        answers = ask_all(options, documents)
    for line in report(options, documents, answers):
        print(line)


if __name__ == "__main__":
    main()
