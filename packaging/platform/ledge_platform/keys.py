"""Signing keys as files: NAME.pem, which may be under a passphrase, and NAME.pub.pem, which everybody may read.

Instead of NAME.pem, NAME.hsm names a PKCS #11 token that has the private half (tokens.py).

Keys are found by what they are and not by how their file is called: a key's id is a hash of its public half. So the
halves may lie in any of the folders that `--keys` names: on this machine, on a stick, or only for the time of a
ceremony.
"""
import getpass
import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from . import files, names, pkcs8, tokens
from .asking import ask, from_environment
from .errors import Failure

PASSPHRASE, NEW_PASSPHRASE = "LEDGE_PLATFORM_PASSPHRASE", "LEDGE_PLATFORM_NEW_PASSPHRASE"
PASSPHRASE_LENGTH_MIN, PASSPHRASE_DISTINCT_MIN = 12, 5


def passphrase(key_name):
    """The passphrase of a key that is there."""
    return ask(key_name, PASSPHRASE, f"Passphrase of the key {key_name}: ").encode()


def new_passphrase(key_name, variable=PASSPHRASE):
    """A passphrase to put a key under: a strong one, which is asked for twice."""
    found = ask(key_name, variable, f"New passphrase of the key {key_name}: ")
    refuse_weak(found, key_name)
    if from_environment(key_name, variable)[0] is None and getpass.getpass("The same again: ") != found:
        raise Failure("the two passphrases differ")
    return found.encode()


def refuse_weak(found, key_name):
    """A stick may get lost, and its finder can try passphrases without a limit."""
    reason = None
    if len(found) < PASSPHRASE_LENGTH_MIN:
        reason = f"has {len(found)} characters and needs at least {PASSPHRASE_LENGTH_MIN}"
    elif len(set(found)) < PASSPHRASE_DISTINCT_MIN:
        reason = f"repeats the same {len(set(found))} characters and needs at least {PASSPHRASE_DISTINCT_MIN} different ones"
    if reason:
        raise Failure(f"the passphrase of the key {key_name} {reason}: take five words by chance, such as with dice")


def generate(folder, key_name, words=None):
    """Makes a key, under the passphrase WORDS if there is one; writes both halves and returns the public one."""
    refuse_existing(folder, key_name)
    return write_pair(folder, key_name, Ed25519PrivateKey.generate(), words)


def refuse_existing(folder, key_name):
    names.name(key_name, "key name")
    for suffix in (".pem", ".pub.pem", tokens.SUFFIX):
        path = folder / f"{key_name}{suffix}"
        if path.exists():
            raise Failure(f"{path} is there already; a key is never overwritten")


def write_token(folder, key_name, uri, public):
    """Writes the files of a key that a token has, the reference first, and returns its public half."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write(folder / f"{key_name}{tokens.SUFFIX}", f"{uri}\n".encode())
    files.write(folder / f"{key_name}.pub.pem", public.keyval["public"].encode())
    return public


def write_pair(folder, key_name, private, words):
    """Writes the half that is missing, the private one first, and returns the public one."""
    private_file = folder / f"{key_name}.pem"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not private_file.exists():
        files.write(private_file, pem_of(private, words), 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    files.write(folder / f"{key_name}.pub.pem", public)
    return SSlibKey.from_crypto(private.public_key())


def resumed_or_new(path, words, generate_private, unfinished):
    """The key that a run which was killed wrote to PATH, else a new one, which is not written yet."""
    if not path.exists():
        return generate_private()
    if unfinished:
        private = opened(path, words)
        if identity(private) in unfinished.keys():
            return private
    raise Failure(f"{path} is there already; a key is never overwritten")


def identity(private):
    public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()


def opened(path, words):
    """A private key, by the passphrase that is known already."""
    try:
        return load_pem_private_key(content_of(path), words)
    except (TypeError, ValueError):
        raise Failure(f"{path} is of a run that was killed: give the same passphrase again") from None


def pem_of(private, words):
    if words is None:
        return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pkcs8.encrypt(private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), words)


def change_passphrase(path, key_name):
    """Puts a private key under a new passphrase, and under scrypt if it was under PBKDF2 or none."""
    private = load_private(path, key_name)
    files.write(path, pem_of(private, new_passphrase(key_name, NEW_PASSPHRASE)), 0o600)


def is_weakly_encrypted(path):
    """True if it is under a passphrase by PBKDF2 with 2,048 rounds, as earlier versions wrote it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return pkcs8.is_encrypted(content) and pkcs8.scrypt_of(content) is None


def read_public(path):
    content = content_of(Path(path))
    try:
        key = load_pem_public_key(content)
    except ValueError:
        raise Failure(f"{path} is not a public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey) and not (
            isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)):
        raise Failure(f"{path} is not an Ed25519 or ECDSA P-256 key")
    return SSlibKey.from_crypto(key)


class KeyFolders:
    """The public keys in some folders: `found` has the file of each by its identity."""

    def __init__(self, folders, suffix, identities):
        self.folders = [Path(folder) for folder in folders]
        self.found = {}
        for folder in self.folders:
            if not folder.is_dir():
                raise Failure(f"{folder} is no folder of keys")
            for path in sorted(folder.glob(f"*{suffix}")):
                for identity in identities(path):
                    if identity not in self.found or self.is_better(path, self.found[identity]):
                        self.found[identity] = path

    def is_better(self, _path, _other):
        """Of two files of one key, the first counts."""
        return False

    def __str__(self):
        return ", ".join(map(str, self.folders)) or "--keys, which is not given"


class KeyRing(KeyFolders):
    """The keys in some folders."""

    def __init__(self, folders):
        super().__init__(folders, ".pub.pem", lambda path: [read_public(path).keyid])
        self.signers, self.absences = {}, {}

    def name_of(self, keyid):
        path = self.found.get(keyid)
        return path.name.removesuffix(".pub.pem") if path else None

    def is_better(self, path, other):
        """The public half may also lie where all keys are listed; the private one is with its holder."""
        return not has_private(other) and has_private(path)

    def has(self, keyid):
        path = self.found.get(keyid)
        if path is None or not has_private(path):
            return False
        return private_of(path).exists() or self.absence(keyid) is None

    def absence(self, keyid):
        """Why a key that is in a token cannot sign now; None for one that can, and for one in a file."""
        path = self.found.get(keyid)
        if path is None or private_of(path).exists() or not tokens.file_of(path).exists():
            return None
        if keyid not in self.absences:
            self.absences[keyid] = tokens.absence(tokens.file_of(path))
        return self.absences[keyid]

    def signer(self, keyid):
        """The private half, or None when it is not here."""
        if keyid not in self.signers:
            if not self.has(keyid):
                return None
            path = self.found[keyid]
            private = private_of(path)
            if private.exists():
                self.signers[keyid] = CryptoSigner(load_private(private, self.name_of(keyid)))
            else:
                self.signers[keyid] = tokens.signer(tokens.file_of(path), read_public(path), self.name_of(keyid))
            if self.signers[keyid].public_key.keyid != keyid:
                raise Failure(f"{private} is not the private half of {path.name}")
        return self.signers[keyid]


def has_private(public_file):
    return private_of(public_file).exists() or tokens.file_of(public_file).exists()


def private_of(public_file):
    return public_file.with_name(public_file.name.replace(".pub.pem", ".pem"))


def content_of(path):
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None


def load_private(path, key_name):
    content = content_of(path)
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
