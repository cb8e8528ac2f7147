"""Starting and stopping a server of any kind on a free loopback port."""
import http.client
import os
import signal
import socket
import subprocess
import time
from pathlib import Path


class NotReady(Exception):
    """A server that did not become ready, with the end of its log."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server process. `start` returns the seconds from spawning it to its first "ready"."""

    name = "server"
    ready_path = "/v2/health/ready"

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.process, self.ready_after = None, None, None

    def command(self):
        """The command line and the environment's additions."""
        raise NotImplementedError

    @property
    def pid(self):
        return self.process.pid

    def start(self, timeout=120):
        self.port = free_port()
        arguments, environment = self.command()
        with open(self.folder / "server.log", "wb") as log:
            started = time.perf_counter()
            # A process group of its own, so that its children are stopped with it.
            self.process = subprocess.Popen(
                [str(part) for part in arguments], env={**os.environ, **environment}, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        while time.perf_counter() - started < timeout:
            if self.process.poll() is not None:
                break
            if self.ready():
                self.ready_after = time.perf_counter() - started
                return self.ready_after
            time.sleep(0.001)
        self.stop()
        log = (self.folder / "server.log").read_text(errors="replace")
        raise NotReady(f"{self.name} did not become ready in {timeout} s: ...{log[-600:]}")

    def ready(self):
        try:
            return self.get(self.ready_path)[0] == 200
        except OSError:
            return False

    def get(self, path, method="GET", body=None, timeout=30):
        """(status, body) of a call that is not measured."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def touch(self, model):
        """Makes the model's files newer: Triton does not reload unchanged files."""
        for file in (self.folder / "models" / model).rglob("*"):
            os.utime(file)

    def stop(self):
        """Asks the server to end, and kills its whole group after ten seconds."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # children that it may have left behind
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None

    def __enter__(self):
        if self.process is None:
            self.start()
        return self

    def __exit__(self, *_):
        self.stop()
