"""One request of a box: a document of a stranger until its signatures are verified."""
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .. import names
from ..certificates import authority
from ..errors import Failure
from . import dsse

INBOX = re.compile(r"[0-9a-f]{32}")
ID = re.compile(r"[0-9a-f]{64}")
SERIAL = re.compile(r"[1-9a-f][0-9a-f]{0,39}")
LONGEST = 16_384
# One for a P-256 key and a name has some 500 bytes. Requests that wait for approval are kept.
CSR_LENGTH_MAX = 4_096
JOIN, RENEW = "join", "renew"
# Names that servers know other machines by, in any case: nginx compares them so.
RESERVED = ("platform", "server", "prometheus")


@dataclass(frozen=True)
class Request:
    """A request whose key has signed it: whoever sent it has the key, and may be anybody."""

    id: str
    kind: str
    box: str
    inbox: str
    join_file: str | None
    audit_key: str | None
    ledge: str | None
    csr: bytes
    keyid: str
    signature: bytes
    signed: bytes

    wants_answer = True

    def is_signed_by_secret(self, public):
        """True if the holder of the join file with this public key has signed it."""
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(self.signature, self.signed)
            return True
        except InvalidSignature:
            return False

    def is_signed_by_certificate(self, certificate):
        public = certificate.public_key()
        try:
            public.verify(self.signature, self.signed, ec.ECDSA(hashes.SHA256()))
            return True
        except (InvalidSignature, TypeError):
            return False

    @property
    def key(self):
        return authority.asked_key(self.csr, self.box)


def parse(content, id_):
    """The request in a file under the name ID_."""
    body, signature = dsse.take_apart(content, dsse.JOIN_REQUEST)
    payload = dsse.read_object(body, "its payload")
    if payload.get("version") != 1:
        raise Failure(f"it has version {dsse.short(payload.get('version'))}, and this platform knows 1")
    kind = payload.get("kind")
    if kind not in (JOIN, RENEW):
        raise Failure(f"its kind is {dsse.short(kind)}, and neither {JOIN} nor {RENEW}")
    name = box_name(text(payload, "box"))
    csr = text(payload, "csr").encode()
    if len(csr) > CSR_LENGTH_MAX:
        raise Failure(f"its certificate request has more than {CSR_LENGTH_MAX} bytes")
    public = authority.asked_key(csr, name)
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise Failure("the key of its certificate request is no P-256 key")
    if id_of(public) != id_:
        raise Failure("it is under the name of another key")
    return Request(
        id_, kind, name, matching(INBOX, payload, "inbox"),
        matching(ID, payload, "join_file") if kind == JOIN else None,
        text(payload, "audit_key", True), text(payload, "ledge", True), csr,
        matching(INBOX if kind == JOIN else SERIAL, signature, "keyid"),
        dsse.decode(text(signature, "sig"), "its signature"), dsse.pae(dsse.JOIN_REQUEST, body))


def id_of(public):
    """By this a request and its answer are called."""
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def box_name(value):
    """A name that a box can have: a device id, a common name, and no other machine's name."""
    names.name(value, "box")
    if len(value) > authority.NAME_LENGTH_MAX:
        raise Failure(f"box {value!r}: {authority.NAME_LENGTH_MAX} characters at most, for its certificate")
    if value.lower() in RESERVED:
        raise Failure(f"box {value!r}: this name belongs to the platform")
    return value


def text(table, key, optional=False):
    value = table.get(key)
    if optional and value is None:
        return None
    if not isinstance(value, str):
        raise Failure(f"its {key} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Failure(f"its {key} is no Unicode text") from None
    return value


def matching(form, table, key):
    value = text(table, key)
    if not form.fullmatch(value):
        raise Failure(f"its {key} is {dsse.short(value)}, which does not have the right form")
    return value
