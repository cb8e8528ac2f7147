#!/usr/bin/env python3
"""Measures calls over gRPC beside the same calls over HTTP, and Triton's of both where it is fetched.

    python3 benches/grpc.py                                     # target/dist/ledge
    python3 benches/grpc.py --binary target/debug/ledge --rows tiny --callers 1

The servers take turns, as in compare.py. CPU time is that of the server's processes together, for each call. Needs
`make setup-test`; `python3 benches/peers/fetch.py triton` fetches Triton.
"""
import argparse
import contextlib
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # the packages `budget` and `peers`

from budget import ledge, provenance, stage  # noqa: E402
from budget.http2 import GrpcLane, infer_request  # noqa: E402
from budget.lanes import LoadedLane, interleave, ratio  # noqa: E402
from budget.servers import free_port  # noqa: E402
from budget.wire import binary_call  # noqa: E402
from peers import contenders, fetch  # noqa: E402

ROWS = {
    "tiny": ("tiny model, 52 bytes", "wine_mlp", stage.wine),
    "sum": ("110 KB", "sum", stage.numbers),
    "tensor": ("602 KB to the network", "network", stage.picture),
}


def main():
    parser = argparse.ArgumentParser(prog="benches/grpc.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ledge.BINARY, help="the ledge to measure [target/dist/ledge]")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row [9]")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each server in each round [0.7]")
    parser.add_argument("--rows", default=",".join(ROWS), help="only these rows, separated by commas")
    parser.add_argument("--callers", default="1,16", help="callers at a time [1,16]")
    options = parser.parse_args()
    ledge.BINARY = options.binary.resolve()
    print(provenance.line({**provenance.of_run(), "seconds": 0, "rounds": options.rounds, "steal_share": 0.0}))
    print("| call | callers | server | CPU/call, us | p50, us | p99, us | calls/s | CPU to the first |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with contextlib.ExitStack() as stack:
        daemon = stage.ledge_with("grpc", stage.peer_models())
        ports = {"Ledge": free_port()}
        daemon.settings.append(f"grpc.listen=127.0.0.1:{ports['Ledge']}")
        servers = {"Ledge": stack.enter_context(daemon)}
        try:
            triton = contenders.Triton(stage.WORK / "grpc-triton", stage.peer_models())
            ports["Triton"] = triton.grpc_port = free_port()
            servers["Triton"] = stack.enter_context(triton)
        except fetch.Missing as missing:
            print(f"Triton is left out: {missing}")
        for what, model, tensor in (ROWS[name] for name in options.rows.split(",")):
            tensor = tensor()
            for callers in map(int, options.callers.split(",")):
                lanes = []
                for name, server in servers.items():
                    lanes.append(LoadedLane(f"{name}, HTTP", server, binary_call(model, tensor), callers))
                    lanes.append(GrpcLane(f"{name}, gRPC", server, ports[name], infer_request(model, tensor), callers))
                interleave(lanes, options.rounds, options.seconds)
                for each in lanes:
                    figures = [each.cpu_us(), each.p50_us(), each.p99_us(), each.rate(options.seconds)]
                    cells = [spread.show() for spread in figures]
                    cells.append("1" if each is lanes[0] else ratio(each, lanes[0]).show())
                    print(f"| {what} | {callers} | {each.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
