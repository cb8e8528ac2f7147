"""Check a certificate of erasure without Ledge: python3 certificate.py CERTIFICATE KEY [JOIN_KEY=VALUE]

CERTIFICATE is the file of `ledge features erase --certificate`, KEY the verifier key of the box (`ledge audit key`),
received from the box itself. Needs the package `cryptography`, and nothing of Ledge. Prints what was erased; ends with
an error when the certificate is not valid.
"""

import base64
import hashlib
import json
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def leaf(record: bytes) -> bytes:
    """The hash of a record in the tree (RFC 6962)."""
    return hashlib.sha256(b"\x00" + record).digest()


def root_of(index: int, size: int, node: bytes, hashes: list[bytes]) -> bytes:
    """The root of a tree of `size` records by the inclusion proof of one (RFC 9162, 2.1.3.2)."""
    last = size - 1
    for sibling in hashes:
        assert last > 0, "the proof is too long"
        if index % 2 == 1 or index == last:
            node = hashlib.sha256(b"\x01" + sibling + node).digest()
            while index % 2 == 0 and index != 0:
                index, last = index >> 1, last >> 1
        else:
            node = hashlib.sha256(b"\x01" + node + sibling).digest()
        index, last = index >> 1, last >> 1
    assert last == 0, "the proof is too short"
    return node


def signed_head(note: str, key: str) -> tuple[str, int, bytes]:
    """The origin, size and root hash of a checkpoint (C2SP tlog-checkpoint), after a check of its signature."""
    name, _, public = key.split("+", 2)
    public = base64.b64decode(public, validate=True)
    assert public[0] == 1, "the key is not an Ed25519 key"
    key_id = hashlib.sha256(name.encode() + b"\n" + public).digest()[:4]
    text, signatures = note.split("\n\n", 1)
    for line in signatures.splitlines():
        dash, signer, encoded = line.split(" ")
        signature = base64.b64decode(encoded, validate=True)
        if (dash, signer, signature[:4]) == ("\u2014", name, key_id):
            Ed25519PublicKey.from_public_bytes(public[1:]).verify(signature[4:], (text + "\n").encode())
            break
    else:
        raise AssertionError("the key has not signed the checkpoint")
    origin, size, root = text.split("\n")[:3]
    assert origin.startswith(name + "/"), "the checkpoint is that of another log"
    return origin, int(size), base64.b64decode(root, validate=True)


def check(path: str, key: str, entity: str | None) -> str:
    with open(path, "rb") as file:
        content = file.read()
    certificate = json.loads(content)
    assert certificate["form"] == "ledge.erasure-certificate/1"
    assert certificate["verifier_key"] == key, "the certificate is that of another box"

    # The record is in the log that the box signed.
    head, note = certificate["proof"].split("\n\n", 1)
    form, extra, index, *hashes = head.split("\n")
    assert form == "c2sp.org/tlog-proof@v1"
    record = base64.b64decode(extra.removeprefix("extra "), validate=True)
    index = int(index.removeprefix("index "))
    origin, size, root = signed_head(note, key)
    hashes = [base64.b64decode(text, validate=True) for text in hashes]
    assert root_of(index, size, leaf(record), hashes) == root, "the record is not in the log"

    # The record has the hash of the statement.
    record, statement = json.loads(record), certificate["statement"]
    event = record["event"]
    assert record["seq"] == index and event["action"] == "feature_entity_erased", "it is another record"
    assert event["statement"] == hashlib.sha256(statement.encode()).hexdigest(), "it is another statement"
    statement = json.loads(statement)
    assert statement["form"] == "ledge.erasure/1" and statement["records"] == event["records"]

    # The statement is about the entity.
    if entity is not None:
        name, value = entity.split("=", 1)
        readings = [value] + ([int(value)] if value.isdigit() else [])
        salt = bytes.fromhex(statement["salt"])
        texts = [json.dumps({name: reading}, separators=(",", ":"), ensure_ascii=False) for reading in readings]
        found = [hashlib.sha256(salt + text.encode()).hexdigest() for text in texts]
        assert statement["entity_sha256"] in found, "it is another entity"
    views = ", ".join(f"{view['name']} {view['records']}" for view in statement["feature_views"])
    return f"erased at {record['ts']}: {views}; record {index} of {origin}"


if __name__ == "__main__":
    certificate, key, *rest = sys.argv[1:]
    print(check(certificate, key, rest[0] if rest else None))
