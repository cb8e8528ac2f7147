#!/usr/bin/env python3
"""Runs operators on hostile numbers in both runtimes, and writes the table of what they do.

usage: run.py --root .ledge --runner target/debug/examples/operators [--reads] [--harmful] [--fixed] [--only WORD] [--format onnx|ir|tflite]
              [--runtime onnxruntime|openvino] [--out FILE]

README.md beside this file says how to read the table. With --reads the dangers that the files show are respected: the table is
then what callers of Ledge can reach.
"""
import argparse
import collections
import json
import os
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
# As a sealed worker process on a box of little memory has it.
MEMORY_MAX = 3 << 30
ANSWER_TIMEOUT_S = 30
# After so many ends of the process, an operand's other numbers are not tried.
ENDS_MAX = 3
TOGETHER_CASES = 30
DAMAGED = 99
COLUMNS = ("cases", "answered", "errors", "crashes", "foreign", "endless")


# All numbers that these move are among their inputs: they fill no place with zeros.
NEVER_ZERO = {
    "Slice", "StridedSlice", "Reshape", "Roll", "Split", "VariadicSplit", "TopK", "Tile", "Transpose", "Squeeze", "Unsqueeze",
    "SLICE", "STRIDED_SLICE", "RESHAPE", "SPLIT", "SPLIT_V", "TOPK_V2", "TILE", "TRANSPOSE"}


class Died(Exception):
    """The process has ended, with this end."""


def end_of(code):
    return "damaged memory" if code == DAMAGED else f"signal {-code}" if code < 0 else f"exit {code}"


class Worker:
    """A process that loads and runs models. It is started again when it has died."""

    def __init__(self, command, byte, library, environment):
        self.command, self.byte, self.process, self.file = command, byte, None, None
        self.environment = {**os.environ, **environment, "LD_PRELOAD": library, "REDZONE_BYTE": str(byte), "ORT_DISABLE_TELEMETRY": "1"}

    def start(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environment,
            preexec_fn=limit, bufsize=0, start_new_session=True)
        self.buffer, self.is_loaded = b"", False

    def ask(self, order, timeout=ANSWER_TIMEOUT_S):
        if self.process is None:
            self.start()
        end = time.monotonic() + timeout
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            while b"\n" not in self.buffer:
                ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
                if not ready:
                    self.stop()
                    raise Died("endless")
                more = self.process.stdout.read(1 << 20)
                if not more:
                    raise BrokenPipeError
                self.buffer += more
        except (BrokenPipeError, ConnectionResetError):
            code = self.process.wait()
            self.process = None
            raise Died(end_of(code)) from None
        line, self.buffer = self.buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "died" in answer:
            self.is_loaded = False
            raise Died(end_of(answer["died"]))
        return answer

    def stop(self):
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def load(self, order):
        self.order = order
        answer = self.ask(order, 120)
        self.is_loaded = "error" not in answer
        return answer

    def run(self, inputs):
        if self.process is None or not self.is_loaded:
            self.load(self.order)
        return self.ask({"inputs": inputs})


