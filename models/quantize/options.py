"""The command line. Standard library only: it is read before the packages are there."""
import argparse
import math
import re
from pathlib import Path

# Exit statuses; argparse ends with 2 as well.
REFUSED, FAILED = 1, 2

# The loss that is allowed when --max-loss does not say: of 1 for the three that are shares or cosines, and the size of the
# error relative to the size of the answer for `relative`.
MAX_LOSS = {"top1": 0.02, "accuracy": 0.01, "cosine": 0.01, "relative": 0.05}

METRICS = """\
what is lost, and how --max-loss measures it:
  top1       share of held-out samples whose best class is not the float model's      (default limit 0.02)
  accuracy   accuracy of the float model less that of the int8 model; needs labels    (0.01)
  cosine     1 - mean cosine between the two answers; for embeddings                  (0.01)
  relative   |int8 - float| / |float| over all held-out answers; for regressions      (0.05)
`auto` takes accuracy with labels; top1 for an output that looks like classes (--class-names, --softmax, a Softmax, or a name
such as logits or scores); cosine for any other vector; else relative.

exit status: 0 written, 1 refused for its loss or not proven by too few samples (report: OUTPUT.rejected.json), 2 nothing could be done
"""


def three(text):
    """One number for all three channels, or three with commas between."""
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise ValueError
    return numbers * 3 if len(numbers) == 1 else numbers


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def loss(text):
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def parser():
    result = argparse.ArgumentParser(
        prog="python3 models/quantize", epilog=METRICS, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Makes an int8 ONNX model of a float32 one, and a model folder for Ledge, unless too much is lost.")
    add = result.add_argument
    add("model", type=Path, help="the float32 ONNX model")
    add("--samples", type=Path, required=True, help="folder of photographs, .npy or .npz files, or a CSV file")
    add("--output", type=Path, required=True, help="the model's folder to write, e.g. .ledge/models/my_model")
    add("--replace", action="store_true", help="replace what is there; without it an existing folder is an error")
    add("--keep-fp32", action="store_true", help="also write the float model, as float32.onnx in the folder")
    add("--labels", type=Path, help="CSV with lines `file,class`; default: labels.csv in the samples, or a folder for each class")
    add("--class-names", type=Path, help="the names of the classes, one a line; becomes labels.txt")
    add("--description", help="one sentence on what the model does, for model.toml")
    add("--license", help="the licence of the weights, for model.toml")

    group = result.add_argument_group("how it is quantized")
    group.add_argument("--method", choices=("auto", "static", "dynamic", "nncf"), default="auto",
                       help="auto tries them and keeps the best agreement, then the fastest")
    group.add_argument("--calibration", choices=("minmax", "entropy", "percentile"),
                       help="how `static` chooses ranges (default: minmax; auto tries minmax and percentile)")
    group.add_argument("--activations", choices=("uint8", "int8"), default="uint8",
                       help="uint8 is fast on x86-64; int8, symmetric, is an alternative for ARM")
    group.add_argument("--full-range", action="store_true",
                       help="8-bit weights throughout: often a little nearer to the float model, and wrong on x86-64 processors "
                            "without VNNI (Intel before Ice Lake, AMD before Zen 4), where Ledge then refuses the model")
    group.add_argument("--keep-float", action="append", default=[], metavar="NODE|OPERATOR",
                       help="leave this node, or every node of this operator, in float; may be repeated")

    group = result.add_argument_group("what is allowed")
    group.add_argument("--metric", choices=("auto", *MAX_LOSS), default="auto")
    group.add_argument("--max-loss", type=loss, help="the largest loss on the held-out samples; see below")
    group.add_argument("--output-name", help="the output to judge, if the model has several")
    group.add_argument("--calibration-samples", type=positive, default=200, metavar="N",
                       help="calibrate on at most N samples, never on more than half; the others are held out (200)")
    group.add_argument("--rounds", type=positive, default=30, help="timed runs of each model in each setting (30)")

    group = result.add_argument_group("photographs (the same preparation that Ledge does)")
    group.add_argument("--image-size", metavar="S|HxW", help="height and width of the model's input; default: its own")
    group.add_argument("--resize-short", type=positive, metavar="S",
                       help="resize to a shorter side of S pixels, then cut the middle; default: resize without regard to aspect")
    group.add_argument("--scale", type=float, default=1.0,
                       help="multiply pixels, 0 to 255, with this first, e.g. 0.00392156862745098 (1)")
    group.add_argument("--mean", type=three, default=[0.0] * 3, metavar="M|R,G,B", help="then subtract this (0)")
    group.add_argument("--std", type=three, default=[1.0] * 3, metavar="D|R,G,B", help="then divide by this (1)")
    group.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw")
    group.add_argument("--color", choices=("rgb", "bgr"), default="rgb")
    group.add_argument("--softmax", action="store_true", help="the output is logits; Ledge shall answer probabilities")
    return result


def parse(arguments):
    """The options; ends the program with a message where they contradict each other."""
    result = parser()
    options = result.parse_args(arguments)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.output.name):
        result.error(f"--output: {options.output.name!r} cannot be a model's name; letters, digits, `_`, `-` and `.` can")
    if options.image_size:
        size = re.fullmatch(r"(\d+)(?:x(\d+))?", options.image_size)
        if not size:
            result.error("--image-size: expected 224 or 192x320 (height x width)")
        options.image_size = (int(size[1]), int(size[2] or size[1]))
    if options.scale == 0 or 0 in options.std:
        result.error("--scale and --std must not be 0")
    if options.calibration and options.method in ("dynamic", "nncf"):
        result.error(f"--calibration belongs to --method static, not to {options.method}")
    return options
