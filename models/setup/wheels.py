"""Fetches wheels with pip, by exact version and hash, and keeps each finished one.

pip's own configuration decides the index, mirror, proxy and certificates. A newer pip, itself pinned, does the work, because only
since 25.1 does pip continue a download after a broken connection.
"""
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from progress import Failure, Progress, size


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Wheels:
    def __init__(self, downloads, scratch, pip_folder):
        self.downloads, self.scratch, self.pip_folder = downloads, scratch, pip_folder

    def get(self, requirement, hashes, target=None):
        """The wheel of `name==version` with one of the HASHES; for this Python, or for another in TARGET, as arguments of pip."""
        kept = self.find(self.downloads, requirement, hashes, any_python=target is not None)
        return kept or self.download(requirement, hashes, target or [])

    def find(self, folder, requirement, hashes, any_python):
        name, version = requirement.split("==")
        for path in sorted(folder.glob(f"{re.sub('[-_.]', '[-_.]', name)}-{version}-*.whl")):
            if sha256(path) in hashes and (any_python or self.fits(path.name)):
                return path
        return None

    def fits(self, filename):
        if filename.endswith("-none-any.whl"):
            return True
        packaging = self.packaging()
        return any(tag in packaging.utils.parse_wheel_filename(filename)[3] for tag in packaging.tags.sys_tags())

    def packaging(self):
        """The library for wheel tags and environment markers, which is part of pip."""
        if str(self.pip_folder) not in sys.path:
            sys.path.insert(0, str(self.pip_folder))
        from pip._vendor import packaging
        from pip._vendor.packaging import markers, tags, utils  # noqa: F401 (makes them attributes of the package)
        return packaging

    def download(self, requirement, hashes, target):
        # An interrupted pip leaves a partial wheel in its destination, so only a verified one moves to the others.
        arrived = self.scratch / "wheel"
        arrived.mkdir(parents=True, exist_ok=True)
        pinned = self.scratch / "requirement.txt"
        pinned.write_text(f"{requirement} {' '.join(f'--hash=sha256:{value}' for value in hashes)}\n")
        arguments = ["download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", arrived, *target, "-r", pinned]
        if self.pip_folder.exists():
            arguments += ["--progress-bar", "raw", "--retries", "5", "--resume-retries", "50"]
        with Progress(f"download {requirement.replace('==', ' ')}") as progress:
            self.pip(arguments, progress)
            wheel = self.find(arrived, requirement, hashes, any_python=True)
            if not wheel:
                raise Failure(f"the downloaded {requirement} has none of the expected hashes, so it was not used.")
            progress.done(size(wheel.stat().st_size))
        kept = self.downloads / wheel.name
        os.replace(wheel, kept)
        return kept

    def pip(self, arguments, progress=None, environment=()):
        # pip's temporary files go next to ours: /tmp may be small, and the next run clears those of an interrupted one.
        env = dict(os.environ, TMPDIR=str(self.scratch), PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", **dict(environment))
        if self.pip_folder.exists():
            env["PYTHONPATH"] = str(self.pip_folder)
        words = []
        with subprocess.Popen(
                [sys.executable, "-m", "pip", *map(str, arguments)], env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            try:
                for line in process.stdout:
                    part = re.match(r"Progress (\d+) of (\d+)", line)
                    if part and progress:
                        progress.bytes(int(part[1]), int(part[2]))
                    elif not part and "WARNING: Retrying" not in line:
                        words.append(line.rstrip()[:200])
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            tail = "\n".join("    " + line for line in words[-8:])
            raise Failure(
                f"pip could not do it. Its last words:\n{tail}\n\n"
                "Is the network reachable? Behind a proxy or a mirror, tell pip (`pip config set`): this uses pip's settings.\n"
                "What has been downloaded is kept: run the same command again to go on.")


def requirements(path, packaging):
    """[(name==version, hashes)] of a requirements file: those whose marker is true here."""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        head, *hashes = line.split("--hash=sha256:")
        requirement, _, marker = (part.strip() for part in head.partition(";"))
        if not marker or packaging.markers.Marker(marker).evaluate():
            yield requirement, [value.strip() for value in hashes]


def members(wheel, patterns):
    """Yields (name, content) of the files of a wheel; each pattern must find at least one."""
    with zipfile.ZipFile(wheel) as archive:
        for pattern in patterns:
            names = [name for name in archive.namelist() if Path(name).match(pattern)]
            if not names:
                raise Failure(f"{wheel.name} has no file {pattern}.")
            for name in names:
                yield name, archive.read(name)
