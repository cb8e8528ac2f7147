"""The certificate authority of a fleet (RFC 5280): a root whose key is kept offline, and an issuing authority below it.

Everybody trusts the root alone. The issuing authority signs the certificates of boxes, servers and the platform, and
the list of those that are revoked; its key is on the platform's machine, and its certificate has a short life. A new
certificate of it has the same key, so that one list has all that it ever revoked.

    root.pem                     what boxes, nginx and mosquitto trust
    issuing.pem, issuing.key
    root.crl.pem                 of issuing authorities; signed by the root
    crl.pem                      both lists of revoked certificates, its own first, for nginx and mosquitto
    revoked                      changes when certificates are revoked: open connections must end then
    issued/SERIAL.pem            each certificate that was issued
"""
import contextlib
import fcntl
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .. import files, keys, moments, names
from ..errors import Failure

DAY = 86_400
ROOT, ISSUING = "ca-root", "ca-issuing"
LIFETIMES = {"root": 3_650 * DAY, "issuing": 365 * DAY, "certificate": 90 * DAY}
# The list of revoked certificates is signed again by a timer; its readers refuse everything once it has expired.
LIST_LIFETIME = 7 * DAY
# Clocks of boxes differ.
BACKDATED = 300
RSA_BITS_MIN = 2048
NAME_LENGTH_MAX = 64  # RFC 5280, ub-common-name
# What a certificate can be for.
CLIENT, SERVER = "client", "server"
USAGES = {CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH, SERVER: ExtendedKeyUsageOID.SERVER_AUTH}


def init(folder, offline_folder, name, lifetimes, encrypt=True):
    """Makes both authorities, and an empty list of revoked certificates."""
    authority = Authority(folder)
    if authority.root_file.exists() and not authority.unfinished:
        raise Failure(f"{folder} has a certificate authority already")
    key_file = offline_folder / f"{ROOT}.key"
    words = keys.new_passphrase(ROOT) if encrypt else None
    lifetimes = {**LIFETIMES, **lifetimes}
    wanted = {key_file: words, authority.key_file: None}
    root_key, issuing_key = (
        keys.resumed_or_new(file, words, new_key, authority.unfinished) for file, words in wanted.items())
    authority.unfinished.begin(map(keys.identity, (root_key, issuing_key)))
    for (file, words), key in zip(wanted.items(), (root_key, issuing_key)):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.exists():
            files.write(file, keys.pem_of(key, words), 0o600)
    subject = common_name(f"{name} root")
    builder = builder_of(subject, subject, root_key.public_key(), lifetimes["root"])
    root = as_authority(builder, root_key.public_key(), root_key.public_key(), 1).sign(root_key, hashes.SHA256())
    with authority.locked():
        authority.certify_issuing(root, root_key, common_name(f"{name} issuing"), lifetimes["issuing"])
        authority.write_list([])
        files.write(authority.root_file, pem(root))
        authority.unfinished.end()
    return authority


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


