"""The box's side of joining a platform, and a platform in a folder, for the tests."""
import hashlib
import json
import os
import secrets

import support  # noqa: F401  puts the tool of this checkout on the path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from ledge_platform import files, moments
from ledge_platform.audit.notes import ED25519, KEY_NAME, encode, key_id
from ledge_platform.boxes import dsse
from ledge_platform.certificates import authority
from ledge_platform.errors import Failure
from ledge_platform.site.layout import Layout


class Platform:
    """A platform as `init` makes it, as far as boxes join it."""

    def __init__(self, folder):
        self.layout = Layout(folder)
        self.layout.take({"name": "example", "domain": "platform.example.com"})
        for path in (self.layout.etc, self.layout.repository, self.layout.requests, self.layout.answers,
                     self.layout.questions, self.layout.prometheus):
            path.mkdir(parents=True)
        self.layout.config_file.write_text(self.layout.settings())
        (self.layout.repository / "root.json").write_text('{"signed": {"version": 1}}\n')
        self.stick = folder / "stick"
        self.authority = authority.init(self.layout.ca, self.stick, "example", {}, encrypt=False)
        self.issue_platform()

    def issue_platform(self):
        chain, key = self.authority.issue("platform", again=True)
        files.write(self.layout.platform_certificate, chain)
        files.write(self.layout.platform_key, key, 0o600)

    def put(self, box, content, inbox=None, id_=None):
        """As the web server does: 404 where the inbox is none."""
        folder = self.layout.requests / (inbox or box.address)
        if not folder.is_dir():
            return 404
        (folder / f"{id_ or box.id}.json").write_bytes(content)
        return 201

    def get(self, id_):
        try:
            return json.loads((self.layout.answers / f"{id_}.json").read_bytes())
        except FileNotFoundError:
            return None

    def waiting_files(self):
        return sorted(path for path in self.layout.requests.rglob("*") if not path.is_dir())


def verified(content):
    """The payload of a join file, as a box verifies it: up to the root that the file itself names, whose fingerprint
    people compare."""
    body, signature = dsse.take_apart(content, dsse.JOIN_FILE)
    leaf, issuing = x509.load_pem_x509_certificates(signature["certificate"].encode())
    signed = dsse.pae(dsse.JOIN_FILE, body)
    leaf.public_key().verify(dsse.decode(signature["sig"], "sig"), signed, ec.ECDSA(hashes.SHA256()))
    payload = dsse.read_object(body, "payload")
    root = x509.load_pem_x509_certificate(payload["ca"].encode())
    root.verify_directly_issued_by(root)
    issuing.verify_directly_issued_by(root)
    leaf.verify_directly_issued_by(issuing)
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    names = [attribute.value for attribute in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != ["platform"] or ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
        raise Failure("not signed by the platform")
    return payload


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


def id_of(key):
    return hashlib.sha256(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def csr_of(name, key):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def audit_key_of(name):
    public = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    full = KEY_NAME + name
    return f"{full}+{key_id(full, ED25519 + public).hex()}+{encode(ED25519 + public)}"


class Box:
    """A box: its key, its certificate, and the inbox that it puts requests into."""

    def __init__(self, platform, join_file, name=None):
        self.platform, self.content = platform, join_file.read_bytes()
        self.invitation = verified(self.content)
        self.name = name or self.invitation["box"]
        self.address, self.own = self.invitation["inbox"], secrets.token_hex(16)
        self.key = self.pending = new_key()
        self.certificate, self.audit_key = None, audit_key_of(self.name)

    @property
    def id(self):
        return id_of(self.pending)

    @property
    def serial(self):
        return f"{x509.load_pem_x509_certificate(self.certificate).serial_number:x}"

    def copy(self):
        """A clone: an image of the same disk."""
        clone = Box.__new__(Box)
        clone.__dict__.update(self.__dict__)
        return clone

    def payload(self, kind, /, **changes):
        return {
            "version": 1, "kind": kind, "box": self.name, "csr": csr_of(self.name, self.pending), "inbox": self.own,
            "join_file": hashlib.sha256(self.content).hexdigest() if kind == "join" else None,
            "audit_key": self.audit_key, "at": moments.text(moments.now()), "ledge": "0.1.0", **changes,
        }

    def join_request(self, seed=None, keyid=None, **changes):
        seed = seed or dsse.decode(self.invitation["secret"], "secret")
        body = json.dumps(self.payload("join", **changes)).encode()
        return dsse.seal(dsse.JOIN_REQUEST, body, ed25519.Ed25519PrivateKey.from_private_bytes(seed).sign,
                         keyid=keyid or self.invitation["inbox"])

    def renew_request(self, key=None, keyid=None, **changes):
        key = key or self.key
        body = json.dumps(self.payload("renew", **changes)).encode()
        return dsse.seal(dsse.JOIN_REQUEST, body, lambda signed: key.sign(signed, ec.ECDSA(hashes.SHA256())),
                         keyid=keyid or self.serial)

    def ask(self):
        """Puts its request. Where it has a certificate, it asks for the next one."""
        if self.certificate is None:
            return self.platform.put(self, self.join_request())
        if self.pending is self.key:
            self.pending, self.own = new_key(), secrets.token_hex(16)
        return self.platform.put(self, self.renew_request())

    def take(self):
        """Reads its answer, and takes what it brings into use. Returns the state."""
        answer = self.platform.get(self.id)
        if answer is None:
            return None
        if answer["state"] == "issued":
            leaf, issuing = x509.load_pem_x509_certificates(answer["certificate"].encode())
            root = x509.load_pem_x509_certificate(self.invitation["ca"].encode())
            issuing.verify_directly_issued_by(root)
            leaf.verify_directly_issued_by(issuing)
            assert leaf.public_key() == self.pending.public_key(), "a certificate for another key"
            assert leaf.subject.rfc4514_string() == f"CN={self.name}", leaf.subject
            self.certificate, self.key, self.address = answer["certificate"].encode(), self.pending, self.own
        return answer["state"]

    @property
    def until(self):
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc


def fill(folder, count, content=b"{}"):
    """A hostile box: many files."""
    for number in range(count):
        with open(folder / f"{number:064x}.json", "wb") as file:
            file.write(content)


def age(path, seconds):
    """Makes a file so much older."""
    then = moments.now().timestamp() - seconds
    os.utime(path, (then, then))
