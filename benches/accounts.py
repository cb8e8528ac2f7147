#!/usr/bin/env python3
"""Compares the CPU time in the accounts of a box with that of its processes in /proc, under mixed load.

    python3 benches/accounts.py                    # an hour
    python3 benches/accounts.py --minutes 5 --alone 30 --json accounts.json

Five models are called at random times (an open loop), by one caller. The sum of the rows and of the box itself is compared with the CPU time of
the process tree over the same time, each ten minutes and at the end. Then each model is called alone at the same rate: the CPU time of
a call beside an idle service is compared with what the accounts had for it within the mix. Needs `make setup-test`.
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

from budget import ledge, processes, provenance  # noqa: E402
from capacity import add, load  # noqa: E402

# Calls a second; about a third of a core together.
RATES = {"wine_mlp": 100.0, "all_minilm_l6_v2": 4.0, "efficientnet_lite0": 3.0, "coco_detector": 2.0, "document_reader": 0.08}
SETTLE_S = 12  # Accounts are summed each five seconds.
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def of_processes(pid):
    """CPU seconds of a process, of all its descendants, and of those that ended."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    ended = stat[stat.rindex(")") + 2:].split()[13:15]  # cutime and cstime
    return processes.cpu_ns(processes.tree(pid)) / 1e9 + sum(map(int, ended)) * TICK_S


def of_accounts(daemon):
    """({model: (calls, CPU seconds)}, CPU seconds of the box itself)."""
    month = json.loads(daemon.get("/accounts")[1])["months"][-1]
    status, body = daemon.get(f"/accounts?month={month}")
    if status != 200:
        raise RuntimeError(f"GET /accounts: {status} {body}")
    document, sums = json.loads(body), {}
    for row in document["rows"]:
        count, spent = sums.get(row["model"], (0, 0.0))
        sums[row["model"]] = count + row["calls"], spent + row["cpu_seconds"]
    return sums, document["box"]["cpu_seconds"]


def spent(daemon, rates, seconds):
    """The difference that a load makes: ({model: (calls, seconds)}, seconds of the box, seconds of the processes)."""
    time.sleep(SETTLE_S)
    (models, own), tree = of_accounts(daemon), of_processes(daemon.pid)
    sent = load(daemon.port, rates, 1.0, seconds)
    time.sleep(SETTLE_S)
    (later, own_later), tree_later = of_accounts(daemon), of_processes(daemon.pid)
    rows = {}
    for model in rates:
        (before, cpu), (after, cpu_later) = models.get(model, (0, 0.0)), later[model]
        answered = sum(sample.status == 200 for sample in sent[model])
        if after - before != answered:
            raise RuntimeError(f"{model}: {answered} calls were answered, and the accounts have {after - before}")
        rows[model] = after - before, cpu_later - cpu
    return rows, own_later - own, tree_later - tree


def compare(daemon, minutes):
    """The mixed load, by parts of ten minutes: the sums of `spent`."""
    sums, own, tree = {}, 0.0, 0.0
    while minutes > 0:
        part, own_part, tree_part = spent(daemon, RATES, min(minutes, 10) * 60)
        minutes, own, tree = minutes - 10, own + own_part, tree + tree_part
        for model, (count, cpu) in part.items():
            known = sums.get(model, (0, 0.0))
            sums[model] = known[0] + count, known[1] + cpu
        counted = own + sum(cpu for _, cpu in sums.values())
        print(f"accounts {counted:.1f} s, /proc {tree:.1f} s, ratio {counted / tree:.4f}", file=sys.stderr, flush=True)
    return sums, own, tree


def main():
    parser = argparse.ArgumentParser(prog="benches/accounts.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ledge.BINARY, help="the ledge to measure [%(default)s]")
    parser.add_argument("--minutes", type=float, default=60, help="minutes of the mixed load [%(default)s]")
    parser.add_argument("--alone", type=float, default=60, help="seconds of each model alone [%(default)s]")
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args()
    ledge.BINARY = options.binary.resolve()
    machine, contention, started = provenance.of_run(), processes.Contention(), time.monotonic()
    daemon = ledge.Ledge("accounts", settings=["log.level=error"])
    for model in RATES:
        add(daemon, model)
    with daemon:
        load(daemon.port, RATES, 1.0, 15)  # First runs are slower.
        mixed, own, tree = compare(daemon, options.minutes)
        alone = {model: spent(daemon, {model: rate}, options.alone) for model, rate in RATES.items()}
    counted = own + sum(cpu for _, cpu in mixed.values())
    print(f"All of {options.minutes:g} minutes: accounts {counted:.2f} s, of which the box itself {own:.2f} s; /proc {tree:.2f} s; ratio {counted / tree:.4f}\n")
    print("| model | calls | accounts, ms of CPU time a call | alone, ms of the service a call | accounts : alone |\n| --- | ---: | ---: | ---: | ---: |")
    rows = []
    for model, (count, cpu) in mixed.items():
        calls_alone, tree_alone = alone[model][0][model][0], alone[model][2]
        rows.append({"model": model, "calls": count, "ms": cpu / count * 1e3, "alone_ms": tree_alone / calls_alone * 1e3})
        print(f"| {model} | {count} | {rows[-1]['ms']:.3f} | {rows[-1]['alone_ms']:.3f} | {rows[-1]['ms'] / rows[-1]['alone_ms']:.2f} |")
    machine.update(seconds=time.monotonic() - started, rounds=1, steal_share=contention.steal_share())
    print(f"\n{provenance.line(machine)}")
    if options.json:
        options.json.write_text(json.dumps({"accounts_s": counted, "own_s": own, "processes_s": tree, "models": rows}, indent=1))


if __name__ == "__main__":
    main()
