"""Installs the programs that write packages, for the tests: python3 packaging/build/tools.py. root.py has its own, in its root."""
import shutil
import sys

sys.dont_write_bytecode = True
from commands import run  # noqa: E402
from failure import Failure  # noqa: E402

TOOLS = {"cargo-deb": "3.8.0", "cargo-generate-rpm": "0.21.1"}

if __name__ == "__main__":
    try:
        for tool, version in TOOLS.items():
            if not shutil.which(tool):
                run("cargo", "install", tool, "--locked", "--version", version)
    except Failure as failure:
        sys.exit(f"packaging/build/tools.py: {failure}")
