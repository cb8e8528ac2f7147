"""The model without a server: the reference that every "served" figure is a ratio to.

`open_reference` is the one place that decides what measures it: Python's bindings of the same two runtimes, of the very
versions that the daemon loads. `serving_core` is the step between it and a served call: Ledge's own queue and threads
without HTTP, as `ledge-bench --in-process` measures it.
"""
import json
import subprocess
from pathlib import Path

from peers import fetch

from .figures import percentile
from .lanes import Lane, Round
from .ledge import CHECKOUT, bench_tool, run_bench


class Worker:
    """A process of inprocess_worker.py."""

    def __init__(self):
        python = fetch.python_of("inprocess")
        if python is None:
            raise RuntimeError("the in-process reference is not fetched: run python3 benches/peers/fetch.py inprocess")
        self.process = subprocess.Popen(
            [python, "-s", "-B", Path(__file__).with_name("inprocess_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, do, **words):
        self.process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the in-process reference died at '{do}' ({words})")
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class InProcessLane(Lane):
    """A lane whose calls are runs in a separate process."""

    def __init__(self, name, worker, runtime, model, tensor_file, shape, threads, instances, spin):
        super().__init__(name)
        self.worker = worker
        self.throughputs = []
        worker.ask("load", runtime=runtime, model=str(model), threads=threads, instances=instances,
                   shape=list(shape), input=str(tensor_file), spin=spin)

    def measure(self, seconds):
        answer = self.worker.ask("run", seconds=seconds)
        latencies = answer["latencies"]
        self.throughputs.append(len(latencies) / answer["wall_ns"] * 1e9)
        return Round(len(latencies), answer["cpu_ns"] / len(latencies) / 1e3,
                     percentile(latencies, 0.5) / 1e3, percentile(latencies, 0.99) / 1e3, {})


def open_reference(runtime, model, tensor_file, shape, threads=1, instances=1, spin=False):
    """A lane that runs MODEL in RUNTIME in a separate process; `lane.worker.stop()` ends it.

    SPIN lets ONNX Runtime's threads wait by spinning, which is its default and never Ledge's.
    """
    check_versions()
    name = f"in-process, {runtime}"
    return InProcessLane(name, Worker(), runtime, model, tensor_file, shape, threads, instances, spin)


class DecodeLane(Lane):
    """A lane that makes tensors of a photograph with Pillow, in a separate process."""

    def __init__(self, name, photo):
        super().__init__(name)
        self.worker, self.photo = Worker(), str(photo)

    def measure(self, seconds):
        spent = self.worker.ask("decode", photo=self.photo, seconds=seconds)["cpu_ns"]
        return Round(len(spent), sum(spent) / len(spent) / 1e3, percentile(spent, 0.5) / 1e3, percentile(spent, 0.99) / 1e3, {})


class ServingCoreLane(Lane):
    """A lane whose rounds are each a run of `ledge-bench --in-process`; it takes its own CPU time, loading excluded."""

    def __init__(self, name, daemon, model):
        super().__init__(name)
        self.daemon, self.model = daemon, model

    def measure(self, seconds):
        report = run_bench(self.daemon, self.model, "--in-process", "--concurrency", "1", "--rounds", "1", "--warmup", "300ms",
                           "--duration", f"{int(seconds * 1000)}ms")
        figures = report["results"][0]["figures"]
        latency = figures["latency_ms"]
        return Round(figures["answered"], figures["cpu_ms_per_request"] * 1e3, latency["p50"] * 1e3, latency["p99"] * 1e3, {})


def serving_core(daemon, model):
    """[the lane], or nothing for a binary without `ledge-bench` beside it."""
    return [ServingCoreLane("the serving core without HTTP", daemon, model)] if bench_tool(daemon.binary) else []


def check_versions():
    """Checks that the reference uses the versions that the daemon loads."""
    pinned = (Path(fetch.HERE) / "requirements" / "inprocess.txt").read_text()
    for runtime in json.loads((CHECKOUT / "models" / "sources.json").read_text())["runtimes"]:
        if f"\n{runtime} " not in pinned:
            raise RuntimeError(f"benches/peers/requirements/inprocess.txt has another version than {runtime}: "
                               "write it again with benches/peers/pin.py")
