#!/usr/bin/env python3
"""Measures what a change costs: two or more builds of Ledge by turns, and Triton beside them where it is fetched.

    python3 benches/compare.py before=/tmp/ledge-before after=target/dist/ledge
    python3 benches/compare.py before=/tmp/ledge-before after=target/dist/ledge --rows tiny,tiny_load --rounds 15

Each build is a daemon over a root of its own under .ledge/bench, with the same models, and they get the same requests in
rounds: before, after, Triton, before, after, Triton. A ratio is to the first build and taken within a round. CPU time is that of
the daemon and its children together, user and system, for each request: see README.md, Method. Needs `make setup-test`;
`python3 benches/peers/fetch.py triton` fetches Triton.
"""
import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the packages `budget` and `peers`

from budget import ledge, processes, provenance, stage  # noqa: E402
from budget.lanes import LoadedLane, ServedLane, interleave, ratio  # noqa: E402
from budget.wire import binary_call, json_call, request  # noqa: E402
from peers import contenders, fetch  # noqa: E402

CLIENTS = 16
PHOTO = Path(__file__).resolve().parent / "data" / "chelsea_640x480.jpg"


def build(name, binary):
    """A daemon with every model of the rows; one thread each."""
    ledge.BINARY = binary
    return stage.ledge_with(f"compare-{name}", stage.peer_models())


def rows():
    """{name: (what it is, the request, the lane, whether Triton answers it too)}"""
    tiny = json_call("wine_mlp", stage.wine())
    jpeg = PHOTO.read_bytes()
    photo = request("/v2/models/network/infer", jpeg, [("Content-Type", "image/jpeg")])
    tensor = binary_call("network", stage.picture())
    return {
        "tiny": ("tiny model, JSON, one client", tiny, ServedLane, True),
        "tiny_load": (f"tiny model, {CLIENTS} clients", tiny, LoadedLane, True),
        "cached": ("cached tiny model, one client", json_call("wine_cached", stage.wine()), ServedLane, True),
        "sum": ("110 KB binary, one client", binary_call("sum", stage.numbers()), ServedLane, True),
        "tensor": ("602 KB binary to the network, one client", tensor, ServedLane, True),
        "photo": (f"photograph of {len(jpeg) // 1000} kB to label, one client", photo, ServedLane, False),
        "mixed_load": (f"photographs and tensors in turns, {CLIENTS} clients", [photo, tensor], LoadedLane, False),
    }


def parse(names):
    parser = argparse.ArgumentParser(prog="benches/compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=FILE", help="a ledge to measure; the first is what the others are compared with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row [9]")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each server in each round [0.7]")
    parser.add_argument("--rows", default=",".join(names), help="only these rows, separated by commas: " + " ".join(names))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    options = parser.parse_args()
    options.rows = options.rows.split(",")
    if unknown := set(options.rows).difference(names):
        parser.error(f"--rows: unknown row {', '.join(sorted(unknown))}; expected some of {', '.join(names)}")
    options.builds = [(name, Path(file).resolve()) for name, _, file in (build.partition("=") for build in options.builds)]
    for name, file in options.builds:
        if not file.is_file():
            parser.error(f"{name}: {file} is no file; expected NAME=FILE with a binary of ledge")
    return options


def main():
    all_rows = rows()
    options = parse(all_rows)
    # `provenance` names the last build.
    ledge.BINARY = options.builds[-1][1]
    machine, contention, started = provenance.of_run(), processes.Contention(), time.monotonic()
    print("{cpu}, {cores} cores, Linux {kernel}, load average {load_average:.2f} before; {rounds} rounds of {seconds:g} s\n".format(
        **machine, rounds=options.rounds, seconds=options.seconds))
    print("| row | build | CPU/request, us | p50, us | p99, us | requests/s | CPU to first | p50 to first |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    measured = {}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(build(name, file)) for name, file in options.builds}
        try:
            servers["Triton"] = stack.enter_context(contenders.Triton(stage.WORK / "compare-triton", stage.peer_models()))
        except fetch.Missing as missing:
            print(f"Triton is left out: {missing}")
        for what, data, lane, has_peer in (all_rows[name] for name in options.rows):
            lanes = [lane(name, server, data) for name, server in servers.items() if has_peer or name != "Triton"]
            interleave(lanes, options.rounds, options.seconds)
            measured[what] = [each.as_json() for each in lanes]
            for each in lanes:
                figures = [each.cpu_us(), each.p50_us(), each.p99_us(), each.rate(options.seconds)]
                ratios = [ratio(each, lanes[0], value) for value in ("cpu_us", "p50_us")]
                cells = [spread.show() for spread in figures] + ["1" if each is lanes[0] else spread.show() for spread in ratios]
                print(f"| {what} | {each.name} | {' | '.join(cells)} |", flush=True)
    machine.update(seconds=time.monotonic() - started, rounds=options.rounds, steal_share=contention.steal_share())
    print(f"\n{provenance.line(machine)}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "measured": measured}, indent=1))


if __name__ == "__main__":
    main()
