#!/usr/bin/env python3
"""Measures what it costs to give each model a process of its own: `runtimes.isolation` process and own, by turns.

Two daemons of the same binary run at the same time, each over a root of its own under .ledge/bench, and get the same
requests in rounds: process, own, process, own. So whatever disturbs the machine disturbs all alike, and a
ratio to process is taken within a round. Needs `make setup-test` and a binary, target/release/ledge unless --binary says
otherwise.

CPU time is that of the daemon and its children together, user and system, for each request: see README.md, Method.

Triton runs its models in processes of their own, too, where they are in its Python backend, as they are in the wheel that
`make bench-peers` fetches. To put it beside Ledge with isolation, by turns:

    python3 benches/peers/fetch.py triton
    LEDGE_RUNTIMES_ISOLATION=process python3 benches/budget --rows tiny_model,network,hot_reload --peers --binary target/release/ledge

Variables of the environment reach the daemons that are measured; --peers and --rows go together.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the packages `budget` and `peers`

from budget import ledge, processes, provenance, stage  # noqa: E402
from budget.figures import Spread, digits, percentile  # noqa: E402
from budget.lanes import LoadedLane, ServedLane, interleave, ratio  # noqa: E402
from budget.rows.footprint import FIVE_MODELS  # noqa: E402
from budget.rows.lifecycle import reload_under_load  # noqa: E402
from budget.wire import binary_call, json_call, request  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[1]
ISOLATIONS = ("process", "own")
CLIENTS = 16
# A photograph as a camera sends it, at the size of the other benches.
PHOTO = CHECKOUT / "benches" / "data" / "chelsea_640x480.jpg"


def daemon(folder, isolation):
    return ledge.Ledge(f"isolation-{folder}-{isolation}", [f"runtimes.isolation={isolation}", "log.level=error"])


def requests_daemon(isolation, runtime):
    """The tiny model and the int8 network, with one thread each, as in the rows of the budget."""
    made = daemon("requests", isolation)
    made.add("wine_mlp", "models/wine_mlp", f'runtime = "{runtime}"\n{ledge.ONE_THREAD}')
    return made.add("network", "models/efficientnet_lite0", ledge.pipeline_config(runtime))


class Table:
    """The rows, printed as they are measured, and kept for --json."""

    def __init__(self):
        self.raw = {}

    def head(self):
        print("| row | isolation | CPU/request, us | p50, us | p99, us | CPU to process | p50 to process | p99 to process |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)

    def lanes(self, what, lanes):
        """A line for each isolation: the medians of the rounds with the least and the greatest, and the ratios."""
        self.raw[what] = [lane.as_json() for lane in lanes]
        first = lanes[0]
        for lane in lanes:
            figures = [lane.cpu_us(), lane.p50_us(), lane.p99_us()]
            ratios = [ratio(lane, first, value) for value in ("cpu_us", "p50_us", "p99_us")]
            cells = [spread.show() for spread in figures] + ["1" if lane is first else spread.show() for spread in ratios]
            print(f"| {what} | {lane.name} | {' | '.join(cells)} |", flush=True)

    def figures(self, what, unit, seen):
        """A line with one figure for each isolation: {isolation: [value of each round]}."""
        self.raw[what] = seen
        shown = [f"{isolation} {Spread.of(values).show()} {unit}" for isolation, values in seen.items()]
        usual = seen[ISOLATIONS[0]]
        for isolation in ISOLATIONS[1:]:
            if all(usual):
                to_process = Spread.of(value / other for value, other in zip(seen[isolation], usual))
                shown.append(f"{isolation} to process {to_process.show()}")
        print(f"{what}: {'; '.join(shown)}", flush=True)


def requests(options, table):
    """The rows of requests, in the daemons that stay up for all of them."""
    tiny = json_call("wine_mlp", stage.wine())
    jpeg = options.photo.read_bytes()
    photo = request("/v2/models/network/infer", jpeg, [("Content-Type", "image/jpeg")])
    tensor = binary_call("network", stage.picture())
    rows = {
        "tiny": ("tiny model, JSON, one client", tiny, ServedLane),
        "photo": (f"photograph of {len(jpeg) // 1000} kB to label, one client", photo, ServedLane),
        "tensor": ("tensor of 602 KB, one client", tensor, ServedLane),
        "tiny_load": (f"tiny model, {CLIENTS} clients", tiny, LoadedLane),
        "mixed_load": (f"photographs and tensors in turns, {CLIENTS} clients", [photo, tensor], LoadedLane),
    }
    chosen = [rows[name] for name in rows if name in options.rows]
    if not chosen and "reload" not in options.rows:
        return
    servers = {isolation: requests_daemon(isolation, options.runtime) for isolation in ISOLATIONS}
    try:
        for server in servers.values():
            server.start()
        if chosen:
            table.head()
        for what, data, lane in chosen:
            lanes = [lane(isolation, server, data) for isolation, server in servers.items()]
            interleave(lanes, options.rounds, options.seconds)
            table.lanes(what, lanes)
        if chosen:
            print()
        if "reload" in options.rows:
            reload(options, table, servers, tensor)
    finally:
        for server in servers.values():
            server.stop()


def reload(options, table, servers, tensor):
    """Two callers of the network, which is reloaded again and again: by turns, some reloads each."""
    seen = {isolation: [] for isolation in servers}
    for _ in range(options.rounds):
        for isolation, server in servers.items():
            seen[isolation].append(reload_under_load(server, "network", tensor, 3 * options.seconds, 3))
    for isolation, figures in seen.items():
        lost, asked = (sum(each[key] for each in figures) for key in ("lost", "asked"))
        print(f"reload under load, {isolation}: {lost} of {asked} requests lost in {3 * len(figures)} reloads")
    of = lambda value: {isolation: [value(each) for each in figures] for isolation, figures in seen.items()}  # noqa: E731
    table.figures("reload under load: worst request", "ms", of(lambda each: max(each["worst_ms"])))
    table.figures("reload under load: worst request to the usual p99", "x", of(lambda each: max(each["worst_ms"]) / each["p99_ms"]))
    table.figures("reload under load: time of a reload", "ms", of(lambda each: percentile(each["reload_ms"], 0.5)))
    table.raw["reload under load"] = seen


def ready(options, table):
    """From spawning the daemon to its first 200 of /v2/health/ready, with two models and warm caches: by turns."""
    servers = {isolation: daemon("start", isolation) for isolation in ISOLATIONS}
    for server in servers.values():
        server.add("wine_mlp", "models/wine_mlp", f'runtime = "onnxruntime"\n{ledge.ONE_THREAD}')
        server.add("network", "models/efficientnet_lite0", ledge.pipeline_config(options.runtime))
    seen = {isolation: [] for isolation in servers}
    for number in range(options.rounds + 1):
        for isolation, server in servers.items():
            took = server.start()
            server.stop()
            if number:  # the first start fills the caches
                seen[isolation].append(took * 1e3)
    table.figures("ready after start, two models", "ms", seen)


def memory(options, table):
    """PSS of the daemon and its children, some time after they were ready."""
    for what, models in (("five models", FIVE_MODELS), ("no models", {})):
        servers = {isolation: daemon(f"memory-{len(models)}", isolation) for isolation in ISOLATIONS}
        seen, counted = {isolation: [] for isolation in servers}, {}
        for server in servers.values():
            for name, source in models.items():
                server.add(name, source, f'runtime = "{options.runtime}"\n')
        for _ in range(max(1, options.rounds // 2)):
            for isolation, server in servers.items():
                with server:
                    time.sleep(1)  # the work of the start
                    pids = processes.tree(server.pid)
                    each = [processes.pss_kib([pid]) * 1024 / 1e6 for pid in pids]
                    seen[isolation].append(sum(each))
                    counted[isolation] = each
        table.figures(f"memory (PSS), {what}", "MB", seen)
        for isolation, each in counted.items():
            children = f", children {', '.join(map(digits, each[1:]))} MB" if each[1:] else ""
            print(f"  {isolation}: daemon {digits(each[0])} MB{children}")


ROWS = ("tiny", "photo", "tensor", "tiny_load", "mixed_load", "reload", "ready", "memory")


def parse():
    parser = argparse.ArgumentParser(prog="benches/isolation.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row [9]")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each daemon in each round [0.7]")
    parser.add_argument("--rows", default=",".join(ROWS), help="only these rows, separated by commas: " + " ".join(ROWS))
    parser.add_argument("--runtime", choices=stage.RUNTIMES, default=stage.RUNTIMES[0], help="the runtime of the models [onnxruntime]")
    parser.add_argument("--photo", type=Path, default=PHOTO, metavar="FILE", help="the photograph, a JPEG [benches/data/chelsea_640x480.jpg]")
    parser.add_argument("--binary", type=Path, default=CHECKOUT / "target" / "release" / "ledge", metavar="FILE", help="the ledge to measure [target/release/ledge]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    options = parser.parse_args()
    options.rows = options.rows.split(",")
    unknown = set(options.rows).difference(ROWS)
    if unknown:
        parser.error(f"--rows: unknown row {', '.join(sorted(unknown))}; expected some of {', '.join(ROWS)}")
    return options


def main():
    options = parse()
    ledge.BINARY = options.binary.resolve()
    if not ledge.BINARY.exists():
        sys.exit(f"{ledge.BINARY} is not there: `make build` first")
    # `provenance` names the binary that was measured.
    machine, contention, started = provenance.of_run(), processes.Contention(), time.monotonic()
    print("{cpu}, {cores} cores, Linux {kernel}, load average {load_average:.2f} before; {rounds} rounds of {seconds:g} s\n".format(
        **machine, rounds=options.rounds, seconds=options.seconds))
    table = Table()
    requests(options, table)
    if "ready" in options.rows:
        ready(options, table)
    if "memory" in options.rows:
        memory(options, table)
    machine.update(seconds=time.monotonic() - started, rounds=options.rounds, steal_share=contention.steal_share())
    print(f"\n{provenance.line(machine)}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "measured": table.raw}, indent=1))


if __name__ == "__main__":
    main()
