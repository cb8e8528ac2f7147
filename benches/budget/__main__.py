"""Prints the budget table of Ledge with the figures of this machine; `make bench` and `make bench-peers` call it.

It measures the daemon target/dist/ledge. Nothing is written outside .ledge/bench, except the files of --json and
--markdown. It exits with 1 when a budget is missed or could not be measured; the closing lines name the rows.
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

from budget import ledge, markdown, processes, provenance, stage, table  # noqa: E402
from budget.figures import FALLS_SHORT, MEETS, NOT_MEASURED, Row  # noqa: E402
from budget.rows import features, footprint, lifecycle, messages, requests, served, tuner  # noqa: E402
from budget.runs.overload import overload  # noqa: E402
from budget.runs.reloads import reloads  # noqa: E402
from budget.runs.saturation import saturation  # noqa: E402
from budget.runs.threads import threads  # noqa: E402
from peers.contenders import which_are_fetched  # noqa: E402

ROWS = [requests.tiny_model, requests.cache_hits, served.network, requests.json_numbers, messages.mqtt,
        lifecycle.hot_reload, lifecycle.ready_after_start, footprint.memory_without_models, footprint.threads_with_five_models,
        tuner.tuner, features.feature_store, features.feature_server, features.feature_inference]
WITH_PEERS = [requests.tiny_model, requests.cache_hits, served.network, requests.json_numbers, messages.mqtt, lifecycle.hot_reload,
              lifecycle.ready_after_start, footprint.threads_with_five_models, features.feature_server, features.feature_inference]
RUNS = {"saturation": saturation, "overload": overload, "threads": threads, "reloads": reloads}

LENGTHS = {  # rounds of so many seconds a lane, and so on
    "quick": dict(rounds=3, seconds=0.3, reloads=4, starts=3, idle_seconds=3, saturation_rounds=3, saturation_seconds=1, overload_seconds=6, many_reloads=40, entities=50_000),
    "usual": dict(rounds=7, seconds=0.5, reloads=8, starts=5, idle_seconds=10, saturation_rounds=5, saturation_seconds=1, overload_seconds=10, many_reloads=100, entities=200_000),
    "long": dict(rounds=15, seconds=1.0, reloads=20, starts=9, idle_seconds=60, saturation_rounds=9, saturation_seconds=3, overload_seconds=60, many_reloads=200, entities=1_000_000),
}


class Options(argparse.Namespace):
    """The lengths of the measurements, and the destinations of the figures."""

    def take(self, length):
        vars(self).update(LENGTHS[length], raw={}, left_out={})

    def keep(self, what, lanes):
        self.raw[what] = [lane.as_json() for lane in lanes]

    def leave_out(self, name, reason):
        """Notes that a peer could not be measured."""
        self.left_out[name] = " ".join(str(reason).split())
        print(f"  left out: {name}: {self.left_out[name]}", file=sys.stderr)

    def keep_raw(self, what, figures):
        self.raw[what] = figures


def parse():
    parser = argparse.ArgumentParser(prog="benches/budget", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="table", choices=["table", *RUNS], help="the table (default), or one run at length")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", dest="length", action="store_const", const="quick", help="some four minutes, wider spreads")
    length.add_argument("--long", dest="length", action="store_const", const="long", help="some twenty minutes; the default of a single run")
    parser.add_argument("--peers", action="store_true", help="the rows of docs/performance.md and docs/mqtt.md, with the peers that are fetched")
    parser.add_argument("--rows", help="only these rows, separated by commas: " + " ".join(row.__name__ for row in ROWS))
    parser.add_argument("--workload", choices=["tensor", "photo"], default="tensor", help="what `overload` sends")
    parser.add_argument("--binary", type=Path, default=ledge.BINARY, metavar="FILE", help="the ledge to measure [target/dist/ledge]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables for docs/performance.md to FILE")
    options = parser.parse_args(namespace=Options())
    known = {row.__name__ for row in ROWS}
    if options.rows and not known.issuperset(options.rows.split(",")):
        parser.error(f"--rows: unknown row; expected some of {', '.join(sorted(known))}")
    return options


def table_rows(options):
    """Every row, one subject after the other. The servers stay up in between."""
    chosen = WITH_PEERS if options.peers else ROWS
    if options.rows:
        chosen = [row for row in ROWS if row.__name__ in options.rows.split(",")]
    names, absent = which_are_fetched() if options.peers else ([], {})
    for name, reason in absent.items():
        options.leave_out(name, reason)
    with stage.servers(names, options) as servers:
        for subject in chosen:
            yield from attempt(lambda: subject(servers, options), subject.__name__)
    if not options.rows:
        for name in ("saturation",) if options.peers else ("saturation", "overload", "reloads"):
            yield from attempt(lambda: RUNS[name](options), name)


def attempt(rows, name):
    """The rows. A row that cannot be measured has its reason, and the others follow."""
    try:
        yield from rows()
    except Exception as error:  # of any kind: the closing lines name it, and the exit status is 1
        yield Row(name, verdict=NOT_MEASURED, beside=[f"{type(error).__name__}: {error}"])


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
        rows = attempt(lambda: overload(options, options.workload), "overload")
    else:
        rows = attempt(lambda: run(options), options.what) if run else table_rows(options)
    machine, contention, started = provenance.of_run(), processes.Contention(), time.monotonic()
    print("{cpu}, {cores} cores, Linux {kernel}, load average {load_average:.2f} before\n".format(**machine))
    if machine["load_average"] > machine["cores"] / 4:
        print("The machine is busy with other work: wall times are unreliable, and ratios vary more.\n")
    print(table.header(), flush=True)
    shown = []
    for row in rows:
        shown.append(row)
        print(table.show(row), flush=True)
    machine.update(seconds=time.monotonic() - started, rounds=options.rounds, steal_share=contention.steal_share())
    print(f"\n{provenance.line(machine)}")
    for name, reason in options.left_out.items():
        print(f"left out: {name}: {reason}")
    met = sum(row.verdict == MEETS for row in shown)
    missed = [row for row in shown if row.is_missed]
    print(f"{met} of {met + len(missed)} rows meet their budget; {len(shown) - met - len(missed)} have none")
    for row in missed:
        print(f"{FALLS_SHORT if row.verdict == FALLS_SHORT else NOT_MEASURED}: {row.what}")
    if options.json:
        measured = {"machine": machine, "left_out": options.left_out, "rows": [row.as_json() for row in shown], "measured": options.raw}
        options.json.write_text(json.dumps(measured, indent=1))
    if options.markdown:
        options.markdown.write_text(markdown.tables(shown, machine, options.left_out))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
