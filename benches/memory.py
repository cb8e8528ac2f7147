#!/usr/bin/env python3
"""Measures the memory of the models of the packages: after a start, while documents are read one at a time, and a minute after.

    python3 benches/memory.py before=/tmp/ledge-before after=target/dist/ledge --documents 500 --plot memory.svg

The memory is the proportional set size of all processes of the daemon, every 200 ms; the row "models" has that of the processes of
models alone. Starts are measured twice: the first start measures runtimes and compiles, the second one is warm. Without documents of
your own (--folder) it reads the golden receipts of the model and the invoice of the tests by turns; `tests/peers/clients/receipts.py`
draws others. With --limit the daemon may use only so much memory, as on a small box, of whose memory the system has taken its part; the
rows say what that cost. Needs `make setup-test`, and the right to read other processes of the same user (root for sealed ones, and for --limit).
"""
import argparse
import contextlib
import http.client
import itertools
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the package `budget`

from budget import ledge, processes, stage  # noqa: E402

LINES = (stage.CHECKOUT / "packaging" / "models.list").read_text().splitlines()
PACKAGED = [line.split()[0] for line in LINES if line.strip() and not line.startswith("#")]
READER = "document_reader"
GOLDEN = stage.CHECKOUT / "models" / "document_reader" / "golden"
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".pdf": "application/pdf"}
PICTURES = ["image_classification", "object_detection", "document_reading"]
INTERVAL_S = 0.2
AFTER_S = 60


class Sampler:
    """Samples the memory of a daemon and of its processes of models, in MiB."""

    def __init__(self, root):
        self.root, self.samples, self.done = root, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def now(self):
        whole = models = 0
        for pid in processes.tree(self.root):
            try:
                used = processes.pss_kib([pid]) / 1024
                name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (OSError, KeyError):
                continue  # it ended meanwhile
            whole += used
            models += used if name[1:2] == [b"runtime"] else 0
        return whole, models

    def run(self):
        began = time.monotonic()
        while not self.done.wait(INTERVAL_S):
            self.samples.append((time.monotonic() - began, *self.now()))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


class MemoryLimit:
    """A control group, of version 1 or 2, with this many MiB of memory, the cache of files among them."""

    def __init__(self, mib):
        every = Path("/sys/fs/cgroup")
        controllers = every / "cgroup.controllers"
        self.is_second = controllers.exists() and "memory" in controllers.read_text()
        self.folder = (every if self.is_second else every / "memory") / f"ledge-memory-{os.getpid()}"
        self.folder.mkdir()
        self.file("memory.max", "memory.limit_in_bytes").write_text(str(mib << 20))

    def file(self, second, first):
        return self.folder / (second if self.is_second else first)

    def rows(self):
        """What the limit cost: the most memory, and processes that the kernel ended."""
        yield "most in the control group, MiB", int(self.file("memory.peak", "memory.max_usage_in_bytes").read_text()) / 2**20
        events = dict(line.split() for line in self.file("memory.events", "memory.oom_control").read_text().splitlines())
        yield "processes ended for want of memory", int(events["oom_kill"])

    def remove(self):
        while (self.folder / "cgroup.procs").read_text():
            time.sleep(0.1)  # they are ended
        self.folder.rmdir()


class Packaged(ledge.Ledge):
    """A daemon with the models of the packages, which notes when all but the reader of documents were ready."""

    limit = None

    def __init__(self, name, runtime=None):
        super().__init__(f"memory-{name}", ["log.level=error"])
        for model in PACKAGED:
            shutil.copytree(ledge.HOME / "models" / model, self.models / model)
            config = self.models / model / "model.toml"
            if runtime and any(f"[pipeline.{kind}" in config.read_text() for kind in PICTURES):
                config.write_text(config.read_text().replace('runtime = "auto"', f'runtime = "{runtime}"'))
        for left in ("cache", "state"):
            shutil.rmtree(self.folder / left, ignore_errors=True)

    def command(self):
        arguments, environment = super().command()
        if self.limit:
            arguments = ["sh", "-c", f'echo $$ >{self.limit.folder}/cgroup.procs && exec "$0" "$@"', *arguments]
        return arguments, environment

    def start(self, timeout=600):
        self.others_after, self.began = None, time.perf_counter()
        return super().start(timeout)

    def ready(self):
        try:
            entries = json.loads(self.get("/v2/repository/index", "POST", "{}")[1])
        except (OSError, ValueError):
            return False
        ready = {entry["name"] for entry in entries if entry.get("state") == "READY"}
        if self.others_after is None and ready >= set(PACKAGED) - {READER}:
            self.others_after = time.perf_counter() - self.began
        return ready >= set(PACKAGED)


