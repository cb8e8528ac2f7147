"""Reports all missing requirements of this machine at once, with how to install them, before anything is started."""
import importlib.util
import platform
import re
import shutil
import subprocess
import sys

PYTHONS = ((3, 9), (3, 14))

TOOLS = {
    "cargo": "Rust's build tool; install Rust with rustup",
    "rustc": "the Rust compiler; install Rust with rustup",
    "cc": "a C compiler; Debian and Ubuntu: apt install gcc libc6-dev, Fedora: dnf install gcc",
    "make": "Debian and Ubuntu: apt install make, Fedora: dnf install make",
    "curl": "Debian and Ubuntu: apt install curl, Fedora: dnf install curl",
}


def missing(cargo_toml, glibc):
    """One line for each thing that is missing. GLIBC: the oldest version that the runtimes run with, None if no version does."""
    found = [f"{tool}: {hint}" for tool, hint in TOOLS.items() if not shutil.which(tool)]
    found += filter(None, (rust_is_old(cargo_toml), python_is_unsuitable(), platform_is_unsuitable(glibc)))
    if not importlib.util.find_spec("pip"):
        found.append(
            f"pip for {sys.executable}: Debian and Ubuntu: apt install python3-pip, Fedora: dnf install python3-pip, "
            "or: python3 -m ensurepip")
    return found


def rust_is_old(cargo_toml):
    wanted = re.search(r'^rust-version = "(\d+)\.(\d+)', cargo_toml.read_text(), re.MULTILINE) if cargo_toml.exists() else None
    if not wanted or not shutil.which("rustc"):
        return None
    answer = subprocess.run(["rustc", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    version = re.match(r"rustc (\d+)\.(\d+)", answer)
    if version and tuple(map(int, version.groups())) >= tuple(map(int, wanted.groups())):
        return None
    return f"Rust {wanted[1]}.{wanted[2]} or newer (found: {answer.strip() or 'nothing'}): rustup update"


def python_is_unsuitable():
    low, high = PYTHONS
    if platform.python_implementation() == "CPython" and low <= sys.version_info[:2] <= high:
        return None
    return (
        f"CPython {low[0]}.{low[1]} to {high[0]}.{high[1]} (found: {platform.python_implementation()} "
        f"{platform.python_version()}): name another one, for example: make setup PYTHON=python3.12")


def platform_is_unsuitable(wanted):
    if not wanted:
        return f"a 64-bit Intel, AMD or ARM processor and Linux (found: {platform.system()} on {platform.machine()})"
    name, version = platform.libc_ver()
    if name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= wanted:
        return None
    return (
        f"Linux with the GNU C library {wanted[0]}.{wanted[1]} or newer (found: {name or 'another C library'} {version}): "
        "the inference runtimes are built for it; Debian 11, Ubuntu 22.04 and RHEL 9 have it")
