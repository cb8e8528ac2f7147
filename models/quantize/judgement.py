"""How far the int8 model's answers are from the float model's, and whether that is too far."""
import math
import re

import numpy as np
from progress import Failure
from options import MAX_LOSS

CLASS_WORDS = re.compile(r"logit|prob|score|class|softmax|categor", re.IGNORECASE)
DISAGREEMENTS_SHOWN = 20

# With fewer held-out samples nothing is accepted: a model that is wrong once in five answers passes ten of them one time in ten.
FEWEST_HELD_OUT = 10


def choose_metric(options, samples, answers, softmax_at_the_end):
    """(metric, why, output names to judge) from the options, the samples and one float answer {name: array}."""
    if options.output_name and options.output_name not in answers:
        raise Failure(f"--output-name: the model has {', '.join(answers)}, not {options.output_name}")
    names = [options.output_name] if options.output_name else list(answers)
    names = [name for name in names if answers[name].dtype.kind == "f"]
    if not names:
        raise Failure("the model's outputs are not float: there is nothing to compare. Export it with its scores as an output.")
    labelled = any(sample.truth is not None for sample in samples.held_out)
    classes = np.size(answers[names[0]]) if len(names) == 1 and is_vector(answers[names[0]]) else 0
    looks_like_classes = options.class_names or options.softmax or softmax_at_the_end or any(map(CLASS_WORDS.search, names))
    if options.metric != "auto":
        metric, why = options.metric, "asked for"
    elif classes and labelled:
        metric, why = "accuracy", "the samples have labels"
    elif classes and looks_like_classes:
        metric, why = "top1", "the output looks like classes"
    elif classes:
        metric, why = "cosine", "the output is a vector and nothing says that it holds classes"
    else:
        metric, why = "relative", "the output is not one vector of several numbers for each sample"
    if metric in ("top1", "accuracy") and not classes:
        raise Failure(f"--metric {metric} needs one output with a score for each class; name it with --output-name")
    if metric == "accuracy" and not labelled:
        raise Failure("--metric accuracy needs labels: labels.csv, a folder for each class, or a column `label`")
    labels = {sample.name: sample.truth for sample in samples.held_out if sample.truth is not None}
    beyond = [name for name, truth in labels.items() if classes and not 0 <= truth < classes]
    if metric == "accuracy" and beyond:
        raise Failure(f"{beyond[0]} has a label beyond the model's {classes} classes (0 to {classes - 1})")
    return metric, why, names


def is_vector(answer):
    """[1, K], with further dimensions of 1 that converters leave behind; K at least 2."""
    return answer.size >= 2 and answer.size == max(answer.shape)


class Tally:
    """Sums over the held-out samples of what one model answers; nothing of the answers is kept, so outputs may be large."""

    def __init__(self, names):
        self.names, self.count, self.labelled, self.right, self.float_right = names, 0, 0, 0, 0
        self.same_top1, self.in_top5, self.disagreements = 0, 0, []
        self.cosines, self.errors, self.sizes = ({name: 0.0 for name in names} for _ in range(3))
        self.worst = 0.0
        self.broken = None

    def add(self, sample, reference, answer):
        self.count += 1
        for name in self.names:
            want, got = (np.ravel(answers[name]).astype(np.float64) for answers in (reference, answer))
            if want.shape != got.shape or not np.isfinite(got).all():
                self.broken = f"{name} for {sample.name}: " + ("not finite" if want.shape == got.shape else "another shape")
                return
            self.cosines[name] += cosine(want, got)
            self.errors[name] += float(((got - want) ** 2).sum())
            self.sizes[name] += float((want ** 2).sum())
            self.worst = max(self.worst, float(np.abs(got - want).max(initial=0)))
        if len(self.names) == 1 and want.size >= 2:
            self.rank(sample, want, got)

    def rank(self, sample, want, got):
        best, answered = int(want.argmax()), int(got.argmax())
        self.same_top1 += best == answered
        self.in_top5 += best in np.argsort(-got, kind="stable")[:5]
        if sample.truth is not None:
            self.labelled += 1
            self.float_right += best == sample.truth
            self.right += answered == sample.truth
        if best != answered and len(self.disagreements) < DISAGREEMENTS_SHOWN:
            self.disagreements.append({"sample": sample.name, "float": best, "int8": answered})

    def loss(self, metric):
        """What --max-loss is held against; infinite where an answer was broken."""
        if self.broken or not self.count:
            return math.inf
        if metric == "top1":
            return 1 - self.same_top1 / self.count
        if metric == "accuracy":
            return (self.float_right - self.right) / self.labelled
        if metric == "cosine":
            return max(0.0, 1 - min(self.cosines.values()) / self.count)
        return max(math.sqrt(self.errors[name] / self.sizes[name]) if self.sizes[name] else math.sqrt(self.errors[name])
                   for name in self.names)

    def summary(self, ranked):
        """For the report. RANKED: the output holds classes."""
        if self.broken or not self.count:
            return {"broken": self.broken or "no answers"}
        result = {
            "cosine": round(min(self.cosines.values()) / self.count, 6), "relative_error": round(self.loss("relative"), 6),
            "largest_difference": round(self.worst, 6)}
        if ranked:
            result |= {
                "top1_agreement": round(self.same_top1 / self.count, 4), "top5_contains": round(self.in_top5 / self.count, 4),
                "disagreements": self.disagreements}
            if self.labelled:
                result |= {
                    "accuracy": round(self.right / self.labelled, 4), "float_accuracy": round(self.float_right / self.labelled, 4),
                    "labelled": self.labelled}
        return result


def cosine(a, b):
    length = math.sqrt(float((a ** 2).sum()) * float((b ** 2).sum()))
    # Two zero vectors point the same way; one alone does not point where the other does.
    return float(a @ b) / length if length else float(not a.any() and not b.any())


def verdict(loss, limit, metric, samples):
    """(whether the model is good enough, the verdict in words). LOSS is None where it could not be measured."""
    held_out = len(samples.held_out)
    if held_out < FEWEST_HELD_OUT:
        return False, (
            f"NOT PROVEN: {held_out} samples are held out, and fewer than {FEWEST_HELD_OUT} judge nothing. "
            f"Give at least {2 * FEWEST_HELD_OUT} samples, of which half are held out; 200 and more are better")
    if loss is None:
        return False, f"REFUSED: the loss could not be measured, allowed is {limit:g} ({metric})"
    accepted = loss <= limit
    return accepted, f"{'ACCEPTED' if accepted else 'REFUSED'}: the loss is {loss:.4f}, allowed is {limit:g} ({metric})"


def cautions(metric, limit, samples):
    """What is doubtful about a judgement on so few samples."""
    count, notes = len(samples.held_out), []
    if metric in ("top1", "accuracy") and limit and count * limit < 1:
        notes.append(
            f"only {count} samples are held out: one different answer is a loss of {1 / count:.3f}, more than the limit "
            f"of {limit:g}. Give at least {math.ceil(2 / limit)} samples, better several times as many.")
    elif count < 50:
        notes.append(f"only {count} samples are held out; the numbers are rough")
    if len(samples.calibration) < 50:
        notes.append(f"only {len(samples.calibration)} samples to calibrate on; 100 to 300 that look like the real ones are usual")
    return notes


def default_limit(options, metric):
    return MAX_LOSS[metric] if options.max_loss is None else options.max_loss
