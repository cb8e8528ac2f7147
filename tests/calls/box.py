"""A daemon over a temporary root: models, settings and feature views, keys, start and end."""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

# Starting, loading and stopping take far less, also on a busy machine.
COMMAND_TIMEOUT_S = 60


class Failure(Exception):
    """A reason why there is no recording."""


def setup_root():
    """The folder that `make setup-test` fills; LEDGE_TEST_ROOT can name another one."""
    root = Path(os.environ.get("LEDGE_TEST_ROOT", CHECKOUT / ".ledge"))
    for needed in ("runtimes", "models", "test-models", "tools/python-test"):
        if not (root / needed).is_dir():
            raise Failure(f"{root / needed} is missing: run `make setup-test`")
    return root


def model_folder(name):
    folders = [setup_root() / kind / name for kind in ("test-models", "models")]
    found = [folder for folder in folders if folder.is_dir()]
    if not found:
        raise Failure(f"no model {name} in {setup_root()}: run `make setup-test`")
    return found[0]


def environment():
    """The environment of this process without the variables that would configure the daemon."""
    dropped = ("JOURNAL_STREAM", "NOTIFY_SOCKET", "TZ")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEDGE_") and name not in dropped}
    return {**kept, "TZ": "UTC"}


class Log:
    """The log of a daemon, read by a thread."""

    def __init__(self, stream):
        self.lines, self.has_ended, self.changed = [], False, threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def wait_for(self, event, **fields):
        """The first line of this event with these fields."""
        deadline, seen = time.monotonic() + COMMAND_TIMEOUT_S, 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    found = _document(line) if event in line else {}
                    if found.get("event_name") == event and all(found.get(key) == value for key,
                        value in fields.items()):
                        return found
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self.has_ended or left <= 0:
                    raise Failure(f"no event {event!r} in:\n" + "\n".join(self.lines[-100:]))
                self.changed.wait(left)


def _document(line):
    try:
        return json.loads(line)
    except ValueError:
        return {}


class Box:
    """A root and its daemon. A `with` block stops the daemon at its end."""

    def __init__(self, ledge, folder, name):
        self.ledge, self.name, self.root = ledge, name, folder / name
        self.process, self.log, self.port, self.keys = None, None, None, {}
        (self.root / "models").mkdir(parents=True)
        (self.root / "runtimes").symlink_to(setup_root() / "runtimes")
        self.socket = self.root / "ledge.sock"

    def model(self, source, name=None, config=None, version="1"):
        """Adds a model of the set-up, under its own or another NAME; CONFIG replaces its model.toml."""
        folder = self.root / "models" / (name or source)
        if version == "1":
            shutil.copytree(model_folder(source), folder)
        else:
            shutil.copytree(model_folder(source) / "1", folder / version)
        if config is not None:
            (folder / "model.toml").write_text(config)

    def file(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def command(self, *words):
        return [self.ledge, *words, "--root", str(self.root)]

    def key(self, name, *options):
        """Makes an API key."""
        file = self.root / f"{name}.key"
        self.run("keys", "create", name, *options, "--output", str(file))
        self.keys[name] = file.read_text().strip()

    def run(self, *words):
        """A command that ends."""
        ended = subprocess.run(self.command(*words), env=environment(), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        if ended.returncode:
            raise Failure(f"`ledge {' '.join(words)}` failed: {ended.stderr or ended.stdout}")

    def start(self):
        """Starts the daemon and waits until it has loaded all models."""
        self.process = subprocess.Popen(
            self.command("serve"), env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace")
        self.log = Log(self.process.stderr)
        self.log.wait_for("daemon.ready")
        self.log.wait_for("repository.read")
        self.port = self.port_of("http")

    def port_of(self, scheme):
        """The TCP port of `http` or `https`."""
        return int(self.log.wait_for("listener.listening", scheme=scheme)["address"].rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process is None:
            return
        if kind and issubclass(kind, Exception):
            print("The end of the daemon's log:", *self.log.lines[-20:], sep="\n", file=sys.stderr)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
