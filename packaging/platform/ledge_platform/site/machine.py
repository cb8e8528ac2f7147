"""What this machine has: users, programs, and systemd."""
import grp
import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from ..errors import Failure
from .layout import OWN

PLATFORM_USER, BROKER_USER, SCRAPER_USER = "ledge-platform", "mosquitto", "prometheus"
WEB_USERS = ("www-data", "nginx")
# Debian puts servers where not every user's PATH leads.
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PACKAGES = {"nginx": "nginx-light", "mosquitto": "mosquitto", "useradd": "passwd", "usermod": "passwd"}


def program(name):
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Failure(f"{name} is not installed: apt install {PACKAGES.get(name, name)}, or the package of this system")
    return found


def run(*words):
    """(exit status, what it printed)."""
    words = [str(word) for word in words]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout.strip()


def must_run(*words):
    status, said = run(*words)
    if status:
        raise Failure(f"{' '.join(map(str, words))}: {said.splitlines()[-1] if said else f'status {status}'}")
    return said


def has_systemd(layout):
    """True where `init` may start services."""
    return not layout.is_trial and Path("/run/systemd/system").is_dir()


def has_ipv6():
    return socket.has_ipv6 and Path("/proc/net/if_inet6").exists()


def tool():
    """The command of this tool, as services run it."""
    package = Path(__file__).resolve().parents[1]
    installed = Path(sys.prefix) / "bin/ledge-platform"
    if package.is_relative_to(Path(sys.prefix).resolve()) and installed.exists():
        return installed
    return Path("/opt/ledge-platform/bin/ledge-platform")


def has_user(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class Users:
    """Who owns what. Below another root than / all are the user who made it."""

    def __init__(self, layout):
        own = pwd.getpwuid(os.geteuid()).pw_name
        if layout.is_trial:
            self.root = self.platform = self.web = self.broker = self.scraper = own
            return
        self.root, self.platform = "root", PLATFORM_USER
        self.web = next(filter(has_user, WEB_USERS), None)
        if self.web is None:
            raise Failure(f"there is no user of nginx ({' or '.join(WEB_USERS)}): apt install nginx-light")
        self.broker = BROKER_USER if has_user(BROKER_USER) else "root"
        # A Prometheus on another machine has a copy of the files.
        self.scraper = SCRAPER_USER if has_user(SCRAPER_USER) else "root"
        if layout.broker == OWN and self.broker == "root":
            raise Failure(f"there is no user {BROKER_USER}: apt install mosquitto")

    def ids(self, user, group):
        """(user id, group id) of two of our names, such as "platform" and "web"."""
        person = pwd.getpwnam(getattr(self, user))
        other = getattr(self, group)
        try:
            return person.pw_uid, grp.getgrnam(other).gr_gid
        except KeyError:
            return person.pw_uid, pwd.getpwnam(other).pw_gid


def make_user(layout):
    """The platform's own user, who may read what nginx's user wrote. Returns lines to print."""
    if layout.is_trial:
        return []
    lines = []
    if has_user(PLATFORM_USER):
        lines.append(f"found the user {PLATFORM_USER}")
    else:
        must_run(
            program("useradd"), "--system", "--user-group", "--no-create-home", "--home-dir", layout.repository,
            "--shell", "/usr/sbin/nologin", "--comment", "Signs models and steers rollouts", PLATFORM_USER)
        lines.append(f"made the user {PLATFORM_USER}")
    web = Users(layout).web
    if PLATFORM_USER not in grp.getgrnam(web).gr_mem:
        must_run(program("usermod"), "--append", "--groups", web, PLATFORM_USER)
        lines.append(f"added {PLATFORM_USER} to the group {web}")
    return lines
