"""Packages of Ledge itself as releases: `packages/NAME/RELEASE`, which root's service on a box installs.

A box goes back to the package that it had. Therefore that has to be signed, too: the first release is the version that
boxes have now, and the release before the newest stays.
"""
from . import release
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
    files = {package.file_name: path for path, package in zip(paths, packages)}
    rows = [{"file": package.file_name, "format": package.kind, "architecture": package.architecture,
             "version": package.version.removeprefix("0:")} for package in packages]
    return found[0], files, {"package": {"name": found[0], "version": versions[0], "files": rows}}


def upstream(version):
    """0.2.0 of 0.2.0-1 and of 0:0.2.0-1."""
    return version.removeprefix("0:").rpartition("-")[0] or version


def earlier(repository, version):
    """[(release, its packages)] of the same program, the newest last."""
    if not repository.exists("packages"):
        return []
    return [(other, description["package"]) for other, description, _ in release.listing(repository, "packages")
            if other.subject == version.subject and other != version]


def refuse_older(repository, version, package):
    """Boxes refuse a package that is not newer than theirs."""
    for other, before in earlier(repository, version):
        if other.version > version.version:
            raise Failure(f"{other} is signed already: a release has a higher number than those before")
        for row in package["files"]:
            same = [each for each in before["files"] if (each["format"], each["architecture"]) == (row["format"], row["architecture"])]
            if same and adding.compare(row["format"], row["version"], same[0]["version"]) <= 0:
                raise Failure(f"{row['file']} is not newer than {same[0]['version']} of {other}: boxes would refuse it")


def refuse_way_back(repository, version):
    """The release before the newest is the way back of boxes."""
    others = [other for other, _ in earlier(repository, version)]
    newer = [other for other in others if other.version > version.version]
    if len(newer) == 1:
        raise Failure(f"{version} is the way back from {newer[0]}: it stays until there is a newer one")


def refuse_without_way_back(repository, version):
    if version.subject.startswith("packages/") and not any(
        other.version < version.version for other, _ in earlier(repository, version)
    ):
        raise Failure(
            f"{version} has no release before it, so boxes would have no way back: sign the version that they have as an "
            "earlier release first (`ledge-platform upgrade add`)")
