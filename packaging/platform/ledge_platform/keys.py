"""Signing keys as files: NAME.pem, which may be under a passphrase, and NAME.pub.pem, which everybody may read.

Keys are found by what they are and not by how their file is called: a key's id is a hash of its public half. So the
halves may lie in any of the folders that `--keys` names: on this machine, on a stick, or only for the time of a
ceremony.
"""
import getpass
import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from . import files, names
from .errors import Failure

PASSPHRASE = "LEDGE_PLATFORM_PASSPHRASE"


def passphrase(key_name, new=False):
    """From the environment, that of the key before the general one; else from whoever sits there."""
    specific = f"{PASSPHRASE}_{key_name.upper().replace('-', '_').replace('.', '_')}"
    found = os.environ.get(specific) or os.environ.get(PASSPHRASE)
    if found is None:
        if not sys.stdin.isatty():
            raise Failure(
                f"the key {key_name} is under a passphrase: set {specific} or {PASSPHRASE}, or run this in a terminal"
            )
        found = getpass.getpass(f"Passphrase of the key {key_name}: ")
        if new and getpass.getpass("The same again: ") != found:
            raise Failure("the two passphrases differ")
    if not found:
        raise Failure(f"the passphrase of the key {key_name} is empty")
    return found.encode()


def generate(folder, key_name, encrypted):
    """Makes a key, writes both halves and returns the public one."""
    names.name(key_name, "key name")
    private_file, public_file = folder / f"{key_name}.pem", folder / f"{key_name}.pub.pem"
    for path in (private_file, public_file):
        if path.exists():
            raise Failure(f"{path} is there already; a key is never overwritten")
    private = Ed25519PrivateKey.generate()
    protection = BestAvailableEncryption(passphrase(key_name, new=True)) if encrypted else NoEncryption()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write(private_file, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection), 0o600)
    files.write(public_file, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return SSlibKey.from_crypto(private.public_key())


def read_public(path):
    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Failure(f"{path} is not a public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise Failure(f"{path} is not an Ed25519 key")
    return SSlibKey.from_crypto(key)


class KeyRing:
    """The keys in some folders."""

    def __init__(self, folders):
        self.folders = [Path(folder) for folder in folders]
        self.found = {}
        for folder in self.folders:
            if not folder.is_dir():
                raise Failure(f"{folder} is no folder of keys")
            for path in sorted(folder.glob("*.pub.pem")):
                self.found.setdefault(read_public(path).keyid, path)
        self.signers = {}

    def name_of(self, keyid):
        path = self.found.get(keyid)
        return path.name.removesuffix(".pub.pem") if path else None

    def has(self, keyid):
        path = self.found.get(keyid)
        return path is not None and private_of(path).exists()

    def signer(self, keyid):
        """The private half, or None when it is not here."""
        if keyid not in self.signers:
            if not self.has(keyid):
                return None
            path = private_of(self.found[keyid])
            self.signers[keyid] = CryptoSigner(load_private(path, self.name_of(keyid)))
            if self.signers[keyid].public_key.keyid != keyid:
                raise Failure(f"{path} is not the private half of {self.found[keyid].name}")
        return self.signers[keyid]

    def __str__(self):
        return ", ".join(map(str, self.folders)) or "--keys, which is not given"


def private_of(public_file):
    return public_file.with_name(public_file.name.replace(".pub.pem", ".pem"))


def load_private(path, key_name):
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    try:
        return load_pem_private_key(content, None)
    except TypeError:
        pass  # it is under a passphrase
    except ValueError:
        raise Failure(f"{path} is not a private key in PEM") from None
    try:
        return load_pem_private_key(content, passphrase(key_name))
    except ValueError:
        raise Failure(f"the passphrase does not open {path}") from None
