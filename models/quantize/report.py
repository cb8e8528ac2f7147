"""What the user gets to read: report.json, the table, and what to do about it."""
import hashlib
import json
import platform
from importlib import metadata

from overflow import LARGEST_PAIR
from progress import size as text_size

PACKAGES = ("onnxruntime", "openvino", "onnx", "numpy", "pillow", "nncf")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(with_nncf):
    names = [name for name in PACKAGES if name != "nncf" or with_nncf]
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def processor():
    """(its name, whether it multiplies int8 by VNNI or its ARM equivalent; None if that cannot be told)."""
    try:
        with open("/proc/cpuinfo") as file:
            facts = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    except OSError:
        return platform.machine(), None
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", facts.get("Features", "")).split()
    fast = any(flag in flags for flag in ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp")) if flags else None
    return facts.get("model name", platform.machine()), fast


def recommendation(best, float_bytes, accepted):
    """One sentence for the user, from the timings and the size of the best candidate."""
    if not accepted:
        return (
            "Keep the float model. If int8 is a must: give more samples that look like the real ones, leave the layers that lose "
            "most in float (--keep-float), or train with quantization in mind.")
    timed = [row for row in best["latency"] if "speedup" in row]
    single = [row for row in timed if row["threads"] == 1]
    if not single:
        return "Neither runtime could be timed; see `latency` in the report."
    faster = [row for row in single if row["speedup"]["median"] > 1.05]
    fastest_int8 = min(single, key=lambda row: row["int8_ms"]["median"])
    fastest_float = min(single, key=lambda row: row["float_ms"]["median"])
    gain = fastest_float["float_ms"]["median"] / fastest_int8["int8_ms"]["median"]
    if gain < 1.05:
        how = "is not faster in either runtime"
        if faster:
            how = f"in {faster[0]['runtime']} is no faster than float in {fastest_float['runtime']}"
        unless = " unless the size matters" if best["bytes"] < 0.8 * float_bytes else ""
        return f"On this processor int8 {how}: keep the float model{unless}."
    pin = fastest_int8["runtime"].replace(" ", "").lower()
    if len(faster) < len(single) or max(row["int8_ms"]["median"] for row in single) > 1.25 * fastest_int8["int8_ms"]["median"]:
        return (
            f"Use int8 with {fastest_int8['runtime']} on processors like this one ({gain:.1f} times as fast as the best float): "
            f'set runtime = "{pin}" in model.toml.')
    return f"Use int8: {gain:.1f} times as fast as float in the better runtime, and fast in both."


def write(path, report):
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def table(report):
    """The report as text."""
    yield f"{report['model']['file']}: {report['samples']['kind']}, {report['samples']['calibration']} to calibrate, " \
          f"{report['samples']['held_out']} held out; judged by {report['metric']} ({report['metric_because']})"
    yield ""
    yield f"{'':2}{'candidate':<22}{'loss':>9}{'agreement':>11}{'cosine':>9}{'size':>9}   int8 is faster by (1 thread)"
    for candidate in report["candidates"]:
        yield candidate_line(candidate, candidate["name"] == report["chosen"])
    chosen = next((candidate for candidate in report["candidates"] if candidate["name"] == report["chosen"]), None)
    if chosen:
        yield ""
        yield from latency_lines(chosen["latency"])
        yield ""
        yield from facts(report, chosen)
    for note in report["notes"]:
        yield f"  note: {note}"
    yield ""
    yield f"  {report['verdict']}"
    yield f"  {report['recommendation']}"


def candidate_line(candidate, chosen):
    mark = "*" if chosen else " "
    if "failed" in candidate:
        return f"{mark} {candidate['name']:<22}could not be made: {candidate['failed']}"
    worst = candidate["agreement"][candidate["judged_in"]]
    loss = "broken" if candidate["loss"] is None else f"{candidate['loss']:.4f}"
    agreement = f"{worst['top1_agreement']:.1%}" if "top1_agreement" in worst else "-"
    cosine = f"{worst['cosine']:.4f}" if "cosine" in worst else "-"
    speed = ", ".join(
        f"{row['runtime']} {row['speedup']['median']:.2f}x" if "speedup" in row else f"{row['runtime']} refuses it"
        for row in candidate["latency"] if row["threads"] == 1)
    return f"{mark} {candidate['name']:<22}{loss:>9}{agreement:>11}{cosine:>9}{text_size(candidate['bytes']):>9}   {speed}"


def latency_lines(rows):
    yield f"  {'one sample at a time':<24}{'ratio':>7}  {'(middle half)':<16}{'float ms':>10}{'int8 ms':>10}  middle halves"
    for row in rows:
        name = f"{row['runtime']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
        if "refused" in row:
            yield f"  {name:<24} refuses it: {row['refused']}"
            continue
        ratio, before, after = row["speedup"], row["float_ms"], row["int8_ms"]
        halves = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
        yield (
            f"  {name:<24}{ratio['median']:>6.2f}x  {halves:<16}{before['median']:>10.3f}{after['median']:>10.3f}  "
            f"{before['low']:.3f}-{before['high']:.3f}, {after['low']:.3f}-{after['high']:.3f}")


def facts(report, chosen):
    size = report["model"]["bytes"]
    yield f"  size: float {text_size(size)}, int8 {text_size(chosen['bytes'])} ({chosen['bytes'] / size:.0%} of it)"
    for runtime, agreement in chosen["agreement"].items():
        if "accuracy" in agreement:
            before, after = agreement["float_accuracy"], agreement["accuracy"]
            yield f"  accuracy in {runtime}: float {before:.1%}, int8 {after:.1%} of {agreement['labelled']}"
        elif "top1_agreement" in agreement:
            same, among = agreement["top1_agreement"], agreement["top5_contains"]
            yield f"  {runtime}: same best class {same:.1%}, float's best among int8's five {among:.1%}"
    pair = chosen["largest_weight_pair"]
    fits = "same sums on every processor" if pair <= LARGEST_PAIR else "wrong sums on processors without VNNI"
    yield f"  weights: two of one output are at most {pair} steps together; {fits}"
    left = chosen["layers"]["float"]
    done = ", ".join(f"{count} {name}" for name, count in chosen["layers"]["int8"].items()) or "none"
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    yield f"  layers in int8: {done}; left in float: {', '.join(left[:5]) + more if left else 'none'}"
