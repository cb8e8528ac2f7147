"""An authority and certificates for the tests, as a fleet has them."""
import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    def __init__(self, folder, name="fleet-ca"):
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        builder = self.builder(self.name, self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def builder(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        return builder.not_valid_after(now + datetime.timedelta(days=1))

    def issue(self, name):
        """The files of a certificate for this common name, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self.builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        addresses = x509.SubjectAlternativeName([
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("updates.example.com"),
            x509.DNSName("packages.example.com")])
        certificate = builder.add_extension(addresses, critical=False).sign(self.key, hashes.SHA256())
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files
