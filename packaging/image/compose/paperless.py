#!/usr/bin/env python3
"""The post-consume script of Paperless-ngx: has Ledge read each new document, and keeps the fields that it found as a note."""
import json
import mimetypes
import os
from urllib.request import Request, urlopen

LEDGE = os.environ.get("LEDGE_URL", "http://127.0.0.1:8000")
PAPERLESS = os.environ.get("PAPERLESS_URL", "http://127.0.0.1:8010")
TOKEN = os.environ.get("LEDGE_PAPERLESS_TOKEN")
TIMEOUT_S = 300


def main():
    path = os.environ["DOCUMENT_SOURCE_PATH"]
    # A value of the XML of an invoice may be on no page, and then has no text.
    note = "\n".join(f"{name}: {field.get('text', field['value'])}" for name, field in read(path)["fields"].items())
    print(note or "Ledge found no fields")
    if note and TOKEN:
        post(f"{PAPERLESS}/api/documents/{os.environ['DOCUMENT_ID']}/notes/", json.dumps({"note": note}).encode(), {
            "Content-Type": "application/json", "Authorization": f"Token {TOKEN}"})


def read(path):
    kind = mimetypes.guess_type(path)[0] or "application/pdf"
    with open(path, "rb") as file:
        return json.loads(post(f"{LEDGE}/v2/models/document_reader/infer", file.read(), {"Content-Type": kind}))["document"]


def post(url, body, headers):
    with urlopen(Request(url, body, headers), timeout=TIMEOUT_S) as answer:
        return answer.read()


if __name__ == "__main__":
    main()
