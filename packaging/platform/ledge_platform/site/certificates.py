"""The certificates of the platform's own servers, and the file by which servers know clients."""
import os

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from .. import files, keys, moments
from ..certificates.authority import DAY, LIFETIMES, Authority, common_name, general_name, pem
from ..errors import Failure
from .layout import OWN

SERVER, PLATFORM, SCRAPER = "server", "platform", "prometheus"
RENEWED_AT = 2 / 3
# A certificate that ends hardly later than the present one, with its authority, is not worth a reload.
GAIN_MIN_S = DAY


class Own:
    """A certificate of the platform: its files, and who reads the key."""

    def __init__(self, name, hosts, certificate, key, reader):
        self.name, self.hosts, self.certificate, self.key, self.reader = name, list(hosts), certificate, key, reader


def every(layout):
    hosts = dict.fromkeys([layout.domain, *layout.addresses])
    found = [
        Own(SERVER, hosts, layout.server_certificate, layout.server_key, "broker"),
        Own(PLATFORM, [], layout.platform_certificate, layout.platform_key, "platform"),
    ]
    # An older `init` made no folder for it, and its timer may not write there.
    if layout.ca_kind == OWN and layout.prometheus.is_dir():
        found.append(Own(SCRAPER, [], layout.scraper_certificate, layout.scraper_key, "scraper"))
    return found


def ensure(layout, users):
    """Makes and renews what is due, with the key that is there. Returns lines to print."""
    authority, lines = Authority.open(layout.ca), []
    for own in every(layout):
        if not own.key.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            files.write(own.key, keys.pem_of(key, None), 0o640, users.ids("root", own.reader))
            lines.append(f"made {own.key}")
        elif own.name == SCRAPER and own.key.stat().st_gid != users.ids("root", own.reader)[1]:
            # Prometheus was installed after the platform.
            os.chown(own.key, *users.ids("root", own.reader))
            lines.append(f"gave {own.key} to the group {users.scraper}")
        reason = due(own, authority)
        if reason:
            issue(layout, own, authority)
            lines.append(f"issued {own.certificate} ({reason}), good until {until(own)}")
        elif chain_of(own)[1:] != [authority.certificate]:
            files.write(own.certificate, pem(chain_of(own)[0]) + pem(authority.certificate))
            lines.append(f"put the new certificate of the issuing authority into {own.certificate}")
        else:
            lines.append(f"found {own.certificate}, good until {until(own)}")
    root = layout.prometheus / "root.pem"
    if layout.prometheus.is_dir() and (not root.exists() or root.read_bytes() != authority.root_file.read_bytes()):
        files.write(root, authority.root_file.read_bytes())
    content = clients(authority)
    if layout.clients.exists() and layout.clients.read_bytes() == content:
        return [*lines, f"found {layout.clients}"]
    files.write(layout.clients, content)
    return [*lines, f"wrote {layout.clients}"]


def until(own):
    return moments.text(chain_of(own)[0].not_valid_after_utc)


def clients(authority):
    """By this the servers know clients, also those whose own chain has an issuing authority's certificate that ended."""
    return pem(authority.root) + pem(authority.certificate)


def issue(layout, own, authority):
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(own.name))
    request = request.sign(keys.load_private(own.key, own.name), hashes.SHA256()).public_bytes(Encoding.PEM)
    with layout.as_owner(), authority.locked():
        chain, _ = authority.issue(own.name, own.hosts, request, lifetime(authority), again=True)
    files.write(own.certificate, chain)


def lifetime(authority):
    """No certificate outlives the authority that signs it."""
    rest = int((authority.certificate.not_valid_after_utc - moments.now()).total_seconds())
    if rest <= 0:
        raise Failure(
            f"the issuing authority has ended: `ledge-platform ca renew {authority.folder} --keys DIR`, with the key of the root")
    return min(LIFETIMES["certificate"], rest)


def due(own, authority):
    """Why another certificate is needed; None if it is not."""
    if not own.certificate.exists():
        return "there was none"
    found, key = chain_of(own)[0], keys.load_private(own.key, own.name)
    if found.public_key() != key.public_key():
        return "the key is another"
    try:
        found.verify_directly_issued_by(authority.certificate)
    except Exception:  # of several kinds, which all say the same
        return "the authority is another"
    if own.hosts and set(hosts_of(found)) != {general_name(host).value for host in own.hosts}:
        return "its names changed"
    if found.serial_number in {entry.serial_number for entry in authority.revoked()}:
        return "it was revoked"
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    is_late = moments.now() > begin + RENEWED_AT * (end - begin)
    gain = (moments.after(moments.now(), lifetime(authority)) - end).total_seconds()
    return "two thirds of its time were over" if is_late and gain > GAIN_MIN_S else None


def hosts_of(certificate):
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [name.value for name in found.value]


def chain_of(own):
    try:
        return x509.load_pem_x509_certificates(keys.content_of(own.certificate))
    except ValueError:
        raise Failure(f"{own.certificate} is not a certificate in PEM") from None


def fingerprint(certificate):
    """By this people compare what a box trusts: SHA-256 of the root certificate in DER."""
    return certificate.fingerprint(hashes.SHA256()).hex()
