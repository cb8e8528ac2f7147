"""Private keys under a passphrase: PKCS #8 (RFC 5958) with PBES2, scrypt (RFC 7914) and AES-256-CBC.

`cryptography` reads this form, and itself writes PBKDF2 with 2,048 rounds only: whoever finds such a file tries millions
of passphrases a second.
"""
import base64
import os
import re
import textwrap

from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.x509 import ObjectIdentifier

# 128 MiB and some 0.4 s for each guess. The `openssl` command refuses more than 32 MiB, `cryptography` does not.
COST, BLOCK_SIZE, PARALLELIZATION = 2**17, 8, 1
PBES2 = ObjectIdentifier("1.2.840.113549.1.5.13")
SCRYPT = ObjectIdentifier("1.3.6.1.4.1.11591.4.11")
AES_256_CBC = ObjectIdentifier("2.16.840.1.101.3.4.1.42")
KEY_BYTES, SALT_BYTES, IV_BYTES = 32, 16, 16
LABEL = "ENCRYPTED PRIVATE KEY"


@asn1.sequence
class ScryptParameters:
    salt: bytes
    cost: int
    block_size: int
    parallelization: int


@asn1.sequence
class KeyDerivation:
    algorithm: ObjectIdentifier
    parameters: ScryptParameters


@asn1.sequence
class Encryption:
    algorithm: ObjectIdentifier
    iv: bytes


@asn1.sequence
class Pbes2Parameters:
    key_derivation: KeyDerivation
    encryption: Encryption


@asn1.sequence
class EncryptionAlgorithm:
    algorithm: ObjectIdentifier
    parameters: Pbes2Parameters


@asn1.sequence
class EncryptedPrivateKeyInfo:
    algorithm: EncryptionAlgorithm
    encrypted: bytes


def encrypt(private, words, label=LABEL):
    """PRIVATE, a PKCS #8 key in DER without a passphrase, as PEM under the passphrase WORDS.

    With another LABEL it is a key of another form, which only `decrypt` reads.
    """
    salt, iv = os.urandom(SALT_BYTES), os.urandom(IV_BYTES)
    key = Scrypt(salt=salt, length=KEY_BYTES, n=COST, r=BLOCK_SIZE, p=PARALLELIZATION).derive(words)
    padder = PKCS7(algorithms.AES.block_size).padder()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    encrypted = encryptor.update(padder.update(private) + padder.finalize()) + encryptor.finalize()

    parameters = ScryptParameters(
        salt=salt, cost=COST, block_size=BLOCK_SIZE, parallelization=PARALLELIZATION)
    info = EncryptedPrivateKeyInfo(
        algorithm=EncryptionAlgorithm(
            algorithm=PBES2,
            parameters=Pbes2Parameters(
                key_derivation=KeyDerivation(algorithm=SCRYPT, parameters=parameters),
                encryption=Encryption(algorithm=AES_256_CBC, iv=iv))),
        encrypted=encrypted)
    body = textwrap.fill(base64.b64encode(asn1.encode_der(info)).decode(), 64)
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n".encode()


def decrypt(pem, words, label):
    """The content that `encrypt` put under WORDS. Raises ValueError, or returns noise, where they are wrong."""
    info = parse(pem, label)
    if info is None:
        raise ValueError("not encrypted by scrypt")
    scrypt = info.algorithm.parameters.key_derivation.parameters
    key = Scrypt(salt=scrypt.salt, length=KEY_BYTES, n=scrypt.cost, r=scrypt.block_size, p=scrypt.parallelization).derive(words)
    decryptor = Cipher(algorithms.AES(key), modes.CBC(info.algorithm.parameters.encryption.iv)).decryptor()
    unpadder = PKCS7(algorithms.AES.block_size).unpadder()
    padded = decryptor.update(info.encrypted) + decryptor.finalize()
    return unpadder.update(padded) + unpadder.finalize()


def parse(pem, label=LABEL):
    """The content of a key file under scrypt; None for one under PBKDF2 or without a passphrase."""
    found = re.search(rf"-----BEGIN {label}-----(.*?)-----END {label}-----".encode(), pem, re.DOTALL)
    if not found:
        return None
    try:
        return asn1.decode_der(EncryptedPrivateKeyInfo, base64.b64decode(found[1]))
    except ValueError:
        return None


def scrypt_of(pem):
    """The scrypt parameters of a key file; None for one under PBKDF2 or without a passphrase."""
    info = parse(pem)
    return info and info.algorithm.parameters.key_derivation.parameters


def is_encrypted(pem, label=LABEL):
    return f"-----BEGIN {label}-----".encode() in pem
