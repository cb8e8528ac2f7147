"""Fetches packages with npm, by exact version and hash, and keeps each finished one.

npm's own configuration decides the registry, proxy and certificates. Nothing of a package is installed or run.
"""
import os
import re
import shutil
import subprocess

from progress import Failure, Progress, size
from wheels import sha256


class NpmPackages:
    def __init__(self, downloads, scratch):
        self.downloads, self.scratch = downloads, scratch

    def can_get(self, package, pinned):
        """Tells whether npm is here, or the package already is."""
        return bool(shutil.which("npm") or self.kept(package, pinned))

    def get(self, package, pinned):
        """The archive of `@scope/name@version` with the hash PINNED."""
        return self.kept(package, pinned) or self.download(package, pinned)

    def kept(self, package, pinned):
        path = self.downloads / file_name(package)
        return path if path.exists() and sha256(path) == pinned else None

    def download(self, package, pinned):
        # Also the working folder, so that no .npmrc of the checkout counts. npm's cache goes there too: this writes nothing
        # outside .ledge/.
        arrived = self.scratch / "npm"
        arrived.mkdir(parents=True, exist_ok=True)
        with Progress(f"download {package}") as progress:
            result = subprocess.run(
                ["npm", "pack", package, "--pack-destination", arrived, "--cache", arrived / "cache", "--ignore-scripts",
                 "--no-update-notifier", "--loglevel=error"],
                cwd=arrived, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace")
            path = arrived / file_name(package)
            if result.returncode or not path.exists():
                tail = "\n".join("    " + line for line in result.stdout.strip().splitlines()[-8:])
                raise Failure(
                    f"npm could not download {package}. Its last lines:\n{tail}\n\n"
                    "Is the network reachable? Behind a proxy or a mirror, tell npm (`npm config set`): this uses npm's settings.")
            if sha256(path) != pinned:
                raise Failure(f"the downloaded {package} does not have the expected hash, so it was not used.")
            progress.done(size(path.stat().st_size))
        kept = self.downloads / path.name
        os.replace(path, kept)
        return kept


def file_name(package):
    """The name that npm gives the archive: scope-name-version.tgz."""
    return re.sub("[/@]", "-", package.removeprefix("@")) + ".tgz"
