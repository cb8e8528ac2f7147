"""The index of apt. InRelease has the signature and names all other files by hash, so it is replaced last."""
import gzip
import lzma
import re
from email.utils import parsedate_to_datetime

from .. import files, moments
from ..errors import Failure
from .adding import ARCHITECTURES, packages_in
from .folder import is_old, touch
from .programs import find, run

DATE = "%a, %d %b %Y %H:%M:%S UTC"
COMPRESSED = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".xz": lzma.compress,
}
ONLY_SHA256 = [word for name in ("MD5", "SHA1", "SHA512") for word in ("-o", f"APT::FTPArchive::{name}=false")]


def need_programs(repository):
    if packages_in(repository.pool, "deb"):
        find("apt-ftparchive")


def publish(repository, home, signers, date, until):
    """Returns how many packages apt finds; None when there were none ever."""
    packages = packages_in(repository.pool, "deb")
    if not packages and not repository.dist.exists():
        return None
    refuse_older(repository, date)
    sign_packages(repository, home, signers, packages)
    architectures = [name for name in ARCHITECTURES["deb"] if any(path.name.endswith(f"_{name}.deb") for path in packages)]

    staged = repository.stage()
    indexes = {}
    for architecture in architectures:
        index = run("apt-ftparchive", *ONLY_SHA256, "--arch", architecture, "packages", "pool", folder=repository.folder)[1]
        for suffix, compress in COMPRESSED.items():
            indexes[f"main/binary-{architecture}/Packages{suffix}"] = compress(index)
    for path, content in indexes.items():
        files.write(staged / path, content)
    release = head(repository.settings, architectures, until) + run(
        "apt-ftparchive", *ONLY_SHA256, "-o", f"APT::FTPArchive::Release::Date={date.strftime(DATE)}", "release", staged)[1]
    signed = {
        "Release": release,
        "Release.gpg": home.sign(signers, "--detach-sign", release),
        "InRelease": home.sign(signers, "--clearsign", release),
    }

    live = listed(repository)
    for path in by_hash(repository):
        if path.name in live:
            touch(path)
    for path, content in indexes.items():
        place = repository.dist / path
        files.write(place.parent / "by-hash" / "SHA256" / files.measure(staged / path)[1], content)
    for path, content in [*indexes.items(), *signed.items()]:
        files.write(repository.dist / path, content)

    live = listed(repository)
    for path in by_hash(repository):
        if path.name not in live and is_old(path):
            path.unlink()
    return len(packages)


def head(settings, architectures, until):
    """The fields of Release besides its date and its files."""
    fields = {
        "Origin": settings.origin,
        "Label": settings.label,
        "Suite": settings.suite,
        "Codename": settings.suite,
        "Architectures": " ".join(architectures),
        "Components": "main",
        "Acquire-By-Hash": "yes",
        "Valid-Until": until.strftime(DATE),
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value).encode()


def in_release(repository):
    path = repository.dist / "InRelease"
    return path.read_text() if path.exists() else ""


def listed(repository):
    """The hashes of the files that the public index names."""
    return set(re.findall(r"^ ([0-9a-f]{64}) ", in_release(repository), re.MULTILINE))


def by_hash(repository):
    return sorted(repository.dist.glob("main/*/by-hash/SHA256/[0-9a-f]*"))


def refuse_older(repository, date):
    found = re.search(r"^Date: (.*)$", in_release(repository), re.MULTILINE)
    if found and parsedate_to_datetime(found[1].replace("UTC", "+0000")) > date:
        raise Failure(
            f"the index is from {found[1]}, and apt would take none of {date.strftime(DATE)} after it: leave out --date and "
            "SOURCE_DATE_EPOCH, or give a later moment")


def sign_packages(repository, home, signers, packages):
    """A signature next to each package, for whoever has the file without the index."""
    for path in packages:
        signature = path.with_name(f"{path.name}.asc")
        if not signature.exists() or sorted(home.signers(signature, path)) != sorted(signers):
            files.write(signature, home.sign(signers, "--detach-sign", path.read_bytes()))
    for signature in repository.pool.rglob("*.deb.asc"):
        if not signature.with_suffix("").exists():
            signature.unlink()
