#!/usr/bin/env python3
"""Measures how long calls of a small model take beside work that takes long, with two or more builds of Ledge by turns.

    python3 benches/beside.py before=/tmp/ledge-before after=target/dist/ledge
    python3 benches/beside.py after=target/dist/ledge --cores 0 --rounds 5

The small model is called at random times (an open loop: a late answer delays no later call), without a priority header. Beside it
two callers read documents or look for objects on photographs, each again after its last answer, also without one. The work is
measured by itself, too: the last column has how much of it is left. CPU time of the machine is what both share, so run it
on a quiet one. Needs `make setup-test`.
"""
import argparse
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the packages `budget` and `peers`

from budget import ledge, processes, provenance, stage  # noqa: E402
from budget.figures import Spread, percentile  # noqa: E402
from budget.load import closed_loop, open_loop  # noqa: E402
from budget.wire import json_call, request  # noqa: E402

RATE = 50  # calls of the small model a second
CALLERS = 2
GOLDEN = stage.CHECKOUT / "models" / "document_reader" / "golden"
DOCUMENTS = [("image/png", GOLDEN / "receipt.png"), ("application/pdf", stage.CHECKOUT / "tests" / "data" / "documents" / "invoice.pdf")]
PHOTO = Path(__file__).resolve().parent / "data" / "chelsea_640x480.jpg"


def works():
    """{name: requests}: the work beside the small model."""
    def call(model, kind, file):
        return request(f"/v2/models/{model}/infer", file.read_bytes(), [("Content-Type", kind)])
    return {
        "documents": [call("document_reader", kind, file) for kind, file in DOCUMENTS],
        "objects": [call("coco_detector", "image/jpeg", PHOTO)],
    }


def build(name, binary, cores):
    ledge.BINARY = binary
    daemon = ledge.Ledge(f"beside-{name}", settings=["log.level=error"])
    daemon.cores = cores
    for model in ("wine_mlp", "document_reader", "coco_detector"):
        source = ledge.HOME / "models" / model
        daemon.add(model, f"models/{model}", (source / "model.toml").read_text().split("[[golden]]")[0])
    return daemon


def measure(port, tiny, data, seconds):
    """(samples of the small model, answers of the work a second) of one round; DATA is None for none."""
    done = threading.Event()
    finished = []
    worker = threading.Thread(target=lambda: finished.extend(closed_loop(port, data, CALLERS, until=done.is_set)))
    if data:
        worker.start()
    try:
        samples = open_loop(port, tiny, RATE, seconds, 64, 60) if tiny else (done.wait(seconds), [])[1]
    finally:
        done.set()
        if data:
            worker.join()
    wrong = [sample.status for sample in samples + finished if sample.status != 200]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(samples) + len(finished)} calls failed, one with status {wrong[0]}")
    span = max((sample.answered for sample in finished), default=1) - min((sample.sent for sample in finished), default=0)
    return [sample.latency_ms for sample in samples], len(finished) * 1e9 / span


def main():
    parser = argparse.ArgumentParser(prog="benches/beside.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=FILE", help="a ledge to measure")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row [3]")
    parser.add_argument("--seconds", type=float, default=15, help="of each build in each round [15]")
    parser.add_argument("--cores", help="the cores that the daemon may use, such as 0 [all]")
    options = parser.parse_args()
    builds = [(name, Path(file).resolve()) for name, _, file in (each.partition("=") for each in options.builds)]
    tiny, contention, started = json_call("wine_mlp", stage.wine()), processes.Contention(), time.monotonic()
    ledge.BINARY = builds[-1][1]
    machine = provenance.of_run()
    print("| beside | build | p50, ms | p99, ms | longest, ms | work/s beside it | work/s by itself |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with contextlib.ExitStack() as running:
        servers = {name: running.enter_context(build(name, file, options.cores)) for name, file in builds}
        rows = {(what, name): [] for what in ["nothing", *works()] for name in servers}
        for round_number in range(options.rounds + 1):
            for (what, name), rounds in rows.items():
                port, data = servers[name].port, works().get(what)
                # The first round is the warm-up.
                seconds = options.seconds if round_number else 2
                latencies, rate = measure(port, tiny, data, seconds)
                alone = measure(port, None, data, seconds)[1] if data else 0
                if round_number:
                    rounds.append((percentile(latencies, 0.5), percentile(latencies, 0.99), max(latencies), rate, alone))
        for (what, name), rounds in rows.items():
            cells = [Spread.of(figures).show() for figures in zip(*rounds)]
            print(f"| {what} | {name} | {' | '.join(cells if works().get(what) else cells[:3] + ['', ''])} |", flush=True)
    machine.update(seconds=time.monotonic() - started, rounds=options.rounds, steal_share=contention.steal_share())
    print(f"\n{RATE} calls a second beside {CALLERS} callers, the daemon on cores {options.cores or 'all'}; {provenance.line(machine)}")


if __name__ == "__main__":
    main()
