"""A supplier of Ledge: repositories of the packages, one of them at a time at https://packages.example.com.

nginx serves it, by the lines of the platform's README. The address is in a network and a file tree of these tests: nothing
else can be reached there, and nothing of this machine changes.
"""
import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from certificates import Authority  # noqa: E402
from packages import DAY, must  # noqa: E402
from support import REPOSITORY, Verbs, installed  # noqa: E402

sys.path.append(str(REPOSITORY / "tests"))
import pages  # noqa: E402
from pages import fences  # noqa: E402

HOST = "packages.example.com"
ADDRESS = f"https://{HOST}"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CONFIGURATION = """\
daemon off; user root; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{ access_log {folder}/access.log;
{server}
}}
"""
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
LIMIT_S = 30
KIT = Verbs()


def commands(document, heading, containing):
    """The commands in the one fence of a section that contains a text."""
    fence, = (fence for fence in fences(document, heading) if containing in fence)
    return pages.commands(fence)


def leave_the_network(hosts, certificates):
    """This process and those that it starts get a network of their own, in which these files are /etc/hosts and the trusted
    certificates."""
    # Python has os.unshare since 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
        raise AssertionError(f"unshare: {os.strerror(ctypes.get_errno())}: these tests run as root")
    must("mount", "--make-rprivate", "/")
    must("mount", "--bind", hosts, "/etc/hosts")
    must("mount", "--bind", certificates, BUNDLE)
    must(installed("ip"), "link", "set", "lo", "up")

# As the platform's README says: by HTTPS, and without names that begin with a dot.
SERVER = """
server {{
    listen 443 ssl;
    server_name {host};
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    root {public};
    location ~ /\\. {{ deny all; }}
}}
"""


class Supplier:
    def __init__(self, folder):
        self.folder, self.public = folder, folder / "public"
        authority = Authority(folder, "supplier-ca")
        self.authority = authority.file
        hosts, bundle = folder / "hosts", folder / "bundle.crt"
        hosts.write_text(f"127.0.0.1 localhost {HOST}\n")
        bundle.write_bytes(BUNDLE.read_bytes() + self.authority.read_bytes())
        leave_the_network(hosts, bundle)

        certificate, key = authority.issue("server")
        server = SERVER.format(host=HOST, certificate=certificate, key=key, public=self.public)
        (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, server=server))
        self.nginx = subprocess.Popen([installed("nginx"), "-c", folder / "nginx.conf", "-e", folder / "error.log"])
        deadline = time.monotonic() + LIMIT_S
        while not (folder / "nginx.pid").exists():
            if self.nginx.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((folder / "error.log").read_text())
            time.sleep(0.05)

    def end(self):
        self.nginx.terminate()
        self.nginx.wait(LIMIT_S)

    def make(self, name, packages, *more, days_ago=0):
        """(folder, fingerprint) of a repository as the platform's README makes it."""
        folder, keys = self.folder / name, self.folder / f"{name}-keys"
        with KIT.at(-days_ago * DAY):
            said = KIT.done(
                "package", "init", folder, "--keys", keys, "--address", ADDRESS, "--origin", "Example",
                "--maintainer", "Example packages <packages@example.com>", *more)
        fingerprint = re.search(r"fingerprint: (\w+)", said)[1]
        self.add(folder, keys, packages, days_ago)
        return folder, fingerprint

    def add(self, folder, keys, packages, days_ago=0):
        with KIT.at(-days_ago * DAY):
            KIT.done("package", "add", folder, *packages)
            KIT.done("package", "publish", folder, "--keys", keys)

    def changed(self, name, repository, *patterns):
        """A copy of a repository in which each of these files has another byte."""
        copied = self.copy(name, repository)
        for path in [path for pattern in patterns for path in copied.rglob(pattern) if path.is_file()]:
            content = bytearray(path.read_bytes())
            content[len(content) // 4] ^= 1
            path.unlink()  # and not the content that the copies share
            path.write_bytes(content)
        return copied

    def copy(self, name, repository):
        copied = self.folder / name
        must("cp", "-al", repository, copied)
        return copied

    def show(self, repository):
        """What clients get from now on."""
        link = self.folder / "next"
        link.symlink_to(repository)
        os.replace(link, self.public)
