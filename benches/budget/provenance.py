"""The measured program, the date and the machine: the line that documents quote."""
import hashlib
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from . import ledge, processes


def of_run():
    """{what: value} at the start of a run."""
    digest = hashlib.sha256(ledge.BINARY.read_bytes()).hexdigest()
    built = datetime.fromtimestamp(ledge.BINARY.stat().st_mtime, timezone.utc)
    return {**processes.machine(), "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), **commit(),
            "binary": str(ledge.BINARY), "binary_sha256": digest, "binary_built": built.strftime("%Y-%m-%d %H:%M UTC")}


def commit():
    """The checkout's commit, and a flag that is set if files differ from it; None without git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ledge.CHECKOUT, *arguments], check=True, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True).stdout
    try:
        return {"commit": git("rev-parse", "--short=12", "HEAD").strip(), "is_dirty": bool(git("status", "--porcelain").strip())}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "is_dirty": None}


def line(run):
    """`2026-11-23, commit 52330fd2d9b1 ...`: of a run that has ended."""
    if run["commit"] is None:
        at = "no commit known"
    else:
        at = f"commit {run['commit']}{' with changes' if run['is_dirty'] else ''}"
    vnni = ", VNNI" if run["has_vnni"] else ""
    return (f"{run['date']}, {at}, {Path(run['binary']).name} {run['binary_sha256'][:12]} built {run['binary_built']}; {run['cpu']}{vnni}, "
            f"{run['cores']} cores, {100 * run['steal_share']:.1f} % of them stolen by the hypervisor; "
            f"{run['rounds']} rounds, {run['seconds'] / 60:.1f} min")
