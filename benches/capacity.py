#!/usr/bin/env python3
"""Compares the growth that `GET /capacity` predicts with a load test, for mixes of work.

    python3 benches/capacity.py
    python3 benches/capacity.py --cores 0 --mixes shop,camera --json capacity.json
    python3 benches/capacity.py --reference                   # the columns of src/capacity/sizing/reference.tsv

Each mix is called at random times (an open loop). First at a small load, at which the daemon measures itself and says how far this
mix can grow. Then at larger loads: the largest at which all calls are answered with 200, and 99 of 100 of each kind within the
objective that the answer names, is searched by halving. The daemon has its first answers before it predicts, never the search.
The cameras of a mix show something new on every fifth picture. At a larger load their pictures come faster, from a daemon that was
started again, and 98 of 100 must have been looked at in time.
With `--cores`, the callers use the other cores. Needs `make setup-test` and a quiet machine.
"""
import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import shutil
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the packages `budget` and `peers`

from budget import ledge, processes, provenance, stage  # noqa: E402
from budget.figures import percentile  # noqa: E402
from budget.load import closed_loop, open_loop  # noqa: E402
from budget.wire import json_call, request  # noqa: E402

RECEIPT = stage.CHECKOUT / "models" / "document_reader" / "golden" / "receipt.png"
PHOTO = Path(__file__).resolve().parent / "data" / "chelsea_640x480.jpg"
OTHER_PHOTO = stage.CHECKOUT / "tests" / "data" / "photos" / "cows.jpg"
STREAMS, PATIENCE_S, PAUSE_S = 128, 30, 3
CAMERAS, CAMERA_INTERVAL_MS = "cameras", 500
TEXT = "The delivery was two days late, and one of the boxes was open."


def calls():
    def text(model):
        return request(f"/v2/models/{model}/infer", TEXT.encode(), [("Content-Type", "text/plain")])

    def file(model, kind, path):
        return request(f"/v2/models/{model}/infer", path.read_bytes(), [("Content-Type", kind)])
    return {
        "wine_mlp": json_call("wine_mlp", stage.wine()),
        "efficientnet_lite0": file("efficientnet_lite0", "image/jpeg", PHOTO),
        "coco_detector": file("coco_detector", "image/jpeg", PHOTO),
        "all_minilm_l6_v2": text("all_minilm_l6_v2"),
        "document_reader": file("document_reader", "image/png", RECEIPT),
    }


# Calls a second at the small load, for one core.
MIXES = {
    "shop": {"wine_mlp": 200.0, "efficientnet_lite0": 15.0},
    "camera": {"coco_detector": 12.0, "all_minilm_l6_v2": 30.0},
    "office": {"document_reader": 0.15, "efficientnet_lite0": 8.0},
    "yard": {CAMERAS: 10.0, "all_minilm_l6_v2": 20.0},
}


def add(daemon, model):
    """The model as it is shipped."""
    shutil.copytree(ledge.HOME / "models" / model, daemon.models / model)


@contextlib.contextmanager
def picture_server(bodies):
    """The port of a server whose pictures are the same five times, and then another one."""
    counts, lock = {}, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            with lock:
                number = next(counts.setdefault(self.path, itertools.count()))
            body = bodies[number // 5 % len(bodies)]
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def camera_settings(port, count, interval_ms):
    """Cameras of a server on this port."""
    allowed = f'''
[[egress.allow]]
host = "127.0.0.1:{port}"
region = "lan"
send = ["requests"]
'''
    cameras = [f'''
[[camera]]
name = "camera{number}"
url = "http://127.0.0.1:{port}/{number}.jpg"
interval_ms = {interval_ms}
frozen_after_ms = 0
''' for number in range(count)]
    return allowed + "".join(cameras)


def pictures(daemon):
    """The pictures that the cameras looked at."""
    rows = daemon.get("/metrics")[1].decode().splitlines()
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith("ledge_camera_pictures_total"))


