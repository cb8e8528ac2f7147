"""Fills .ledge/ with what a build from this checkout needs: inference runtimes and models. `make setup` calls it.

usage: python3 models/setup [--test] [--model NAME]... [--arch amd64|arm64]
  --test        also what the tests need, and the optional models
  --model NAME  also this optional model of models/sources.json; later runs keep it up to date
  --arch NAME   also the runtimes of this architecture, for its packages, if it is not this machine's

Only Python's standard library is used, and nothing is written outside .ledge/. It may be interrupted at any moment and
started again, because every folder is made under another name and renamed when it is complete, and downloads are kept.
"""
import sys

if sys.version_info < (3, 9):  # before anything is imported that an older Python cannot read
    sys.exit(
        "Python 3.9 or newer is needed (found {}.{}). Name one, for example: "
        "make setup PYTHON=python3.12".format(*sys.version_info))

sys.dont_write_bytecode = True  # the checkout stays as it is

import argparse  # noqa: E402
import fcntl  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import preflight  # noqa: E402
from progress import Failure  # noqa: E402
from steps import MACHINES, Setup  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]


def run(setup, with_tests, names, arch):
    chosen = setup.chosen_models(with_tests, names)
    left_out = setup.without_npm(chosen)
    if left_out:
        print(
            f"Left out: {', '.join(left_out)}. npm fetches the weights, and it is missing here (Debian and Ubuntu: apt install npm, "
            "Fedora: dnf install nodejs-npm).")
        chosen = {name: source for name, source in chosen.items() if name not in left_out}
    stale = setup.stale_steps(with_tests, chosen, MACHINES.get(arch))
    if not stale:
        print(f"Set up: {setup.summary(with_tests, chosen)}")
        return
    missing = preflight.missing(CHECKOUT / "Cargo.toml", setup.oldest_glibc())
    if missing:
        raise Failure("\n".join(["This machine lacks:", *(f"  - {line}" for line in missing)]))
    started = time.monotonic()
    print("Setting up in .ledge/ (once; it needs the network; what is finished is kept if you interrupt it)", flush=True)
    for step in stale:
        setup.make(step)
    print(f"Set up in {time.monotonic() - started:.0f} s: {setup.summary(with_tests, chosen)}")


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--arch", choices=MACHINES)
    given = parser.parse_args(arguments)
    # `kill` must end the programs that this one started too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated. What is finished is kept: run it again to go on."))
    try:
        setup = Setup(CHECKOUT)
        with open(setup.folder / "setup.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("Another set-up of this checkout is running; waiting for it to end.", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            run(setup, given.test, given.model, given.arch)
    except Failure as failure:
        sys.exit(f"\nSet-up stopped: {failure}")
    except OSError as error:
        sys.exit(f"\nSet-up stopped: {error}. What is finished is kept: run it again to go on.")
    except KeyboardInterrupt:
        print("\nInterrupted. What is finished is kept: run it again to go on.", file=sys.stderr)
        sys.exit(130)


main(sys.argv[1:])
