"""Boxes with the real daemon, each below a root of its own, and a platform below another, for tests that last minutes."""
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sites import LIMIT_S, Site, until  # noqa: E402
from support import REPOSITORY, daemon_environment, ledge  # noqa: E402

from ledge_platform.boxes import inviting  # noqa: E402
from ledge_platform.boxes.store import Store  # noqa: E402

RUNTIMES = REPOSITORY / ".ledge/runtimes"
LIBRARY = "faketime/libfaketimeMT.so.1"
DAY = 86_400


def clock_in(file):
    """The environment in which a program has the clock of a file: `+31d`, or `@1970-01-01 00:00:01`."""
    found = [folder / LIBRARY for folder in Path("/usr/lib").iterdir() if (folder / LIBRARY).is_file()]
    if not found:
        raise AssertionError("faketime is not installed: `tests/peers/setup`, or apt install faketime")
    # Monotonic clocks go on as they do, or nothing that waits would end; and files keep their times.
    return {"LD_PRELOAD": str(found[0]), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}


def end(process, with_signal=signal.SIGTERM):
    if process.poll() is None:
        process.send_signal(with_signal)
        process.wait(LIMIT_S)


class RealBox:
    """One box: its root, and its daemon while that runs."""

    def __init__(self, folder, settings="", clock=None):
        self.root, self.daemon, self.clock = folder, None, clock
        (folder / "models").mkdir(parents=True)
        (folder / "runtimes").symlink_to(RUNTIMES)
        (folder / "ledge.toml").write_text(f'[http]\nlisten = ["unix:ledge.sock"]\n{settings}')
        self.log_file = folder.with_name(folder.name + ".log")

    @property
    def environment(self):
        return daemon_environment(**(clock_in(self.clock) if self.clock else {}))

    def run(self, *words, ends=0):
        """What a verb of `ledge` prints. ENDS is the status that it must end with; None: any."""
        status, text = self.ask(*words)
        if ends is not None and status != ends:
            raise AssertionError(f"{words}: status {status}: {text}")
        return text

    def ask(self, *words):
        """(status, what it prints)."""
        done = subprocess.run(
            [ledge(), *map(str, words), "--root", self.root], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self.environment, timeout=120)
        return done.returncode, done.stdout

    def join(self, file, fingerprint, *more, ends=0):
        return self.run("join", "--wait", 0, "--fingerprint", fingerprint, *more, file, ends=ends)

    def start(self):
        with open(self.log_file, "a") as log:
            self.daemon = subprocess.Popen([ledge(), "serve", "--root", self.root], stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log, env=self.environment)
        until((self.root / "ledge.sock").exists, "the daemon does not start", self.daemon, self.log_file)

    def stop(self, with_signal=signal.SIGTERM):
        if self.daemon:
            end(self.daemon, with_signal)
            self.daemon = None
            (self.root / "ledge.sock").unlink(missing_ok=True)

    def start_again(self):
        self.stop()
        self.start()

    @property
    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def says(self, text, since=0, longest_s=90):
        """Waits until the log has a text after its first SINCE characters."""
        deadline = time.monotonic() + longest_s
        while text not in self.log[since:]:
            if time.monotonic() > deadline or self.daemon and self.daemon.poll() is not None:
                raise AssertionError(f"the log of {self.root.name} does not say {text!r}:\n{self.log[since:][-6000:]}")
            time.sleep(0.1)

    def doctor(self):
        """The line of `ledge doctor` about the membership."""
        return "\n".join(line for line in self.run("doctor", ends=None).splitlines() if "membership" in line)

    def certificate(self):
        """The bytes of the certificate with its key; None before there is one."""
        file = self.root / "membership/identity.pem"
        return file.read_bytes() if file.exists() else None

    def tree(self):
        """{path: content} of the whole root, without sockets."""
        return {str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else None
                for path in sorted(self.root.rglob("*")) if not path.is_socket()}


class Boxes(Site):
    """A platform with its servers, and boxes that join it."""

    def setUp(self):
        super().setUp()
        for server in ("nginx", "mosquitto"):
            self.start(server)
        self.fingerprint = inviting.fingerprint(self.layout)

    def box(self, action, *words):
        return self.done("box", action, "--root", self.root, *words)

    def box_list(self):
        return self.box("list")

    def row(self, name):
        return next(line for line in self.box_list().splitlines() if line.split()[:1] == [name])

    def invited(self, name, *more):
        """The join file of a box."""
        out = self.folder / "join files"
        self.box("add", name, "--out", out, *more)
        return out / f"{name}.join"

    def new_box(self, name, settings="", clock=None):
        made = RealBox(self.folder / name, settings, clock)
        self.addCleanup(made.stop)
        return made

    def requests(self):
        return list(self.layout.requests.rglob("*.json"))

    def answered(self, box):
        """Runs `box answer` as the timer does, until this box has what it asked for. Returns what it printed."""
        since = len(box.log)
        until(self.requests, "no request came", box.daemon, box.log_file)
        text = self.box("answer")
        box.says("with a certificate until", since)
        return text

    def member(self, name, settings="", clock=None):
        """A box that runs and has joined."""
        box = self.new_box(name, settings, clock)
        box.join(self.invited(name), self.fingerprint)
        box.start()
        self.answered(box)
        return box

    @property
    def state(self):
        return Store(self.layout.boxes).load()
