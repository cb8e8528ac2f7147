"""Checks that boxes will accept a repository: python-tuf's own client goes through it, from the root that a box has."""
import json
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuf.api.exceptions import DownloadError, DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from . import manifest, names, repository
from .errors import Refused
from .release import description_of


class FolderFetcher(FetcherInterface):
    """Reads file:// addresses, as a box does that gets its updates by a stick."""

    def _fetch(self, url):
        path = Path(unquote(urlsplit(url).path))
        try:
            yield path.read_bytes()
        except OSError as error:
            raise DownloadHTTPError(f"{path}: {error.strerror}", 404) from None


def verify(address, root, download=True):
    """Goes from ROOT (bytes) through all that ADDRESS (file://..., https://...) serves. Returns the findings."""
    fetcher = FolderFetcher() if address.startswith("file://") else None
    config = UpdaterConfig(app_user_agent="ledge-platform")
    with tempfile.TemporaryDirectory(prefix="ledge-platform-") as scratch:
        cache = Path(scratch)
        (cache / "targets").mkdir()
        try:
            client = Updater(
                scratch,
                f"{address}/metadata/",
                str(cache / "targets"),
                f"{address}/targets/",
                fetcher=fetcher,
                config=config,
                bootstrap=root,
            )
            client.refresh()
            # Brings the metadata of the delegated roles.
            for probe in ("models/-/1/-", "packages/-/1/-", "fleet/-/-"):
                client.get_targetinfo(probe)
            there = [role for role in repository.ROLES if (cache / f"{role}.json").exists()]
            roles = {role: Metadata.from_file(str(cache / f"{role}.json")).signed for role in there}
            found = check_roles(client, roles, download)
        except (RepositoryError, DownloadError) as error:
            raise Refused(f"a box would not take it: {repository.first_line(error)}") from None
    versions = ", ".join(f"{role} {signed.version}" for role, signed in roles.items())
    return [f"good: {versions}", *found]


def check_roles(client, roles, download):
    """Every target resolves through the role that must sign it, and equals its signed description."""
    if roles["targets"].targets:
        raise Refused("the role targets lists targets of its own: boxes take none from it")
    for role in filter(roles.get, ("models", "packages", "fleet")):
        for path in roles[role].targets:
            target = client.get_targetinfo(path)
            if target != roles[role].targets[path]:
                raise Refused(f"{path} is listed by {role} and does not resolve through it")
            if download:
                client.download_target(target)
    signed = {**roles["models"].targets, **(roles["packages"].targets if "packages" in roles else {})}
    releases = check_releases(signed)
    lines = [f"{len(releases)} releases, {len(signed)} files"]
    for path, target in roles["fleet"].targets.items():
        content = Path(client.download_target(target)).read_bytes()
        lines.append(check_manifest(path, manifest.decode(content), releases))
    return lines


def check_releases(targets):
    """{main file: description}; every file of a version must belong to it."""
    releases = {path: description for path, target in targets.items() if (description := description_of(target))}
    known = set()
    for path, description in releases.items():
        files = {names.release(path).path(file) for file in description["files"]}
        absent = files - set(targets)
        if absent:
            raise Refused(f"{path} names {', '.join(sorted(absent))}, which is not signed")
        known |= files | {path}
    stray = set(targets) - known
    if stray:
        raise Refused(f"{', '.join(sorted(stray))}: of no release")
    return releases


def check_manifest(path, content, releases):
    if path != manifest.path(content["fleet"]):
        raise Refused(f"{path} is the manifest of the fleet {content['fleet']}")
    for rollout in content["rollouts"]:
        if rollout["target"] not in releases:
            raise Refused(
                f"fleet {content['fleet']}: rollout {rollout['id']} names "
                f"{rollout['target']}, which is not signed"
            )
    states = [
        f"{rollout['id']} ({'paused' if rollout.get('paused') else json.dumps(rollout['waves'])})"
        for rollout in content["rollouts"]
    ]
    return f"fleet {content['fleet']}: {', '.join(states) or 'no rollout'}"
