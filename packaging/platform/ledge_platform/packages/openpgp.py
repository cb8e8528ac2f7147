"""OpenPGP keys as files: NAME.asc, which may be under a passphrase, and NAME.pub.asc, which everybody may read.

RSA, because rpm of older distributions knows no Ed25519. The passphrase protects the file as it does the other keys: by
scrypt with 128 MiB a guess, where gpg's own protection takes a graphics card next to nothing.
"""
import os
import re
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from .. import files, keys, moments, names, pkcs8
from ..errors import Failure
from .programs import find, run

ALGORITHM = "rsa4096"
LABEL = "ENCRYPTED OPENPGP PRIVATE KEY"
MEMORY = "/dev/shm"


@dataclass
class Key:
    """A public key in a keyring."""

    fingerprint: str
    created: datetime
    expires: datetime | None

    @property
    def id(self):
        return self.fingerprint[-16:].lower()

    def is_expired(self, at):
        return self.expires is not None and self.expires <= at


class Home:
    """A GNUPGHOME for one call of ledge-platform."""

    def __init__(self, folder, date):
        self.folder, self.date = folder, date

    def gpg(self, *arguments, content=b"", accepted=(0,)):
        options = ("--homedir", self.folder, "--no-options", "--batch", "--no-tty", "--quiet", "--pinentry-mode", "loopback",
                   "--passphrase", "", "--faked-system-time", f"{seconds(self.date)}!")
        return run("gpg", *options, *arguments, content=content, accepted=accepted)[1]

    def add(self, content):
        """Imports public or private keys."""
        self.gpg("--import", content=content)

    def keys(self):
        return parse(self.gpg("--list-keys", "--with-colons"))

    def export(self, fingerprints, *options):
        return self.gpg("--export", "--export-options", "export-minimal", *options, *fingerprints)

    def sign(self, fingerprints, how, content):
        signers = [word for fingerprint in fingerprints for word in ("--local-user", fingerprint)]
        return self.gpg("--armor", "--digest-algo", "SHA512", *signers, how, content=content)

    def signers(self, signature, path):
        """The fingerprints of the known keys that signed the file at PATH, those that have expired included."""
        said = self.gpg("--status-fd", "1", "--verify", signature, path, accepted=(0, 1, 2)).decode(errors="replace")
        if "[GNUPG:] BADSIG " in said:
            raise Failure(f"{path} has changed since it was signed: bring back the file that was published, or remove it")
        return re.findall(r"^\[GNUPG:\] VALIDSIG .* ([0-9A-F]{40})$", said, re.MULTILINE)

    def sign_rpm(self, fingerprint, path):
        macros = {
            "__gpg": shutil.which("gpg"),
            "_gpg_path": self.folder,
            "_gpg_name": fingerprint,
            "_gpg_digest_algo": "sha512",
            "_gpg_sign_cmd_extra_args": f"--no-options --batch --faked-system-time {seconds(self.date)}!",
        }
        defined = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        run("rpmsign", *defined, "--addsign", path, home=self.folder)


def seconds(moment):
    return int(moment.timestamp())


@contextmanager
def home(date):
    """A private GNUPGHOME, in memory where the system has such a folder; it and its agent end with the block."""
    find("gpg-agent")
    memory = [place for place in (os.environ.get("XDG_RUNTIME_DIR"), MEMORY) if place and os.access(place, os.W_OK)]
    folder = tempfile.mkdtemp(prefix="ledge-gpg-", dir=memory[0] if memory else None)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield Home(folder, date)
    finally:
        run("gpgconf", "--homedir", folder, "--kill", "all", accepted=(0, 1, 2))
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def parse(colons):
    """The primary keys of `gpg --with-colons`."""
    found, fields = [], None
    for row in colons.decode().splitlines():
        columns = row.split(":")
        if columns[0] == "pub":
            fields = columns
        elif columns[0] == "fpr" and fields:
            expires = moments.at(int(fields[6])) if fields[6] else None
            found.append(Key(columns[9], moments.at(int(fields[5])), expires))
            fields = None
    return found


def generate(folder, name, identity, lifetime_s, words=None):
    """Makes a key, under the passphrase WORDS if there is one; writes both halves."""
    names.name(name, "key name")
    private_file, public_file = folder / f"{name}.asc", folder / f"{name}.pub.asc"
    for path in (private_file, public_file):
        if path.exists():
            raise Failure(f"{path} is there already; a key is never overwritten")
    with home(moments.now()) as made:
        made.gpg("--quick-generate-key", identity, ALGORITHM, "cert,sign", f"seconds={lifetime_s}")
        private, public = made.gpg("--export-secret-keys", "--armor"), made.gpg("--export", "--armor")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write(private_file, protected(private, words), 0o600)
    files.write(public_file, public)


def protected(private, words):
    return private if words is None else pkcs8.encrypt(private, words, LABEL)


def load_private(path, name):
    content = keys.content_of(path)
    if pkcs8.is_encrypted(content, LABEL):
        try:
            content = pkcs8.decrypt(content, keys.passphrase(name), LABEL)
        except ValueError:
            content = b""
        if not content.startswith(b"-----BEGIN PGP PRIVATE"):
            raise Failure(f"the passphrase does not open {path}")
    return content


def change_passphrase(path, name):
    private = load_private(path, name)
    files.write(path, protected(private, keys.new_passphrase(name, keys.NEW_PASSPHRASE)), 0o600)


class KeyRing(keys.KeyFolders):
    """The OpenPGP keys in some folders."""

    def __init__(self, folders):
        super().__init__(folders, ".pub.asc", lambda path: [key.fingerprint for key in read_public(path)])

    def private(self, key):
        """The private half of a key, which must be here."""
        public_file = self.found.get(key.fingerprint)
        path = public_file and private_of(public_file)
        if not path or not path.exists():
            raise Failure(f"the key {key.id} signs the packages, and is not in {self}: name the folder that has it with --keys")
        return load_private(path, path.name.removesuffix(".asc"))


def private_of(public_file):
    return public_file.with_name(public_file.name.replace(".pub.asc", ".asc"))


def read_public(path):
    with home(moments.now()) as shown:
        return parse(shown.gpg("--show-keys", "--with-colons", path))