def load(port, mix, factor, seconds):
    """{model: samples} of the mix at FACTOR times its small load, each model from a process of its own."""
    data = calls()
    with concurrent.futures.ProcessPoolExecutor(len(mix)) as pool:
        called = {model: rate * factor for model, rate in mix.items() if model != CAMERAS}
        running = {model: pool.submit(open_loop, port, data[model], rate, seconds, STREAMS, PATIENCE_S) for model, rate in called.items()}
        return {model: future.result() for model, future in running.items()}


def predict(daemon, mix, seconds):
    """The answer of `GET /capacity` after the small load."""
    daemon.get("/capacity")
    load(daemon.port, mix, 1.0, seconds)
    status, body = daemon.get("/capacity")
    if status != 200:
        raise RuntimeError(f"GET /capacity: {status} {body}")
    return json.loads(body)


def holds(daemon, mix, factor, seconds, objectives):
    """True where all calls were answered, 99 of 100 of each kind in time. Prints what was seen."""
    time.sleep(PAUSE_S)
    seen, is_met = [], True
    before, started = pictures(daemon), time.monotonic()
    for model, samples in load(daemon.port, mix, factor, seconds).items():
        failed = sum(sample.status != 200 for sample in samples)
        p99 = percentile([sample.latency_ms for sample in samples], 0.99) / 1e3
        is_met &= failed == 0 and p99 <= objectives[model]
        seen.append(f"{model} {len(samples) / seconds:.3g}/s p99 {p99 * 1e3:.3g} of {objectives[model] * 1e3:.3g} ms, {failed} failed")
    if CAMERAS in mix:
        due = mix[CAMERAS] * factor * (time.monotonic() - started) * 1e3 / CAMERA_INTERVAL_MS
        watched = (pictures(daemon) - before) / due
        is_met &= watched >= 0.98
        seen.append(f"{watched:.1%} of the pictures of cameras")
    print(f"  x {factor:.2f} {'holds' if is_met else 'too much'}: {'; '.join(seen)}", file=sys.stderr, flush=True)
    return is_met


def search(at_load, mix, guess, steps, seconds, objectives):
    """The largest factor that holds: between a third and three times the guess, by halving of its logarithm."""
    low, high = math.log(guess / 3), math.log(guess * 3)
    for _ in range(steps):
        middle = (low + high) / 2
        with at_load(math.exp(middle)) as daemon:
            is_met = holds(daemon, mix, math.exp(middle), seconds, objectives)
        low, high = (middle, high) if is_met else (low, middle)
    return math.exp((low + high) / 2)


def measure(name, options):
    cores = len(options.cores.split(",")) if options.cores else os.cpu_count()
    mix = {model: rate * cores for model, rate in MIXES[name].items()}
    bodies = [PHOTO.read_bytes(), OTHER_PHOTO.read_bytes()]
    with picture_server(bodies) if CAMERAS in mix else contextlib.nullcontext() as port:
        return compare(name, mix, options, port)


def compare(name, mix, options, camera_port):
    called = [model for model in mix if model != CAMERAS]

    @contextlib.contextmanager
    def daemon_at(factor):
        """A daemon whose cameras are so many times as fast."""
        daemon = ledge.Ledge(f"capacity-{name}", settings=["log.level=error", *options.set])
        daemon.cores = options.cores
        for model in called:
            add(daemon, model)
        if CAMERAS in mix:
            add(daemon, "coco_detector")
            settings = camera_settings(camera_port, round(mix[CAMERAS]), round(CAMERA_INTERVAL_MS / factor))
            (daemon.folder / "ledge.toml").write_text(settings)
        with daemon:
            load(daemon.port, mix, 1.0, 10)  # First runs are slower.
            yield daemon

    with daemon_at(1.0) as daemon:
        report = predict(daemon, mix, options.measure)
        rows = {row["model"]: row for row in report["work"]}
        # The daemon names the growth of the rates that it saw; the test has its own.
        predicted = report["growth"] * rows[called[0]]["now"] / mix[called[0]]
        objectives = {model: rows[model]["objective_s"] for model in called}
        print(f"{name}: predicted x {predicted:.2f}, then {report['first']} is used up; {json.dumps(report)}", file=sys.stderr, flush=True)
        at_load = daemon_at if CAMERAS in mix else lambda _: contextlib.nullcontext(daemon)
        # The search does not begin at the prediction, which would favour it.
        measured = search(at_load, mix, predicted * 0.87, options.steps, options.seconds, objectives)
    return {"mix": name, "predicted": predicted, "measured": measured, "ratio": predicted / measured, "first": report["first"], "report": report}