def rows_of(daemon, calls, samples):
    """[(row, figure)] of two starts, documents one at a time, and the time after them. SAMPLES gets those of the memory."""
    for start in ("first start", "warm start"):
        daemon.stop()
        daemon.start()
        yield f"{start}: all but the reader ready, s", daemon.others_after
        yield f"{start}: ready, s", daemon.ready_after
    with Sampler(daemon.pid) as sampler:
        time.sleep(2)
        yield "2 s after the start, MiB", sampler.samples[-1][1]
        time.sleep(15)
        yield "17 s after the start, MiB", sampler.samples[-1][1]
        yield "of it models, MiB", sampler.samples[-1][2]
        sampler.samples.clear()
        began, cpu, answers = time.monotonic(), processes.cpu_ns(processes.tree(daemon.pid)), len(calls)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=300)) as connection:
            for kind, document in calls:
                connection.request("POST", f"/v2/models/{READER}/infer", document, {"Content-Type": kind})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"a document was answered with {answer.status}")
        yield "documents a second", answers / (time.monotonic() - began)
        yield "CPU time of a document, ms", (processes.cpu_ns(processes.tree(daemon.pid)) - cpu) / answers / 1e6
        yield "most while reading, MiB", max(whole for _, whole, _ in sampler.samples)
        time.sleep(AFTER_S)
        yield f"{AFTER_S} s after, MiB", sampler.samples[-1][1]
        yield from daemon.limit.rows() if daemon.limit else ()
        samples[:] = sampler.samples


def svg(samples):
    """A plot of the memory over time."""
    width, height, last, most = 900, 300, samples[-1][0], max(whole for _, whole, _ in samples)
    columns = {}  # of three units, each with its most memory: the file stays small
    for x, whole, _ in samples:
        column = round(x / last * width / 3) * 3
        columns[column] = max(columns.get(column, 0), whole)
    points = " ".join(f"{x},{height - whole / most * height:.0f}" for x, whole in columns.items())
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-60 -20 {width + 80} {height + 50}" font-family="sans-serif" font-size="12">'
            f'<polyline fill="none" stroke="#06c" points="{points}"/><path stroke="#888" d="M0 {height}H{width}M0 0V{height}"/>'
            f'<text x="-55" y="5">{most:.0f} MiB</text><text x="-20" y="{height}">0</text>'
            f'<text x="{width - 30}" y="{height + 20}">{last:.0f} s</text></svg>\n')


def main():
    parser = argparse.ArgumentParser(prog="benches/memory.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=FILE", help="a ledge to measure")
    parser.add_argument("--documents", type=int, default=40, help="documents to read, one at a time [40]")
    parser.add_argument("--folder", type=Path, help="a folder with documents [those of the tests]")
    parser.add_argument("--plot", type=Path, help="an SVG file for the memory of the last build over time")
    parser.add_argument("--cores", help="the cores that the daemon may use, as for taskset")
    parser.add_argument("--runtime", help="the runtime of models of pictures, which choose it themselves otherwise; OpenVINO takes more memory")
    parser.add_argument("--limit", type=int, metavar="MIB", help="the memory that it may use")
    options = parser.parse_args()
    builds = [(name, Path(file).resolve()) for name, _, file in (each.partition("=") for each in options.builds)]
    found = sorted(options.folder.iterdir()) if options.folder else [*GOLDEN.iterdir(), stage.CHECKOUT / "tests/data/documents/invoice.pdf"]
    documents = [(KINDS[file.suffix], file.read_bytes()) for file in found if file.suffix in KINDS]
    calls = list(itertools.islice(itertools.cycle(documents), options.documents))

    table, samples = {}, []
    for name, binary in builds:
        ledge.BINARY = binary
        daemon = Packaged(name, options.runtime)
        daemon.cores, daemon.limit = options.cores, MemoryLimit(options.limit) if options.limit else None
        try:
            for row, value in rows_of(daemon, calls, samples):
                table.setdefault(row, []).append(value)
        finally:
            daemon.stop()
            if daemon.limit:
                daemon.limit.remove()
    print(f"| {options.documents} documents | " + " | ".join(name for name, _ in builds) + " |")
    print("| --- |" + " ---: |" * len(builds))
    for row, values in table.items():
        print(f"| {row} | " + " | ".join(f"{value:.2f}" if value < 20 else f"{value:.0f}" for value in values) + " |")
    if options.plot:
        options.plot.write_text(svg(samples))


if __name__ == "__main__":
    main()
