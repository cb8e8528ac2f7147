"""Booted Debians with systemd, several at once, in which a box is what its package makes of it.

They have networks of their own, with nothing but loopback. The ports of the platform are there, too: this process
listens on them in the network of the machine, and passes on every byte. `tests/peers/machine.rs` boots the same files.
"""
import ctypes
import fcntl
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from real import RUNTIMES

from packages import must
from support import REPOSITORY, installed, ledge

PEERS = Path(os.environ.get("LEDGE_TEST_ROOT") or REPOSITORY / ".ledge") / "peers"
PACKAGES = "/mnt/packages"
BOOT_LIMIT_S = 180
CLONE_NEWNET = 0x40000000


def build_slim(folder):
    """The package `ledge-slim` of the program of these tests."""
    stripped = folder / "program" / "ledge"
    stripped.parent.mkdir()
    must("strip", "-o", stripped, ledge())
    must(os.environ.get("PYTHON") or "python3", REPOSITORY / "packaging/build", "deb", "--fast", "--any-glibc",
         "--binary", stripped, "--output", folder, "--variant", "slim", cwd=REPOSITORY)
    made, = folder.glob("ledge-slim_*.deb")
    return made


def make_root():
    """The files that machines begin with, made once; `tests/peers/machine.rs` has the same."""
    root, fresh = PEERS / "debian-systemd", PEERS / "debian-systemd.new"
    PEERS.mkdir(parents=True, exist_ok=True)
    with open(PEERS / "debian-systemd.lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if (root / "usr/bin/curl").is_file():
            return
        # The release of this machine where that is a Debian, because its programs run in there.
        release = platform.freedesktop_os_release()
        suite = release.get("VERSION_CODENAME") if release.get("ID") == "debian" else None
        for folder in (root, fresh):
            shutil.rmtree(folder, ignore_errors=True)
        included = "--include=systemd,systemd-sysv,dbus,curl"
        must(installed("debootstrap"), "--variant=minbase", included, suite or "bookworm", fresh)
        fresh.rename(root)


class Machine:
    """A box with an installed package. What it writes is gone with it."""

    def __init__(self, name, packages):
        self.name, self.init, self.listeners = name, None, []
        binds = [f"--bind-ro={packages}:{PACKAGES}", f"--bind-ro={RUNTIMES.resolve()}:/usr/lib/ledge/runtimes"]
        self.container = subprocess.Popen(
            [installed("systemd-nspawn"), "-D", PEERS / "debian-systemd", f"--machine={name}", "--register=no",
             "--keep-unit", "--private-network", "--volatile=overlay", "--boot", "--quiet", *binds,
             "systemd.mask=apt-daily.timer", "systemd.mask=apt-daily-upgrade.timer"],
            # Each has files of its own above those that they share.
            env={**os.environ, "SYSTEMD_NSPAWN_LOCK": "0"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + BOOT_LIMIT_S
        while not (self.find_init() and self.ask("systemctl is-system-running").stdout.strip() == "running"):
            if self.container.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"{name} does not boot")
            time.sleep(0.2)

    def find_init(self):
        children = Path(f"/proc/{self.container.pid}/task/{self.container.pid}/children").read_text().split()
        self.init = int(children[0]) if children else None
        return self.init

    def enter(self, *words):
        return [installed("nsenter"), "--all", "--target", str(self.init), "--", "env", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *words]

    def ask(self, line):
        return subprocess.run(self.enter("sh", "-ec", line), text=True, stdin=subprocess.DEVNULL, capture_output=True)

    def line(self, line):
        done = self.ask(line)
        if done.returncode:
            raise AssertionError(f"{self.name}: {line}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def forward(self, port):
        """Listens on a port of its loopback for the server on the same port of this machine."""
        listeners = []

        def listen():
            # A thread of its own: whoever is in another network stays there.
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self.init}/ns/net") as network:
                if not libc.setns(network.fileno(), CLONE_NEWNET):
                    listeners.append(socket.create_server(("127.0.0.1", port)))

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        listener, = listeners
        self.listeners.append(listener)
        threading.Thread(target=pass_on_all, args=(listener, port), daemon=True).start()

    def end(self):
        for listener in self.listeners:
            listener.close()
        if self.init:
            os.kill(self.init, signal.SIGKILL)
        else:
            self.container.kill()
        self.container.wait()

    @property
    def log(self):
        """The lines of the daemon, each after its time."""
        lines = self.line("journalctl -u ledge --utc -o short-iso-precise --no-pager").splitlines()
        return "\n".join(re.sub(r"^(\S+?)(\.\d+)?\+00:?00 \S+ \S+ ", r"\1Z ", line) for line in lines)

    def proc(self, file):
        """A file of the daemon in /proc."""
        return self.line(f"cat /proc/$(systemctl show ledge --value -p MainPID)/{file}")


def pass_on_all(listener, port):
    while True:
        try:
            one, _ = listener.accept()
        except OSError:
            return
        try:
            other = socket.create_connection(("127.0.0.1", port))
        except OSError:
            one.close()
            continue
        threading.Thread(target=connect, args=(one, other), daemon=True).start()


def connect(one, other):
    with one, other:
        back = threading.Thread(target=pass_on, args=(other, one), daemon=True)
        back.start()
        pass_on(one, other)
        back.join()


def pass_on(source, destination):
    try:
        while content := source.recv(1 << 16):
            destination.sendall(content)
        destination.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, destination):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
