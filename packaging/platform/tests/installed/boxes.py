"""A bare Debian that packages are installed in, and its daemon, which has no network at all."""
import os
import signal
import subprocess
import time
from pathlib import Path

from supplier import LIMIT_S, installed, must

from support import REPOSITORY

ROOTS = Path(os.environ.get("LEDGE_TEST_ROOT") or REPOSITORY / ".ledge") / "peers"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive"}


class Box:
    """As debootstrap made it, with a certificate that its owner trusts, and with the name of the supplier."""

    def __init__(self, folder, suite, supplier):
        archive = ROOTS / f"bare-{suite}.tar.gz"
        if not archive.is_file():
            raise AssertionError(f"{archive} is missing: `make setup-root` makes it")
        self.root = folder
        folder.mkdir()
        must("tar", "-C", folder, "-xzf", archive)
        self.path("etc/hosts").write_bytes(Path("/etc/hosts").read_bytes())
        # Debian's own servers are not there: apt goes on with what it knows of them, at once.
        self.path("etc/apt/apt.conf.d/retries").write_text('Acquire::Retries "0";\n')
        trusted = self.path("usr/local/share/ca-certificates")
        trusted.mkdir(parents=True, exist_ok=True)
        (trusted / "supplier.crt").write_bytes(supplier.authority.read_bytes())

    def path(self, path):
        return self.root / path.lstrip("/")

    def try_line(self, line):
        """Runs a line as root in its shell, and answers yes if it asks."""
        return run(
            installed("unshare"), "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.path('proc')}",
            "chroot", self.root, "sh", "-c", line)

    def line(self, line):
        return good(line, self.try_line(line))

    def content(self, folder):
        """{path: bytes} of the files below a folder."""
        return {path: path.read_bytes() for path in sorted(self.path(folder).rglob("*")) if path.is_file()}


class Serving:
    """The daemon of a box, as its user, as the unit has it."""

    def __init__(self, box):
        self.box = box
        state = box.path("/var/lib/ledge").stat()
        # As systemd would make it.
        runtime = box.path("/run/ledge")
        runtime.mkdir(mode=0o755, exist_ok=True)
        os.chown(runtime, state.st_uid, state.st_gid)
        self.log = box.path("/tmp/serve.log")
        inside = 'ip link set lo up; exec chroot --userspec=ledge:ledge "$0" /usr/bin/ledge serve'
        with open(self.log, "w") as log:
            self.parent = subprocess.Popen(
                [installed("unshare"), "--mount", "--net", "--pid", "--fork", "--kill-child", f"--mount-proc={box.path('proc')}",
                 "sh", "-c", inside, box.root], env={"PATH": ENVIRONMENT["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        deadline = time.monotonic() + 4 * LIMIT_S
        while self.try_line("curl -sf 127.0.0.1:8000/v2/health/ready").returncode:
            if self.parent.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(self.log.read_text())
            time.sleep(0.2)
        return self

    def __exit__(self, error, *_):
        if error:
            self.kill()
            return
        os.kill(self.daemon(), signal.SIGTERM)
        if self.parent.wait(LIMIT_S):
            raise AssertionError(self.log.read_text())

    def kill(self):
        # It has another user than `unshare`, with which it would end otherwise.
        if daemon := self.daemon():
            os.kill(daemon, signal.SIGKILL)
        self.parent.kill()
        self.parent.wait(LIMIT_S)

    def daemon(self):
        """The process that `unshare` has started, as long as there is one."""
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children")
        return int(children.read_text() or 0) if self.parent.poll() is None else 0

    def try_line(self, line):
        """Runs a line next to the daemon, in its network."""
        return run(installed("nsenter"), "--target", self.daemon(), "--net", "chroot", self.box.root, "sh", "-c", line)

    def line(self, line):
        return good(line, self.try_line(line))


def run(*words):
    return subprocess.run([str(word) for word in words], input="y\n", capture_output=True, text=True, env=ENVIRONMENT)


def good(line, done):
    if done.returncode:
        raise AssertionError(f"{line}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
