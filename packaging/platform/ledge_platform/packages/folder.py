"""The folder of a package repository: its settings, its keys, and the files that clients install it with."""
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .. import ceremony, files, keys, moments
from ..errors import Failure
from ..repository import Repository
from . import openpgp

KEY = "packages"
SETTINGS = ".ledge-packages.json"
KEPT_S = 7 * ceremony.DAY  # how long a reader of an earlier index finds what it names

SOURCES = """\
Types: deb
URIs: {address}
Suites: {suite}
Components: main
Signed-By:
{key}
"""
REPO = """\
[{name}]
name={label}
mirrorlist={address}/rpm/$basearch/mirrorlist
enabled=1
gpgcheck=1
repo_gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-{name}
"""


@dataclass
class Settings:
    """What is remembered from one call to the next."""

    name: str
    origin: str
    label: str
    maintainer: str
    suite: str
    lifetime_s: int
    key_lifetime_s: int
    address: str | None = None
    keys: list = field(default_factory=list)  # fingerprints, the oldest first
    rpm_key: str | None = None  # the id of the key that signed the published rpm packages


class PackageFolder:
    def __init__(self, folder, settings):
        self.folder, self.settings = folder, settings
        self.pool, self.rpm = folder / "pool", folder / "rpm"
        self.dist = folder / "dists" / settings.suite
        self.staged = folder / ".staged"

    @classmethod
    def open(cls, folder):
        try:
            return cls(folder, Settings(**json.loads((folder / SETTINGS).read_bytes())))
        except FileNotFoundError:
            raise Failure(
                f"{folder} is no package repository (it has no {SETTINGS}): make one with `ledge-platform package init`"
            ) from None
        except (ValueError, TypeError) as error:
            raise Failure(f"{folder / SETTINGS} cannot be read: {error}") from None

    def save(self):
        files.write(self.folder / SETTINGS, (json.dumps(asdict(self.settings), indent=1) + "\n").encode())

    def locked(self):
        return Repository(self.folder).locked()

    def stage(self):
        """An empty folder on the same disk; one that an earlier call left is removed."""
        shutil.rmtree(self.staged, ignore_errors=True)
        self.staged.mkdir()
        return self.staged

    def add_public_keys(self, home, ring):
        """Imports the public halves of all keys, which may have been made public already or be in the ring."""
        public = self.folder / f"{self.settings.name}.gpg"
        if public.exists():
            home.add(public.read_bytes())
        for path in {ring.found[fingerprint] for fingerprint in self.settings.keys if fingerprint in ring.found}:
            home.add(path.read_bytes())
        known = {key.fingerprint: key for key in home.keys()}
        missing = [fingerprint for fingerprint in self.settings.keys if fingerprint not in known]
        if missing:
            raise Failure(f"the public half of the key {missing[0]} is neither in {public} nor in {ring}")
        return [known[fingerprint] for fingerprint in self.settings.keys]

    def write_public(self, home):
        """The public keys, and where the address is known the files that clients install."""
        name, fingerprints = self.settings.name, self.settings.keys
        armored = home.export(fingerprints, "--armor")
        files.write(self.folder / f"{name}.gpg", home.export(fingerprints))
        files.write(self.folder / f"{name}.asc", armored)
        if self.settings.address:
            key = "\n".join(f" {line or '.'}" for line in armored.decode().splitlines())
            filled = {**asdict(self.settings), "key": key}
            files.write(self.folder / f"{name}.sources", SOURCES.format(**filled).encode())
            files.write(self.folder / f"{name}.repo", REPO.format(**filled).encode())


def init(folder, key_folder, encrypt, settings):
    """Makes the repository, and its key where there is none yet."""
    if (folder / SETTINGS).exists():
        raise Failure(f"{folder} is a package repository already")
    if key_folder.resolve().is_relative_to(folder.resolve()):
        raise Failure(f"{key_folder} is in {folder}, which everybody can read: keep the keys elsewhere")
    made = PackageFolder(folder, settings)
    if not (key_folder / f"{KEY}.pub.asc").exists():
        make_key(made, key_folder, KEY, encrypt)
    ring = openpgp.KeyRing([key_folder])
    made.settings.keys = [key.fingerprint for key in openpgp.read_public(key_folder / f"{KEY}.pub.asc")]
    folder.mkdir(parents=True, exist_ok=True)
    with openpgp.home(moments.now()) as home:
        made.add_public_keys(home, ring)
        made.write_public(home)
    made.save()
    return made


def make_key(folder, key_folder, name, encrypt):
    settings = folder.settings
    words = keys.new_passphrase(name) if encrypt else None
    openpgp.generate(key_folder, name, settings.maintainer, settings.key_lifetime_s, words)


def settle(folder):
    """Brings a whole folder to the disk, readable by a web server, before something names it."""
    for place, _, found in os.walk(folder):
        for path in [*(Path(place) / name for name in found), Path(place)]:
            path.chmod(0o755 if path.is_dir() else 0o644)
            files.sync(path)


def touch(path):
    """Its time says when an index last named it."""
    if path.exists():
        moment = moments.now().timestamp()
        os.utime(path, (moment, moment))


def is_old(path):
    return path.stat().st_mtime < moments.now().timestamp() - KEPT_S