class Authority:
    """The folder of the platform's machine."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.root_file, self.file = self.folder / "root.pem", self.folder / "issuing.pem"
        self.key_file, self.issued = self.folder / "issuing.key", self.folder / "issued"
        self.root_list, self.list_file = self.folder / "root.crl.pem", self.folder / "crl.pem"
        self.revoked_file, self.unfinished = self.folder / "revoked", files.Unfinished(self.folder)

    @classmethod
    def open(cls, folder):
        authority = cls(folder)
        if not authority.root_file.is_file():
            raise Failure(f"{folder} has no certificate authority: `ledge-platform ca init` makes one")
        if authority.unfinished:
            raise Failure(f"{folder} is not finished: run the command that made it again")
        return authority

    @contextlib.contextmanager
    def locked(self):
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def root(self):
        return certificate_of(self.root_file)

    @property
    def certificate(self):
        return certificate_of(self.file)

    @property
    def key(self):
        return keys.load_private(self.key_file, ISSUING)

    def certify_issuing(self, root, root_key, subject, lifetime):
        """A certificate of the issuing authority, and the root's list, which is good as long."""
        if outlives(lifetime, root):
            raise Failure(f"the root is good until {moments.text(root.not_valid_after_utc)} only: make a new authority")
        builder = builder_of(subject, root.subject, self.key.public_key(), lifetime)
        signed = as_authority(builder, self.key.public_key(), root_key.public_key(), 0).sign(root_key, hashes.SHA256())
        empty = list_builder(root.subject, root_key.public_key(), lifetime + 30 * DAY, first_list(self.root_list))
        files.write(self.root_list, pem(empty.sign(root_key, hashes.SHA256())))
        files.write(self.file, pem(signed))

    def renew(self, root_key, lifetime=LIFETIMES["issuing"]):
        """A new certificate of the issuing authority, by the root's key."""
        if root_key.public_key() != self.root.public_key():
            raise Failure("that is not the key of this root")
        self.certify_issuing(self.root, root_key, self.certificate.subject, lifetime)
        self.write_list(self.revoked())

    def issue(self, name, hosts=(), request=None, lifetime=LIFETIMES["certificate"], again=False):
        """A certificate with the authority behind it in PEM, and its key, None with a request that has its own.

        With HOSTS it is one of a server, and else one of a client, whose common name is what boxes and servers know it by.
        """
        names.name(name)
        # With AGAIN, who issues many need not read all that were issued.
        valid = [] if again else [known for known in self.all() if known.name == name and known.state == VALID]
        if valid:
            raise Failure(f"{name} has a certificate until {moments.text(valid[0].until)}: --again issues another one")
        key = new_key() if request is None else None
        public = key.public_key() if key else asked_key(request, name)
        signed = self.issuer().certify(name, public, lifetime, hosts)
        files.write(self.issued_file(signed), pem(signed))
        return pem(signed) + pem(self.certificate), key and keys.pem_of(key, None)

    def issuer(self):
        return Issuer(self.certificate, self.key)

    def issued_file(self, signed):
        return self.issued / f"{signed.serial_number:x}.pem"

    def all(self):
        """What was issued, by name and then by time."""
        revoked = {entry.serial_number for entry in self.revoked()}
        found = [Issued(certificate_of(path), revoked) for path in self.issued.glob("*.pem")] if self.issued.is_dir() else []
        return sorted(found, key=lambda issued: (issued.name, issued.until))

    def revoke(self, what):
        """Revokes all certificates of a name, or the one with a serial number; returns those that it revoked."""
        chosen = [issued for issued in self.all() if what in (issued.name, issued.serial)]
        if not chosen:
            raise Failure(f"{what!r} is no name and no serial number of a certificate: `ledge-platform ca list` has them")
        fresh = [issued for issued in chosen if issued.state != REVOKED]
        entries = [
            x509.RevokedCertificateBuilder().serial_number(issued.certificate.serial_number).revocation_date(moments.now()).build()
            for issued in fresh
        ]
        self.write_list([*self.revoked(), *entries])
        # Written after the list: whoever sees it changed ends open connections, and reads the list for new ones.
        files.write(self.revoked_file, f"{what} {moments.text(moments.now())} {len(entries)}\n".encode())
        return fresh

    def revoked(self):
        """The entries of the list of the issuing authority."""
        return list(first_list(self.list_file) or ())

    def refresh(self):
        """Signs the list of revoked certificates again."""
        self.write_list(self.revoked())

    def write_list(self, entries):
        builder = list_builder(
            self.certificate.subject, self.certificate.public_key(), LIST_LIFETIME, first_list(self.list_file))
        for entry in entries:
            builder = builder.add_revoked_certificate(entry)
        files.write(self.list_file, pem(builder.sign(self.key, hashes.SHA256())) + self.root_list.read_bytes())


