"""Commands of this folder's programs, run in the checkout."""
import subprocess
from pathlib import Path

from failure import Failure

CHECKOUT = Path(__file__).resolve().parents[2]
# The packages of Debian with programs of other names, and those that Debian's users lack.
DEBIAN_PACKAGES = {"bwrap": "bubblewrap", "mmdebstrap": "mmdebstrap"}


def run(*command, stdout=None):
    try:
        done = subprocess.run([str(part) for part in command], cwd=CHECKOUT, check=True, stdout=stdout, text=True)
    except FileNotFoundError as error:
        package = DEBIAN_PACKAGES.get(error.filename)
        hint = f"; Debian and Ubuntu: apt install {package}" if package else ""
        raise Failure(f"{error.filename} is not installed{hint}") from error
    except subprocess.CalledProcessError as error:
        raise Failure(f"{' '.join(map(str, command))} failed with status {error.returncode}") from error
    return done.stdout


def output(*command):
    return run(*command, stdout=subprocess.PIPE).strip()