def usage(daemon):
    """(CPU seconds, bytes of memory) of the whole service."""
    figures = dict(line.rsplit(" ", 1) for line in daemon.get("/metrics")[1].decode().splitlines() if line.startswith("ledge_service_"))
    return tuple(float(figures[f"ledge_service_{name}"]) for name in ("cpu_seconds_total", "memory_bytes"))


def idle(daemon):
    """Waits until the memory of runs was given back."""
    time.sleep(8)
    return usage(daemon)


def reference(seconds):
    """Prints a row for each kind of work: CPU time of the whole service in ms, and memory in MB beside an empty service."""
    print("work\tcpu_ms\tmemory_mb", flush=True)
    with ledge.Ledge("capacity-empty", settings=["log.level=error"]) as daemon:
        empty = idle(daemon)[1]
    print(f"empty\t0\t{empty / 1e6:.0f}", flush=True)
    for model, data in calls().items():
        daemon = ledge.Ledge(f"capacity-{model}", settings=["log.level=error"])
        add(daemon, model)
        with daemon:
            closed_loop(daemon.port, data, 1, 5)
            time.sleep(PAUSE_S)
            before, _ = usage(daemon)
            samples = closed_loop(daemon.port, data, 2, seconds)
            peak = usage(daemon)[1]
            after, kept = idle(daemon)
        wrong = [sample.status for sample in samples if sample.status != 200]
        if wrong:
            raise RuntimeError(f"{model}: {len(wrong)} calls failed, one with status {wrong[0]}")
        print(f"{model}\t{(after - before) / len(samples) * 1e3:.3g}\t{(max(peak, kept) - empty) / 1e6:.0f}\t{len(samples)} calls", flush=True)
    daemon = ledge.Ledge("capacity-still", settings=["log.level=error"])
    add(daemon, "coco_detector")
    with picture_server([PHOTO.read_bytes()]) as port:
        (daemon.folder / "ledge.toml").write_text(camera_settings(port, 1, 200))
        with daemon:
            time.sleep(10)
            before, seen = usage(daemon)[0], pictures(daemon)
            time.sleep(seconds)
            after, count = usage(daemon)[0], pictures(daemon) - seen
    print(f"picture_unchanged\t{(after - before) / count * 1e3:.3g}\t\t{count:.0f} pictures", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="benches/capacity.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ledge.BINARY, help="the ledge to measure [%(default)s]")
    parser.add_argument("--mixes", default=",".join(MIXES), help="[%(default)s]")
    parser.add_argument("--cores", help="the cores that the daemon may use, such as 0 [all]")
    parser.add_argument("--measure", type=float, default=60, help="seconds of the small load [%(default)s]")
    parser.add_argument("--seconds", type=float, default=30, help="seconds of each step of the search [%(default)s]")
    parser.add_argument("--steps", type=int, default=6, help="steps of the search, from a factor of 9 to one of 1.035 after 6 [%(default)s]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the daemon")
    parser.add_argument("--reference", action="store_true", help="measure the figures of the reference processor instead")
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args()
    ledge.BINARY = options.binary.resolve()
    if options.reference:
        reference(options.seconds)
        return
    if options.cores:
        own = os.sched_getaffinity(0) - {int(core) for core in options.cores.split(",")}
        os.sched_setaffinity(0, own or os.sched_getaffinity(0))
    machine, contention, started = provenance.of_run(), processes.Contention(), time.monotonic()
    results = [measure(name, options) for name in options.mixes.split(",")]
    print("| mix | predicted growth | load test | predicted : measured | used up first |\n| --- | ---: | ---: | ---: | --- |")
    for row in results:
        print(f"| {row['mix']} | {row['predicted']:.2f} | {row['measured']:.2f} | {row['ratio']:.2f} | {row['first']} |")
    machine.update(seconds=time.monotonic() - started, rounds=1, steal_share=contention.steal_share())
    print(f"\nThe daemon on cores {options.cores or 'all'}; {provenance.line(machine)}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
