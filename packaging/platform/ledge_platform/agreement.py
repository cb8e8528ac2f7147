"""The share of answers in which a new version of a model agrees with an earlier one, measured before it is signed.

A version that was trained again may well answer otherwise, so a box cannot tell by itself how much is too much.
`ledge models compare` runs both on the golden inputs and on an evaluation set; the figure is signed with the release, and
boxes stop a version that agrees less often with the version that they run.
"""
import json
import math
import tempfile
from pathlib import Path

from . import goldens, names, release
from .errors import Failure, Refused

Z_95 = 1.645  # the 95th percentile of the normal distribution, as in src/updates/gates.rs
SHOWN = 0.05  # the share of wrong answers that boxes should see
WITHOUT = "--against none signs it without"


def predecessor(repository, wanted, against):
    """The version that WANTED is compared with, or None: the highest that is lower, unless AGAINST names one."""
    if against == "none":
        return None
    targets = repository.load("models").signed.targets
    signed = {names.release(path) for path, target in targets.items()
              if path.startswith(f"{wanted.subject}/") and release.description_of(target)}
    if against is not None:
        chosen = names.Release(wanted.subject, int(against))
        if chosen not in signed:
            raise Failure(f"--against {against}: {chosen} is not in this repository")
        return chosen
    return max((other for other in signed if int(other.version) < int(wanted.version)),
               key=lambda other: int(other.version), default=None)


def contents_of(repository, earlier):
    """(the main file, {name: path}) of a signed release."""
    targets = repository.load("models").signed.targets
    own = {path.rpartition("/")[2]: repository.place(target) for path, target in targets.items()
           if path.startswith(f"{earlier}/")}
    gone = sorted(name for name, path in own.items() if not path.is_file())
    if gone:
        raise Failure(f"the files of {earlier} are not all here ({', '.join(gone)}), so nothing is compared with it: {WITHOUT}")
    return release.main_file(repository, earlier).rpartition("/")[2], own


def measure(ledge, repository, earlier, wanted, main, contents, inputs, tolerance, scores):
    """The result of `ledge models compare` for the two releases."""
    with tempfile.TemporaryDirectory(prefix="ledge-platform-") as folder:
        goldens.lay_out(Path(folder) / "before", earlier.version, *contents_of(repository, earlier))
        goldens.lay_out(Path(folder) / "after", wanted.version, main, contents)
        options = {"--inputs": inputs, "--tolerance": tolerance, "--scores": scores}
        more = [word for option, value in options.items() if value is not None for word in (option, str(value))]
        command = [ledge, "models", "compare", "before", "after", "--repository", folder, "--json", *more]
        done = goldens.run(command, "compared the versions", WITHOUT)
    said = done.stderr.strip().splitlines()
    try:
        found = json.loads(done.stdout)
        agreed, compared = found["agreed"], found["compared"]
        if not (isinstance(agreed, int) and isinstance(compared, int) and 0 <= agreed <= compared):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        reason = said[-1] if said else f"it ended with status {done.returncode}"
        raise Refused(f"{wanted} is not signed, for it was not compared with {earlier}: {reason} ({WITHOUT})") from None
    return found


def bounds(count, of):
    """The Wilson score interval, each bound one-sided at 95 %."""
    share, n = count / max(of, 1), max(of, 1)
    middle, half = share + Z_95 ** 2 / (2 * n), Z_95 * math.sqrt(share * (1 - share) / n + Z_95 ** 2 / (4 * n * n))
    whole = 1 + Z_95 ** 2 / n
    return (middle - half) / whole, (middle + half) / whole


def judge(found, earlier, wanted, least):
    """({the signed fields}, lines to print). Fails if the versions agree less than LEAST."""
    agreed, compared = found["agreed"], found["compared"]
    if compared == 0:
        return {}, [f"agreement: there are no inputs to compare it with {earlier} on (--evaluate DIR)"]
    lines = [f"agreement: {agreed} of {compared} answers are those of {earlier}"]
    low, high = bounds(agreed, compared)
    if high < least:
        differ = ", ".join(found.get("disagreements", [])[:5])
        raise Refused(
            f"{wanted} is not signed: {agreed} of {compared} answers are those of {earlier}, so fewer than {least:.0%} are "
            f"(they differ on {differ}). If that is meant, --agreement-min {math.floor(high * 100) / 100} signs it")
    if agreed / compared - low >= SHOWN:
        lines.append(f"agreement: too few inputs for boxes to see {SHOWN:.0%} of wrong answers; --evaluate DIR adds some")
    signed = {"agreement": {"version": int(earlier.version), "agreed": agreed, "compared": compared}}
    if found.get("tolerance") is not None:
        signed["tolerance"] = found["tolerance"]
    return signed, lines
