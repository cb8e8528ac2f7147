"""Does the work that __main__.py describes, once the packages are there."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "setup"))

import entry  # noqa: E402
import graph  # noqa: E402
import judgement  # noqa: E402
import methods  # noqa: E402
import onnx  # noqa: E402
import overflow  # noqa: E402
import report  # noqa: E402
import runtimes  # noqa: E402
import samples as sample_files  # noqa: E402
from options import FAILED, REFUSED, parse  # noqa: E402
from progress import Failure, Progress  # noqa: E402

# Less of a difference in speed than this is noise.
CLEARLY = 0.85


class Run:
    """One model, its samples, and the candidates made of it in SCRATCH."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.prepared = options, scratch, scratch / "float.onnx"
        self.model = graph.load(options.model)
        self.ports = graph.inputs(self.model)
        self.class_names = read_names(options.class_names)
        self.notes = graph.prepare(self.model, self.prepared)
        self.ready = onnx.load(self.prepared)
        methods.name_nodes(self.ready)
        onnx.save(self.ready, self.prepared)
        self.check_keep_float()
        self.check_batch()
        self.float, refusal = runtimes.load(runtimes.OnnxRuntime, options.model, 1)
        if refusal:
            raise Failure(f"ONNX Runtime refuses {options.model}: {refusal}")
        self.threads = sorted({1, len(os.sched_getaffinity(0))})

    def check_keep_float(self):
        known = {word for node in self.ready.graph.node for word in (node.name, node.op_type)}
        for word in self.options.keep_float:
            if word not in known:
                operators = ", ".join(sorted({node.op_type for node in self.ready.graph.node}))
                raise Failure(
                    f"--keep-float {word}: the prepared model has no such node or operator. Its operators are {operators}; "
                    "ONNX Runtime merges and splits some while it prepares a model.")

    def check_batch(self):
        for port in self.ports:
            if port.shape and port.shape[0] not in (None, 1):
                raise Failure(
                    f"{port.name} takes batches of exactly {port.shape[0]}. "
                    "Export the model with a variable first dimension, or with 1.")

    def read_samples(self):
        with Progress("read the samples") as progress:
            self.samples = sample_files.read(self.options, self.ports, self.class_names, self.class_count())
            progress.done(f"{len(self.samples.calibration)} to calibrate, {len(self.samples.held_out)} held out")
            answer = self.answer(self.float, self.samples.held_out[0])
        self.notes += self.samples.notes
        softmax = any(node.op_type == "Softmax" and node.output[0] in answer for node in self.ready.graph.node)
        self.metric, self.because, self.judged = judgement.choose_metric(self.options, self.samples, answer, softmax)
        self.limit = judgement.default_limit(self.options, self.metric)
        self.notes += judgement.cautions(self.metric, self.limit, self.samples)

    def class_count(self):
        """How many classes the output to judge has, if it is one vector of known length."""
        ports = {port.name: port for port in graph.outputs(self.model)}
        port = ports.get(self.options.output_name) or (next(iter(ports.values())) if len(ports) == 1 else None)
        sides = [dim for dim in port.shape[1:] if dim != 1] if port else []
        return sides[0] if len(sides) == 1 else None

    def answer(self, model, sample):
        try:
            return model.run(sample.feed())
        except Failure:
            raise
        except Exception as error:
            raise Failure(f"the model does not take {sample.name}: {graph.first_line(error)}") from error

    def make(self):
        """The candidates as (report entry, path), the best first."""
        with Progress("calibration data"):
            feeds = self.samples.calibration_feeds(self.ports)
        made = []
        for number, candidate in enumerate(methods.candidates(self.options, self.ready)):
            path = self.scratch / f"{number}.onnx"
            with Progress(f"make and judge: {candidate.name}") as progress:
                try:
                    candidate.make(self.prepared, path, feeds)
                except Failure:
                    raise
                except Exception as error:  # whatever the quantizers raise, the other candidates are tried
                    made.append(({"name": candidate.name, "failed": graph.first_line(error)}, None))
                    progress.done("failed")
                    continue
                made.append((self.judge(candidate.name, path), path))
        if all("failed" in result for result, _ in made):
            raise Failure("no method could do it:\n" + "\n".join(f"  {result['name']}: {result['failed']}" for result, _ in made))
        return self.best_first(made)

    def judge(self, name, path):
        result = {"name": name, "bytes": path.stat().st_size, "sha256": report.sha256(path), "agreement": {}, "refused_by": {}}
        model = onnx.load(path)
        result["layers"] = graph.coverage(model)
        result["largest_weight_pair"] = overflow.largest_pair(model)
        tallies, models = {}, {}
        for runtime in runtimes.RUNTIMES:
            models[runtime.name], refusal = runtimes.load(runtime, path, self.threads[-1])
            if refusal:
                result["refused_by"][runtime.name] = refusal
                del models[runtime.name]
            else:
                tallies[runtime.name] = judgement.Tally(self.judged)
        for sample in self.samples.held_out:
            reference = self.answer(self.float, sample)
            for runtime, tally in tallies.items():
                if not tally.broken:
                    tally.add(sample, reference, self.answer(models[runtime], sample))
        if not tallies:
            return {"name": name, "failed": "; ".join(f"{key} refuses it: {why}" for key, why in result["refused_by"].items())}
        losses = {runtime: tally.loss(self.metric) for runtime, tally in tallies.items()}
        ranked = self.metric in ("top1", "accuracy")
        # The daemon may take either runtime, so the worse one counts.
        result["judged_in"] = max(losses, key=losses.get)
        worst = losses[result["judged_in"]]
        result["loss"] = round(worst, 6) if worst != float("inf") else None
        result["agreement"] = {runtime: tally.summary(ranked) for runtime, tally in tallies.items()}
        feed = self.samples.held_out[0].feed()
        result["latency"] = runtimes.latencies(self.options.model, path, feed, self.threads, self.options.rounds)
        return result

    def best_first(self, made):
        """Agreement decides. Of those that agree equally well the first is taken, unless another is clearly faster."""
        made = sorted(made, key=self.disagreement)
        equal = [pair for pair in made if self.disagreement(pair) == self.disagreement(made[0])]
        fastest = max(speed(result) for result, _ in equal)
        best = next(pair for pair in equal if speed(pair[0]) >= CLEARLY * fastest)
        return [best, *(pair for pair in made if pair is not best)]

    def disagreement(self, pair):
        """Losses that differ by less than a tenth of the limit count as equal; a model that one runtime refuses comes later."""
        result, _path = pair
        if result.get("loss") is None:
            return (2, 0)
        return (bool(result["refused_by"]), round(max(result["loss"], 0) / (self.limit / 10 or 1e-9)))

    def report(self, made):
        best, _path = made[0]
        accepted, verdict = judgement.verdict(best.get("loss"), self.limit, self.metric, self.samples)
        name, fast = report.processor()
        if fast is False:
            self.notes.append("this processor lacks VNNI or its ARM equivalent: int8 gains little here")
        if self.options.full_range:
            self.notes.append(
                "--full-range: x86-64 processors without VNNI compute this model wrong; the loss is that of this processor")
        return {
            "accepted": accepted, "chosen": best["name"] if best.get("loss") is not None else None,
            "verdict": verdict,
            "recommendation": report.recommendation(best, self.options.model.stat().st_size, accepted), "notes": self.notes,
            "metric": self.metric, "metric_because": self.because, "max_loss": self.limit, "judged_outputs": self.judged,
            "model": {
                "file": self.options.model.name, "bytes": self.options.model.stat().st_size,
                "sha256": report.sha256(self.options.model), "opset": graph.opset(self.model)},
            "samples": {
                "kind": self.samples.kind, "calibration": len(self.samples.calibration), "held_out": len(self.samples.held_out),
                "sha256": sample_files.digest(*(s.digest.encode() for s in self.samples.calibration + self.samples.held_out)),
                "held_out_names": [sample.name for sample in self.samples.held_out]},
            "candidates": [result for result, _ in made], "processor": {"name": name, "fast_int8": fast, "threads": self.threads},
            "versions": report.versions(self.options.method in ("auto", "nncf"))}


