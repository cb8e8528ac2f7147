"""`ledge-platform ca`: OpenSSL and Python's TLS accept what it issued, until it is revoked or has expired."""
import base64
import os
import socket
import ssl
import subprocess
import threading
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from support import Verbs, installed
from ledge_platform.certificates import authority

DAY = 86_400
LIMIT_S = 30


class Certificates(Verbs):
    def setUp(self):
        super().setUp()
        self.give_passphrase()
        self.ca, self.stick = self.folder / "ca", self.folder / "stick"
        self.done("ca", "init", self.ca, "--offline-keys", self.stick, "--name", "fleet")

    def issue(self, name, *options):
        self.done("ca", "issue", self.ca, name, "--out", self.folder, *options)
        return self.folder / f"{name}.pem"

    def verdict(self, certificate, purpose="sslclient"):
        """What OpenSSL says of a certificate, with the lists of all authorities of its chain."""
        done = subprocess.run(
            [installed("openssl"), "verify", "-x509_strict", "-purpose", purpose, "-CAfile", self.ca / "root.pem", "-untrusted", certificate,
             "-crl_check_all", "-CRLfile", self.ca / "crl.pem", certificate], capture_output=True, text=True)
        return "OK" if done.returncode == 0 else done.stderr

    def admits(self, client, server="server"):
        """True if a server that knows the root and the lists of revoked certificates talks to this client, and it to the server."""
        inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca / "root.pem")
        inside.load_verify_locations(self.ca / "crl.pem")
        inside.verify_mode, inside.verify_flags = ssl.CERT_REQUIRED, inside.verify_flags | ssl.VERIFY_CRL_CHECK_CHAIN
        inside.load_cert_chain(self.folder / f"{server}.pem", self.folder / f"{server}.key")
        outside = ssl.create_default_context(cafile=self.ca / "root.pem")
        outside.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(LIMIT_S)

            def serve():
                accepted, _ = listener.accept()
                accepted.settimeout(LIMIT_S)
                try:
                    with inside.wrap_socket(accepted, server_side=True) as stream:
                        stream.sendall(b"!")
                except ssl.SSLError:
                    accepted.close()

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                with socket.create_connection(listener.getsockname(), LIMIT_S) as plain, \
                        outside.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
                    return stream.recv(1) == b"!"
            except (ssl.SSLError, ConnectionError):
                return False
            finally:
                thread.join()

    def test_a_client_and_a_server_meet_until_one_is_revoked(self):
        self.issue("server", "--host", "127.0.0.1", "--host", "updates.example.com")
        for box in ("box-1", "box-2"):
            self.issue(box)
            self.assertTrue(self.admits(box))
        self.assertIn("1 certificates are revoked", self.done("ca", "revoke", self.ca, "box-1"))
        self.assertEqual((self.admits("box-1"), self.admits("box-2")), (False, True))
        self.assertIn("certificate revoked", self.verdict(self.folder / "box-1.pem"))
        # It stays so in every later list, and after the authority got another certificate.
        for _ in range(2):
            self.done("ca", "refresh", self.ca)
            self.assertIn("certificate revoked", self.verdict(self.folder / "box-1.pem"))
            self.done("ca", "renew", self.ca, "--keys", self.stick)
        self.assertEqual((self.admits("box-1"), self.admits("box-2")), (False, True))

    def test_a_certificate_is_good_for_one_purpose(self):
        self.issue("server", "--host", "127.0.0.1")
        self.issue("box-1")
        self.assertFalse(self.admits("server"), "a stolen certificate of a server is no box")
        self.assertFalse(self.admits("box-1", server="box-1"), "a box is no server")
        self.assertEqual(self.verdict(self.folder / "server.pem", "sslserver"), "OK")

    def test_a_certificate_ends_and_so_does_a_list_that_nobody_signs_again(self):
        self.issue("box-1", "--expires", "1d")
        self.assertEqual(self.verdict(self.folder / "box-1.pem"), "OK")
        with self.at(-3 * DAY):
            self.issue("box-2", "--expires", "1d")
        self.assertIn("expired", self.verdict(self.folder / "box-2.pem"))
        self.assertIn("expired", self.done("ca", "list", self.ca).splitlines()[2])
        with self.at(-authority.LIST_LIFETIME - DAY):
            self.done("ca", "refresh", self.ca)
        self.assertIn("CRL has expired", self.verdict(self.folder / "box-1.pem"))
        self.done("ca", "refresh", self.ca)
        self.assertEqual(self.verdict(self.folder / "box-1.pem"), "OK")

    def test_nothing_outlives_the_authority_that_signed_it(self):
        self.failed("renew it first", "ca", "issue", self.ca, "box-1", "--expires", "366d", "--out", self.folder)
        self.failed("the root is good until", "ca", "renew", self.ca, "--keys", self.stick, "--expires", "3651d")
        with self.at(300 * DAY):
            self.failed("renew it first", "ca", "issue", self.ca, "box-1", "--out", self.folder)
            self.done("ca", "renew", self.ca, "--keys", self.stick)
            self.done("ca", "issue", self.ca, "box-1", "--out", self.folder)

    def test_a_name_has_one_valid_certificate_unless_another_is_meant(self):
        self.issue("box-1")
        os.rename(self.folder / "box-1.key", self.folder / "old.key")
        self.failed("--again", "ca", "issue", self.ca, "box-1", "--out", self.folder)
        self.issue("box-1", "--again")
        self.assertIn("2 certificates are revoked", self.done("ca", "revoke", self.ca, "box-1"))
        os.rename(self.folder / "box-1.key", self.folder / "older.key")
        self.issue("box-1")
        self.assertEqual(self.verdict(self.folder / "box-1.pem"), "OK")
        listed = [line.split()[-1] for line in self.done("ca", "list", self.ca).splitlines()[1:]]
        self.assertEqual(sorted(listed), ["revoked", "revoked", "valid"])
        self.failed("is no name and no serial number", "ca", "revoke", self.ca, "box-9")

    def request(self, name, key=None, tampered=False, **more):
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("updates.example.com")]), critical=False)
        content = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
        content = content[:-1] + bytes([content[-1] ^ 1]) if tampered else content
        file = self.folder / "request.pem"
        if tampered:
            lines = base64.encodebytes(content).decode()
            file.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n")
        else:
            file.write_bytes(x509.load_der_x509_csr(content).public_bytes(Encoding.PEM))
        return file

    def test_a_request_gets_what_the_authority_gives_and_not_what_it_asks_for(self):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.issue("box-1", "--request", self.request("box-1", key))
        (self.folder / "box-1.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.issue("server", "--host", "127.0.0.1")
        self.assertTrue(self.admits("box-1"))
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        self.assertEqual(read.version, x509.Version.v3)
        self.assertFalse(read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
        with self.assertRaises(x509.ExtensionNotFound):
            read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        self.assertNotIn("OK", self.verdict(certificate, "sslserver"))

    def test_a_request_that_is_not_that_name_s_own_is_refused(self):
        issue = ("ca", "issue", self.ca, "box-1", "--out", self.folder, "--request")
        self.failed("is for box-2, and not for box-1", *issue, self.request("box-2"))
        self.failed("none of P-256", *issue, self.request("box-1", rsa.generate_private_key(65537, 1024)))
        self.failed("not signed by its own key", *issue, self.request("box-1", tampered=True))
        garbage = self.folder / "garbage.pem"
        for content in (b"", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", os.urandom(500)):
            garbage.write_bytes(content)
            self.failed("no request for a certificate", *issue, garbage)
        self.assertFalse((self.ca / "issued").exists())

    def test_a_key_is_never_overwritten_and_the_root_s_is_under_a_passphrase(self):
        self.assertIn(b"ENCRYPTED", (self.stick / "ca-root.key").read_bytes())
        self.failed("has a certificate authority already", "ca", "init", self.ca, "--offline-keys", self.folder / "other")
        self.failed("never overwritten", "ca", "init", self.folder / "new", "--offline-keys", self.stick)
        self.failed("is in none of the folders", "ca", "renew", self.ca, "--keys", self.folder)
        other = self.folder / "other-ca"
        self.done("ca", "init", other, "--offline-keys", self.folder / "other", "--plain")
        self.failed("not the key of this root", "ca", "renew", self.ca, "--keys", self.folder / "other")
        self.failed("has no certificate authority", "ca", "list", self.folder)
        for path in (self.stick / "ca-root.key", self.ca / "issuing.key"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)


if __name__ == "__main__":
    unittest.main()
