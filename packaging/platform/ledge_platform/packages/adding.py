"""What a package file is, and its place in the repository."""
import re
from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..errors import Failure
from .programs import run

DEB, RPM = b"!<arch>\ndebian-binary", b"\xed\xab\xee\xdb"
ARCHITECTURES = {"deb": ("amd64", "arm64"), "rpm": ("x86_64", "aarch64")}
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~^_-]*")
# The digest of the header covers that of the payload, and stays when the package is signed.
RPM_FIELDS = "%{NAME}\n%{EPOCHNUM}:%{VERSION}-%{RELEASE}\n%{ARCH}\n%{SHA256HEADER}\n%|SOURCERPM?{binary}:{source}|"


@dataclass
class Package:
    kind: str
    name: str
    version: str
    architecture: str
    path: Path
    header_digest: str | None = None

    @property
    def digest(self):
        return self.header_digest or files.measure(self.path)[1]

    @property
    def file_name(self):
        without_epoch = self.version.partition(":")[2] or self.version
        if self.kind == "deb":
            return f"{self.name}_{without_epoch}_{self.architecture}.deb"
        return f"{self.name}-{without_epoch}.{self.architecture}.rpm"

    def __str__(self):
        return f"{self.name} {self.version.removeprefix('0:')} ({self.architecture})"


def add(repository, path):
    """Puts the package at PATH into the repository. Returns the line to print."""
    package = read(path)
    check(path, package)
    places = places_of(repository, package)
    for place in places:
        if place.exists():
            if read(place).digest == package.digest:
                return f"{package} is there already"
            raise Failure(
                f"{path}: another file of {package} is there, and clients may have it: give the package a new version")
    higher = [other for other in others(repository, package) if compare(package.kind, other.version, package.version) > 0]
    files.copy(path, places[0])
    note = f"; clients prefer {higher[0].version.removeprefix('0:')}, which stays" if higher else ""
    return f"added {package}{note}"


def read(path):
    """The fields of a package, without a look at its content."""
    with open(path, "rb") as file:
        start = file.read(len(DEB))
    if start == DEB:
        shown = run("dpkg-deb", "--show", "--showformat=${Package}\n${Version}\n${Architecture}\n", path)[1]
        name, version, architecture = fields(path, shown, 3)
        return Package("deb", name, version, architecture, path)
    if start.startswith(RPM):
        shown = run("rpm", "--query", "--nosignature", "--queryformat", RPM_FIELDS, "--package", path)[1]
        name, version, architecture, digest, kind = fields(path, shown, 5)
        return Package("rpm", name, version, architecture if kind == "binary" else kind, path, digest)
    raise Failure(f"{path} is neither a deb nor an rpm package")


def fields(path, shown, count):
    found = shown.decode(errors="replace").removesuffix("\n").split("\n")
    if len(found) != count:
        raise Failure(f"{path}: a field of the package has several lines")
    return found


def check(path, package):
    """The whole of the file, and the fields that make its name: no field has a character of another meaning afterwards."""
    if package.architecture not in ARCHITECTURES[package.kind]:
        raise Failure(
            f"{path} is for the architecture {package.architecture!r}: Ledge has {' and '.join(ARCHITECTURES[package.kind])}")
    if not FILE_NAME.fullmatch(package.file_name):
        raise Failure(f"{path}: {package.file_name!r} is no name of a package file")
    if package.kind == "deb":
        run("dpkg-deb", "--contents", path)
    else:
        status, said = run("rpmkeys", "--checksig", "--nosignature", path, accepted=(0, 1))
        if status or package.digest == "(none)":
            raise Failure(f"{path} is damaged, or has no SHA-256 digest: {said.decode(errors='replace').strip()}")


def places_of(repository, package):
    """Where a new package goes, and where it may be already."""
    if package.kind == "deb":
        return [repository.pool / package.name / package.file_name]
    folder = repository.rpm / package.architecture
    signed = [folder / key / package.file_name for key in [repository.settings.rpm_key] if key]
    return [folder / package.file_name, *signed]


def others(repository, package):
    """The packages of the same name and architecture."""
    for place in places_of(repository, package):
        for path in sorted(place.parent.glob(f"*.{package.kind}")):
            found = read(path)
            if (found.name, found.architecture) == (package.name, package.architecture):
                yield found


def compare(kind, one, other):
    """Above 0 if version ONE is higher, as the clients order them."""
    if kind == "deb":
        return 1 if run("dpkg", "--compare-versions", one, "gt", other, accepted=(0, 1))[0] == 0 else -1
    return int(run("rpm", "--eval", f'%{{lua:print(rpm.vercmp("{one}", "{other}"))}}')[1])


def packages_in(folder, kind):
    return sorted(Path(folder).rglob(f"*.{kind}")) if folder.is_dir() else []