def speed(result):
    """How much faster than float, with one thread, in the runtime that gains most. Ratios are steadier than times."""
    rows = [row for row in result.get("latency", []) if "speedup" in row and row["threads"] == 1]
    return max((row["speedup"]["median"] for row in rows), default=0)


def read_names(path):
    if path is None:
        return []
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--class-names: {error}") from error


def quantize(options):
    entry.check_free(options.output, options.replace)
    rejected = options.output.with_name(options.output.name + ".rejected.json")
    with entry.new_folder(options.output) as new, tempfile.TemporaryDirectory(prefix="quantize-") as scratch:
        run = Run(options, Path(scratch))
        run.read_samples()
        made = run.make()
        result = run.report(made)
        print("\n" + "\n".join(report.table(result)))
        if not result["accepted"]:
            report.write(rejected, result)
            raise Rejected(f"  Nothing was written but the report: {rejected}")
        best, path = made[0]
        (new / "1").mkdir()
        (new / "1" / "model.onnx").write_bytes(path.read_bytes())
        if options.keep_fp32:
            (new / "float32.onnx").write_bytes(options.model.read_bytes())
        models = [runtime(path, 1) for runtime in runtimes.RUNTIMES if runtime.name not in best["refused_by"]]
        notes = entry.fill(new, options, run.samples, run.float, models, run.ports, run.judged, run.class_names)
        result["notes"] += notes
        for note in notes:
            print(f"  note: {note}")
        report.write(new / "report.json", result)
    rejected.unlink(missing_ok=True)
    print(f"  Written: {options.output}/ (model.toml, 1/model.onnx, report.json)")


class Rejected(Exception):
    """The best candidate loses more than is allowed."""


def main(arguments):
    try:
        quantize(parse(arguments))
    except Rejected as rejection:
        print(rejection)
        sys.exit(REFUSED)
    except Failure as failure:
        print(f"\nNot quantized: {failure}", file=sys.stderr)
        sys.exit(FAILED)
    except OSError as error:
        print(f"\nNot quantized: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
