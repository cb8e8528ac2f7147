"""Prints the budget table of Ledge with what this machine measured; `make bench` and `make bench-peers` call it.

The daemon measured is target/release/ledge. Nothing is written outside .ledge/bench, except the file of --json.
"""
import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # in-process and peers: ONNX Runtime's threads for it would be measured, too
sys.path[0] = str(Path(__file__).resolve().parents[1])  # the packages `budget` and `peers`

from budget import ledge, processes, stage, table  # noqa: E402
from budget.figures import FALLS_SHORT, MEETS  # noqa: E402
from budget.rows import features, footprint, lifecycle, messages, requests, served, tuner  # noqa: E402
from budget.runs.overload import overload  # noqa: E402
from budget.runs.reloads import reloads  # noqa: E402
from budget.runs.saturation import saturation  # noqa: E402
from budget.runs.threads import threads  # noqa: E402
from peers.contenders import which_are_fetched  # noqa: E402

ROWS = [requests.tiny_model, requests.cache_hits, served.network, requests.json_numbers, messages.mqtt,
        lifecycle.hot_reload, lifecycle.ready_after_start, footprint.memory_without_models, footprint.threads_with_five_models,
        tuner.tuner, features.feature_store, features.feature_server]
WITH_PEERS = [requests.tiny_model, requests.cache_hits, served.network, requests.json_numbers, lifecycle.hot_reload,
              lifecycle.ready_after_start, footprint.threads_with_five_models, features.feature_server]
RUNS = {"saturation": saturation, "overload": overload, "threads": threads, "reloads": reloads}

LENGTHS = {  # rounds of so many seconds a lane, and so on
    "quick": dict(rounds=3, seconds=0.3, reloads=4, starts=3, idle_seconds=3, saturation_rounds=3, saturation_seconds=1, overload_seconds=6, many_reloads=40, entities=50_000),
    "usual": dict(rounds=7, seconds=0.5, reloads=8, starts=5, idle_seconds=10, saturation_rounds=5, saturation_seconds=1, overload_seconds=10, many_reloads=100, entities=200_000),
    "long": dict(rounds=15, seconds=1.0, reloads=20, starts=9, idle_seconds=60, saturation_rounds=9, saturation_seconds=3, overload_seconds=60, many_reloads=200, entities=1_000_000),
}


class Options(argparse.Namespace):
    """How long everything takes, and where what was measured goes."""

    def take(self, length):
        vars(self).update(LENGTHS[length], raw={})

    def keep(self, what, lanes):
        self.raw[what] = [lane.as_json() for lane in lanes]

    def keep_raw(self, what, figures):
        self.raw[what] = figures


def parse():
    parser = argparse.ArgumentParser(prog="benches/budget", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="table", choices=["table", *RUNS], help="the table (default), or one run at length")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", dest="length", action="store_const", const="quick", help="under two minutes, wider spreads")
    length.add_argument("--long", dest="length", action="store_const", const="long", help="some twenty minutes; the default of a single run")
    parser.add_argument("--peers", action="store_true", help="only the rows with peers, and with those that are fetched")
    parser.add_argument("--rows", help="only these, with commas: " + " ".join(row.__name__ for row in ROWS))
    parser.add_argument("--workload", choices=["tensor", "photo"], default="tensor", help="what `overload` sends")
    parser.add_argument("--binary", type=Path, default=ledge.BINARY, metavar="FILE", help="the ledge to measure [target/release/ledge]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    options = parser.parse_args(namespace=Options())
    known = {row.__name__ for row in ROWS}
    if options.rows and not known.issuperset(options.rows.split(",")):
        parser.error(f"--rows: there are {', '.join(sorted(known))}")
    return options


def table_rows(options):
    """Every row, one subject after the other, over servers that stay up meanwhile."""
    chosen = WITH_PEERS if options.peers else ROWS
    if options.rows:
        chosen = [row for row in ROWS if row.__name__ in options.rows.split(",")]
    names, absent = which_are_fetched() if options.peers else ([], {})
    for name, reason in absent.items():
        print(f"  left out: {name}: {reason}", file=sys.stderr)
    with stage.servers(names) as servers:
        for subject in chosen:
            yield from attempt(lambda: subject(servers, options), subject.__name__)
    if not options.peers and not options.rows:
        for name in ("saturation", "overload", "reloads"):
            yield from attempt(lambda: RUNS[name](options), name)


def attempt(rows, name):
    """The rows; what cannot be measured is a row with its reason, and the others go on."""
    try:
        yield from rows()
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        yield requests.failed(name, f"{type(error).__name__}: {error}")


def main():
    # The servers that run are stopped then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated."))
    options = parse()
    options.take(options.length or ("usual" if options.what == "table" else "long"))
    ledge.BINARY = options.binary.resolve()
    if not ledge.BINARY.exists():
        sys.exit(f"{ledge.BINARY} is not there: `make build` first")
    run = RUNS.get(options.what)
    if run is overload:
        rows = overload(options, options.workload)
    else:
        rows = run(options) if run else table_rows(options)
    machine, contention, started = processes.machine(), processes.Contention(), time.monotonic()
    print("{cpu}, {cores} cores, Linux {kernel}, load average {load_average:.2f} before\n".format(**machine))
    if machine["load_average"] > machine["cores"] / 4:
        print("The machine is busy with something else: wall times say little now, and ratios are wider.\n")
    print(table.header(), flush=True)
    shown = []
    for row in rows:
        shown.append(row)
        print(table.show(row), flush=True)
    met, short = (sum(row.verdict == verdict for row in shown) for verdict in (MEETS, FALLS_SHORT))
    machine["steal_share"] = contention.steal_share()
    print(f"\n{met} meet their budget, {short} fall short, {len(shown) - met - short} without a verdict; "
          f"{time.monotonic() - started:.0f} s, {100 * machine['steal_share']:.1f} % of the cores stolen by the hypervisor")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": [row.as_json() for row in shown], "measured": options.raw}, indent=1))


if __name__ == "__main__":
    main()
