"""The golden inputs of a model, run on this machine before the model is signed.

`ledge models check` loads it as a box does, in each runtime that model.toml allows. A box that is given a model with
wrong answers rolls it back by itself; here nobody has to.
"""
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .errors import Failure, Refused

LONGEST_S = 1_800
WITHOUT = "--without-check signs it without"


def program(given):
    """The `ledge` to ask: the one that was named, else that on PATH."""
    found = shutil.which(given or "ledge")
    if found is None:
        what = f"{given} is no program" if given else "there is no `ledge` on PATH"
        raise Failure(f"the golden inputs cannot be run: {what}. Name one with --ledge PROGRAM; {WITHOUT}")
    return found


def check(ledge, release, main, contents):
    """Fails unless a runtime answers the golden inputs right. Returns lines to print."""
    name = release.subject.partition("/")[2]
    with tempfile.TemporaryDirectory(prefix="ledge-platform-") as repository:
        lay_out(Path(repository) / name, release.version, main, contents)
        rows, status, said = ask(ledge, name, repository)
    failed = [f"{row.get('runtime', 'ledge')}: {row.get('reason', 'no reason given')}" for row in rows if not row.get("ok")]
    if status != 0 or not rows:
        reasons = "; ".join(failed) or said or f"version_policy of model.toml leaves version {release.version} out"
        raise Refused(f"{release} is not signed, for no runtime here runs its golden inputs right: {reasons} ({WITHOUT})")
    right = [row for row in rows if row.get("ok")]
    lines = [f"golden inputs: right in {row['runtime']}" + (f", by {row['stand_in']}" if "stand_in" in row else "") for row in right]
    return [*lines, *(f"golden inputs: not in {reason}" for reason in failed)]


def lay_out(folder, version, main, contents):
    """The release as a model repository has it. Copies, for `ledge` follows no link out of a model's folder."""
    inner = folder / str(version)
    inner.mkdir(parents=True)
    for file, content in contents.items():
        is_model = file in (main, "model.bin") or file.startswith("model.float.")
        place = (inner if is_model else folder) / file
        if isinstance(content, bytes):
            place.write_bytes(content)
            continue
        try:
            os.link(content.resolve(), place)
        except OSError:  # another disk, or one without hard links
            shutil.copyfile(content, place)


def ask(ledge, name, repository):
    """(rows, exit status, what else it said)."""
    done = run([ledge, "models", "check", name, "--repository", repository, "--json"], "run the golden inputs", WITHOUT)
    said = done.stderr.strip().splitlines()
    try:
        rows = json.loads(done.stdout)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError
    except ValueError:
        reason = said[-1] if said else f"it ended with status {done.returncode}"
        raise Failure(f"{ledge} did not run the golden inputs: {reason}; {WITHOUT}") from None
    return rows, done.returncode, said[-1] if said else ""


def run(command, what, without):
    """Runs `ledge`, which is to do WHAT."""
    # Passphrases and passwords of the platform are not for it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGE_PLATFORM_")}
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LONGEST_S,
            env=environment)
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error.strerror}; {without}") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[0]} has not {what} in {LONGEST_S} s; {without}") from None
