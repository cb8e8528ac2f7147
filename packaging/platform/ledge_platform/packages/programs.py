"""Runs the programs of GnuPG, Debian and rpm that make packages and their indexes."""
import os
import shutil
import subprocess

from ..errors import Failure

DEBIAN_PACKAGES = {
    "gpg": "gpg",
    "gpg-agent": "gpg-agent",
    "gpgconf": "gpgconf",
    "dpkg": "dpkg",
    "dpkg-deb": "dpkg",
    "apt-ftparchive": "apt-utils",
    "createrepo_c": "createrepo-c",
    "rpm": "rpm",
    "rpmkeys": "rpm",
    "rpmsign": "rpm",
}


def find(program):
    found = shutil.which(program)
    if found is None:
        raise Failure(
            f"{program} is not installed, and packages need it: Debian and Ubuntu: apt install {DEBIAN_PACKAGES[program]}")
    return found


def run(program, *arguments, content=b"", folder=None, home=None, accepted=(0,)):
    """(exit status, stdout) of a program that reads CONTENT; another status than those ACCEPTED is a failure."""
    # Passphrases of the platform are not for it, nor settings of the user for a signature.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("LEDGE_PLATFORM_") and name not in ("GNUPGHOME", "SOURCE_DATE_EPOCH")}
    environment["LC_ALL"] = "C.UTF-8"
    if home:
        environment["HOME"] = str(home)
    done = subprocess.run(
        [find(program), *map(str, arguments)], input=content, capture_output=True, cwd=folder, env=environment)
    if done.returncode not in accepted:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise Failure(f"{program}: {said[-1] if said else f'it ended with status {done.returncode}'}")
    return done.returncode, done.stdout
