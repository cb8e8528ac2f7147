"""Signed documents (DSSE, https://github.com/secure-systems-lab/dsse): join files, the requests of boxes,
questions to them and their answers.

The signature is over the bytes of the payload and its type. Only then are the bytes read as JSON, so that no two
readers can understand one signed document differently.
"""
import base64
import binascii
import json

from ..errors import Failure

JOIN_FILE = "application/vnd.ledge.join-file+json"
JOIN_REQUEST = "application/vnd.ledge.join-request+json"
QUESTION = "application/vnd.ledge.question+json"
DIAGNOSIS = "application/vnd.ledge.diagnosis+json"


def pae(kind, body):
    """The bytes that are signed: pre-authentication encoding."""
    kind = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def seal(kind, body, sign, **signature):
    """The bytes of an envelope. `sign` returns the signature of some bytes; SIGNATURE has the key id and the like."""
    signed = {**signature, "sig": encode(sign(pae(kind, body)))}
    return json.dumps({"payloadType": kind, "payload": encode(body), "signatures": [signed]}, indent=1).encode() + b"\n"


def take_apart(content, kind):
    """(the payload's bytes, its only signature as a table) of an envelope of this kind. Nothing is verified yet."""
    envelope = read_object(content, "the file")
    found = envelope.get("payloadType")
    if found != kind:
        raise Failure(f"the file has the type {short(found)}, and not {kind}")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise Failure("the file does not have one signature")
    return decode(envelope.get("payload"), "its payload"), signatures[0]


def read_object(content, what):
    """A JSON object whose keys are all different."""
    try:
        found = json.loads(content, object_pairs_hook=distinct, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Failure(f"{what} is no JSON: {short(error)}") from None
    if not isinstance(found, dict):
        raise Failure(f"{what} is no JSON object")
    return found


def distinct(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def no_number(text):
    raise ValueError(f"{text} is no number")


def encode(content):
    return base64.b64encode(content).decode()


def decode(text, what):
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise Failure(f"{what} is no base64") from None


def short(value):
    """A foreign value for a message."""
    text = str(value)
    return repr(text if len(text) <= 80 else f"{text[:80]}...") if isinstance(value, str) else text[:80]