def numbers_of(output):
    """The numbers of an output as far as they are shown."""
    import numpy as np
    from cases import DATATYPES
    dtype = {name: dtype for dtype, name in DATATYPES.items()}.get(output["datatype"])
    raw = bytes.fromhex(output["data"])
    size = np.dtype(dtype).itemsize
    return np.frombuffer(raw[:len(raw) // size * size], dtype)


def strangers(spec, values, answer):
    """A number of the outputs that no input has; None if there is none."""
    import numpy as np
    fills = [9001, 5001, 5002] + ([] if spec.operator in NEVER_ZERO else [0])
    for output in answer["outputs"][:1]:
        found = np.atleast_1d(numbers_of(output))
        own = [np.asarray(value).reshape(-1) for value in values if str(value.dtype) == str(found.dtype)]
        if not own:
            continue
        known = np.concatenate(own + [np.asarray(fills, found.dtype)])
        strange = found[~np.isin(found, known) & ~np.isnan(found.astype(np.float64))]
        if strange.size:
            return strange[0].item()
    return None


def short(value):
    text = json.dumps(value.tolist()).replace(" ", "")
    return text if len(text) <= 60 else text[:57] + "..."


class Table:
    def __init__(self):
        self.rows = collections.defaultdict(lambda: collections.Counter())
        self.examples = collections.defaultdict(dict)

    def count(self, key, kind, example=None):
        self.rows[key]["cases"] += 1
        self.rows[key][kind] += 1
        if example and kind not in self.examples[key]:
            self.examples[key][kind] = example


    def write(self, path, stats, began):
        rows = [[*key, *(counts[column] for column in COLUMNS), self.examples[key]] for key, counts in sorted(self.rows.items())]
        path.write_text(json.dumps({"rows": rows, "stats": stats, "seconds": time.monotonic() - began}, indent=0))
        return rows


def cases_of(spec, free, is_openvino):
    """Values of all inputs that are free, one case after the other, the inputs as they are first."""
    from cases import hostile
    import numpy as np
    made = [given for given in spec.inputs if given is not None]
    base = {given.name: given.value for given in made}
    lengths = {length for given in made if not given.is_steer for length in given.value.shape} or {8}
    yield base
    yield from ({**base, **known} for known in spec.how.get("known", []) if set(known) <= set(free))
    steers = [given for given in made if given.name in free and given.is_steer]
    seed = zlib.crc32(f"{spec.operator} {spec.variant} {sorted(free)}".encode())

    def fits(value):
        # Ledge refuses other integers for OpenVINO, and empty tensors.
        if not is_openvino:
            return True
        if value.size == 0 or value.dtype.kind not in "iu" or value.dtype.itemsize < 8:
            return value.size > 0
        return all(-2**31 <= number < 2**31 for number in value.reshape(-1).tolist())

    if len(steers) == 1:
        for value in hostile(steers[0], lengths, seed):
            if fits(value):
                yield {**base, steers[0].name: value}
        return
    generator = random.Random(seed)
    lists = [[value for value in hostile(steer, lengths, seed) if fits(value)] for steer in steers]
    for _ in range(TOGETHER_CASES):
        chosen = {}
        for steer, values in zip(steers, lists):
            if values and generator.random() < 0.7:
                chosen[steer.name] = generator.choice(values)
        yield {**base, **chosen}


def judged(spec, pair, inputs, values):
    """What becomes of one call, with a detail."""
    answers = []
    try:
        for worker in pair:
            answers.append(worker.run(inputs))
            if "error" in answers[-1]:
                return "errors", answers[-1]["error"][:200]
    except Died as died:
        return {"endless": "endless", "damaged memory": "foreign"}.get(str(died), "crashes"), str(died)
    one, other = ([(output["shape"], output["hash"]) for output in answer["outputs"]] for answer in answers)
    if one != other:
        return "foreign", "outputs differ with what memory held"
    strange = strangers(spec, values.values(), answers[0]) if spec.moves else None
    return ("answered", "") if strange is None else ("foreign", f"{strange} is in the output")


def measure(table, spec, key, order, pair, free, stats):
    """Runs the cases of one model in a pair of workers. True when the runtime takes the model."""
    from cases import as_order
    loads = []
    for worker in pair:
        try:
            loads.append(worker.load(order))
        except Died as died:
            table.count(key, "endless" if str(died) == "endless" else "crashes", f"the load: {died}")
            return False
    if any("error" in load for load in loads):
        stats["not loaded"].append((key, loads[0].get("error", loads[1].get("error"))[:200]))
        return False
    given = [made for made in spec.inputs if made is not None and made.name in free]
    ends, has_failed = 0, False
    for number, values in enumerate(cases_of(spec, free, "openvino" in key)):
        inputs = [as_order(made, values[made.name]) for made in given]
        kind, detail = judged(spec, pair, inputs, values)
        if kind in ("crashes", "foreign", "endless") and has_failed:
            # What a failed run left behind, which Ledge removes, may be the cause.
            for worker in pair:
                worker.is_loaded = False
            kind, detail = judged(spec, pair, inputs, values)
            has_failed = False
        has_failed |= kind == "errors"
        if kind == "errors" and number == 0:
            stats["base fails"].append((key, detail))
        example = ", ".join(f"{made.name}={short(values[made.name])}" for made in given if made.is_steer)
        table.count(key, kind, f"{example}: {detail}" if kind not in ("answered", "errors") else None)
        ends += kind in ("crashes", "endless") or detail == "damaged memory"
        if ends >= ENDS_MAX:
            break
    try:
        for worker in pair:
            if worker.process and worker.is_loaded:
                worker.is_loaded = False
                worker.ask({"end": True})
    except Died as died:
        table.count(key, "foreign", f"the end: {died}")
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".ledge", type=Path)
    parser.add_argument("--runner", default="target/debug/examples/operators", type=Path)
    parser.add_argument("--python", type=Path, help="where the wheels of the runtimes are unpacked")
    parser.add_argument("--reads", action="store_true")
    parser.add_argument("--harmful", action="store_true", help="only operators that do harm by the table")
    parser.add_argument("--fixed", action="store_true", help="with data of fixed shapes")
    parser.add_argument("--only", default="")
    parser.add_argument("--format", default="")
    parser.add_argument("--from", dest="first", default="", help="the first operator by the alphabet")
    parser.add_argument("--to", dest="last", default="~", help="the operator before which to end")
    parser.add_argument("--runtime", default="")
    parser.add_argument("--out", type=Path, default=Path("operators.json"))
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.python), str(arguments.root / "tools/python")]

    folder = Path(tempfile.mkdtemp(prefix="operators-"))
    library = folder / "redzones.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "redzones.c", "-lpthread"], check=True)
    rust = [str(arguments.runner.resolve()), str((arguments.root / "runtimes").resolve())]
    environment = {"PYTHONPATH": os.pathsep.join([str(arguments.python), str(arguments.root / "tools/python"), str(HERE)])}
    python = [sys.executable, str(HERE / "runner.py")]
    workers = {}
    for runtime in ("onnxruntime", "openvino"):
        command = rust if arguments.reads else [*python, runtime]
        workers[runtime] = [Worker(command, byte, str(library), environment) for byte in (0x55, 0xAA)]

    formats = []
    for name, module in (("onnx", "specs_onnx"), ("ir", "specs_ir"), ("tflite", "specs_tflite")):
        if arguments.format in ("", name) and (HERE / f"{module}.py").exists():
            formats.append((name, __import__(module)))
    lines = [line.split("\t") for line in (HERE.parent.parent / "src/engine/operators.tsv").read_text().splitlines()[1:]]
    harmful = {(line[0], line[1]) for line in lines if line[7:9] != ["0", "0"]}
    table, stats, began = Table(), collections.defaultdict(list), time.monotonic()
    for form, module in formats:
        suffix = {"onnx": "onnx", "ir": "xml", "tflite": "tflite"}[form]
        for spec in module.specs():
            if arguments.only and arguments.only not in spec.operator:
                continue
            if arguments.harmful and (form, spec.operator) not in harmful:
                continue
            if not arguments.first <= spec.operator < arguments.last:
                continue
            everything = {made.name for made in spec.inputs if made is not None and not made.is_steer}
            steers = [made.name for made in spec.steers]
            chosen = [([steer], f"{[given.name if given else '' for given in spec.inputs].index(steer)} {steer}") for steer in steers]
            if len(steers) > 1:
                chosen.append((steers, "together"))
            if len(steers) > 2:
                # A runtime may have another way for an operator of which one such input is a constant.
                chosen += [([steer for steer in steers if steer != constant], "together") for constant in steers]
            for free, operand in chosen:
                for runtime in ("onnxruntime", "openvino") if form == "onnx" else ("openvino",):
                    if arguments.runtime not in ("", runtime):
                        continue
                    since = time.monotonic()
                    # The caller's data in any shape; lengths of a fixed shape, on which the rank of an output may depend; or
                    # constant data.
                    attempts = [(everything | set(free), ()), (everything | set(free), set(free)), (set(free), ()), (set(free), set(free))]
                    for given, fixed in attempts:
                        fixed = set(fixed) | everything if arguments.fixed else fixed
                        path = folder / f"model.{suffix}"
                        key = (form, spec.operator, operand, runtime)
                        try:
                            content = module.model(spec, given, fixed)
                        except Exception as error:
                            stats["not made"].append((key, spec.variant, repr(error)[:300]))
                            continue
                        if isinstance(content, tuple):
                            content, weights = content
                            path.with_suffix(".bin").write_bytes(weights)
                        path.write_bytes(content)
                        order = {"file": str(path), "runtime": runtime, "respects_dangers": arguments.reads}
                        if measure(table, spec, key, order, workers[runtime], given, stats):
                            break
                    took = time.monotonic() - since
                    table.write(arguments.out, stats, began)
                    if took > 10:
                        print(f"{took:.0f} s: {form} {spec.operator} {spec.variant} {operand} {runtime}", file=sys.stderr, flush=True)
    for pair in workers.values():
        for worker in pair:
            worker.stop()
    rows = table.write(arguments.out, stats, began)
    bad = sum(1 for row in rows if sum(row[7:10]))
    print(f"{sum(row[4] for row in rows)} cases in {time.monotonic() - began:.0f} s; {bad} of {len(rows)} rows with crashes, foreign memory or runs without end; {arguments.out}")


if __name__ == "__main__":
    main()
