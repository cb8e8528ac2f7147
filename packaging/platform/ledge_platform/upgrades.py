"""Packages of Ledge itself as releases: `packages/NAME/RELEASE`, which root's service on a box installs.

A box goes back to the package that it had. Therefore that has to be signed, too: the first release is the version that
boxes have now, and the release before the newest stays.
"""
import re

from . import names, release
from .errors import Failure
from .packages import adding


def described(paths):
    """(name, {file name: path}, description) of packages that are one version of one program."""
    packages = [adding.read(path) for path in paths]
    for path, package in zip(paths, packages):
        adding.check(path, package)
    found = sorted({package.name for package in packages})
    if len(found) > 1:
        raise Failure(f"these are packages of {', '.join(found)}: a release is of one")
    places = [(package.kind, package.architecture) for package in packages]
    for place in places:
        if places.count(place) > 1:
            raise Failure(f"two of them are a {place[0]} for {place[1]}")
    versions = sorted({upstream(package.version) for package in packages})
    if len(versions) > 1:
        raise Failure(f"they have the versions {' and '.join(versions)}: a release is of one")
    files = {file_name(package): path for path, package in zip(paths, packages)}
    rows = [{"file": file_name(package), "format": package.kind, "architecture": package.architecture,
             "version": package.version.removeprefix("0:")} for package in packages]
    described_packages = {"name": found[0], "version": versions[0], "files": sorted(rows, key=lambda row: row["file"])}
    return found[0], files, {"semantic_version": versions[0].replace("~", "-"), "package": described_packages}


def file_name(package):
    """The name of the file as a target. 0.2.0~rc1 is a version of packages, and `~` is in no name of a target."""
    return re.sub(r"[~+^]", "-", package.file_name)


def upstream(version):
    """0.2.0 of 0.2.0-1 and of 0:0.2.0-1."""
    version = version.removeprefix("0:")
    return version.rpartition("-")[0] or version


def others(repository, version):
    """[(release, its packages)] of the same program, the newest last."""
    if not repository.has(names.PACKAGES):
        return []
    return [(other, description["package"]) for other, description, _ in release.listing(repository, names.PACKAGES)
            if other.subject == version.subject and other != version]


def refuse_older(repository, version, package):
    """A release is newer than all with a lower number, and older than all with a higher one: boxes refuse a package that
    is not newer than theirs.
    """
    for other, there in others(repository, version):
        higher, lower = (package, there) if other.version < version.version else (there, package)
        pairs = [(one, two) for one in higher["files"] for two in lower["files"]]
        # The two formats write one version alike, so any two can be compared where no two are of one format.
        alike = [(one, two) for one, two in pairs if one["format"] == two["format"]]
        for one, two in alike or pairs:
            kind = one["format"] if alike else "deb"
            if adding.compare(kind, one["version"], two["version"]) > 0:
                continue
            if higher is package:
                raise Failure(f"{one['file']} is not newer than {two['version']} of {other}: boxes would refuse it")
            raise Failure(f"{two['file']} is not older than {one['version']} of {other}: the higher number is for the newer version")


def refuse_way_back(repository, version, manifests):
    """The release before the newest is the way back of boxes, and so is the one before any that is rolled out."""
    there = [other for other, _ in others(repository, version)]
    newer = [other for other in there if other.version > version.version]
    if len(newer) == 1:
        raise Failure(f"{version} is the way back from {newer[0]}: it stays until there is a newer one")
    for manifest in manifests:
        for rollout in manifest["rollouts"]:
            if newer and names.release(rollout["target"]) == newer[0]:
                raise Failure(
                    f"{version} is the way back from {newer[0]}, which rollout {rollout['id']} of fleet {manifest['fleet']} "
                    "names: stop that first"
                )


def refuse_without_way_back(repository, version):
    if not any(other.version < version.version for other, _ in others(repository, version)):
        first = "as release 1"
        if version.version == 1:
            first = "as release 1, and this one, after `upgrade remove`, as release 2"
        raise Failure(
            f"{version} has no release before it, so boxes would have no way back: sign the version that they have now "
            f"{first} (`ledge-platform upgrade add {repository.folder} 1 FILE...`)"
        )