class Issuer:
    """The issuing authority with its key: signs certificates, which count once they are in `issued`."""

    def __init__(self, certificate, key):
        self.certificate, self.key = certificate, key

    def certify(self, name, public, lifetime=LIFETIMES["certificate"], hosts=(), usages=None):
        """One for USAGES: by default of a server with HOSTS, and else of a client."""
        if outlives(lifetime, self.certificate):
            until = moments.text(self.certificate.not_valid_after_utc)
            raise Failure(f"the issuing authority is good until {until}: renew it first (`ledge-platform ca renew`)")
        builder = builder_of(common_name(name), self.certificate.subject, public, lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = with_keys(builder, public, self.certificate.public_key())
        builder = builder.add_extension(usage(digital_signature=True), critical=True)
        usages = usages or (SERVER if hosts else CLIENT,)
        builder = builder.add_extension(x509.ExtendedKeyUsage([USAGES[usage] for usage in usages]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


VALID, REVOKED, EXPIRED = "valid", "revoked", "expired"


class Issued:
    """A certificate that was issued."""

    def __init__(self, certificate, revoked):
        self.certificate, self.until = certificate, certificate.not_valid_after_utc
        self.name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        self.serial = f"{certificate.serial_number:x}"
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        self.kind = CLIENT if USAGES[CLIENT] in usages else SERVER
        self.state = REVOKED if certificate.serial_number in revoked else EXPIRED if self.until < moments.now() else VALID


def outlives(lifetime, certificate):
    return moments.after(moments.now(), lifetime) > certificate.not_valid_after_utc


def common_name(name):
    if len(name) > NAME_LENGTH_MAX:
        raise Failure(f"{name}: the name in a certificate has {NAME_LENGTH_MAX} characters at most")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def builder_of(subject, issuer, public, lifetime):
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    begin = moments.after(moments.now(), -BACKDATED)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin)
    return builder.not_valid_after(moments.after(moments.now(), lifetime))


def as_authority(builder, public, issuer, below):
    """An authority that can have this many others below it."""
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=below), critical=True)
    builder = builder.add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
    return with_keys(builder, public, issuer)


def with_keys(builder, public, issuer):
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)


def usage(digital_signature=False, key_cert_sign=False, crl_sign=False):
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )


def first_list(path):
    """The first list of a file; None if there is none yet."""
    return x509.load_pem_x509_crl(path.read_bytes()) if path.exists() else None


def list_builder(issuer, public, lifetime, before):
    """A list that follows another one: readers that know both take the one with the later moment."""
    begin, number = moments.after(moments.now(), -BACKDATED), 1
    if before:
        begin = max(begin, moments.after(before.last_update_utc, 1))
        number = 1 + before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer)
    builder = builder.last_update(begin).next_update(moments.after(moments.now(), lifetime))
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    return builder.add_extension(x509.CRLNumber(number), critical=False)


def asked_key(request, name):
    """The key of a request for this name. Whatever else the request asks for is let go."""
    try:
        asked = x509.load_pem_x509_csr(request)
        signed, public, subject = asked.is_signature_valid, asked.public_key(), asked.subject
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise Failure("that is no request for a certificate in PEM (PKCS #10)") from None
    if not signed:
        raise Failure("the request is not signed by its own key")
    asked_names = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if asked_names != [name]:
        raise Failure(f"the request is for {', '.join(asked_names) or 'nobody'}, and not for {name}")
    is_strong = isinstance(public, ed25519.Ed25519PublicKey) or isinstance(public, rsa.RSAPublicKey) and public.key_size >= RSA_BITS_MIN
    is_strong = is_strong or isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in ("secp256r1", "secp384r1")
    if not is_strong:
        raise Failure(f"the key of the request is none of P-256, P-384, Ed25519, and RSA with {RSA_BITS_MIN} bits or more")
    return public


def general_name(host):
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise Failure(f"{host!r} is no name and no address of a server") from None


def certificate_of(path):
    content = keys.content_of(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise Failure(f"{path} is not a certificate in PEM") from None


def pem(signed):
    return signed.public_bytes(Encoding.PEM)
