"""`make deb`, `make rpm` and `make image`: runs packaging/build in a clean root of Debian 11, so that the packages do not depend on the
compilers of this machine, and need no later glibc than they ask for.

python3 packaging/build/root.py [--folder FOLDER] [--arch amd64|arm64] [--publisher FILE] deb|rpm|stage [arguments of packaging/build]

The root is made once for each architecture, below .ledge/build-root, with Debian's mmdebstrap, and entered with bubblewrap, as root or not. In it stand
the toolchain, the crates and the checkout at fixed paths, all read-only; no network, host name, locale or time of the machine is
seen. The time is that of the last commit, or SOURCE_DATE_EPOCH. DEBIAN_MIRROR=URL takes another mirror.
"""
import argparse
import os
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from architecture import ARCHITECTURES, add_argument  # noqa: E402
from commands import CHECKOUT, output, run  # noqa: E402
from failure import Failure  # noqa: E402
from publisher import Publisher  # noqa: E402
from tools import TOOLS  # noqa: E402

# The oldest Debian whose compilers build every crate. Its glibc is 2.31, and it changes no more.
SUITE, MIRROR = "bullseye", "http://deb.debian.org/debian"
PACKAGES = ("gcc", "g++", "make", "cmake", "python3", "perl-base", "ca-certificates", "binutils", "xz-utils", "zstd")
# QEMU runs the program, which writes its manuals itself.
CROSS_PACKAGES = ("gcc-{}", "g++-{}", "qemu-user")
# The places inside. Each ends up in the debug symbols, so none may be that of the machine.
RUST, CRATES, SOURCE, TOOLS_FOLDER = "/rust", "/cargo", "/build/ledge", "/opt/tools"


def main():
    parser = argparse.ArgumentParser(prog="packaging/build/root.py", description="Make packages of Ledge in a clean root.")
    parser.add_argument("--folder", type=Path, help="the folder of the root [.ledge/build-root]")
    add_argument(parser)
    parser.add_argument("--publisher", type=Path, metavar="FILE", help="whose packages these are [nobody's]")
    parser.add_argument("kind", choices=["deb", "rpm", "stage"])
    options, arguments = parser.parse_known_args()
    publisher = Publisher.read(options.publisher) if options.publisher else None
    architecture = ARCHITECTURES[options.arch]
    if not Path(output("rustc", "--print", "target-libdir", "--target", architecture.target)).exists():
        raise Failure(f"the Rust toolchain has no standard library for {architecture.target}: rustup target add {architecture.target}")
    root = (options.folder or CHECKOUT / ".ledge" / f"build-root{architecture.suffix}").resolve()
    if not (root / "made").exists():
        # In names of packages Debian writes x86-64.
        cross = (package.format(architecture.prefix.replace("_", "-")) for package in CROSS_PACKAGES)
        make(root, (*PACKAGES, *cross) if architecture.is_foreign else PACKAGES)
    # Build scripts are programs of this machine.
    run("cargo", "fetch", "--locked", *(part for each in ARCHITECTURES.values() for part in ("--target", each.target)))
    target, packages = CHECKOUT / "target" / "root", CHECKOUT / "target" / "packages"
    target.mkdir(parents=True, exist_ok=True)
    if publisher:
        publisher.copy_to(target / "publisher")
        arguments += ["--publisher", f"target/publisher/{publisher.file.name}"]
    inside(root, "python3", "packaging/build", "--arch", options.arch, options.kind, *arguments, target=target)
    packages.mkdir(parents=True, exist_ok=True)
    if options.kind == "stage":
        shutil.rmtree(packages / "stage", ignore_errors=True)
        shutil.move(target / "packages" / "stage", packages / "stage")
    for made in sorted((target / "packages").glob(f"*.{options.kind}")):
        shutil.move(made, packages / made.name)


def make(root, packages=PACKAGES):
    """Makes the root, and in it the programs that write packages. Interrupted, it is begun again."""
    shutil.rmtree(root, ignore_errors=True)
    system = root / "system"
    system.mkdir(parents=True)
    archive = root / "system.tar"
    run("mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", SUITE, archive, os.environ.get("DEBIAN_MIRROR") or MIRROR)
    # Devices come from bubblewrap, and only root could make them.
    run("tar", "--extract", "--no-same-owner", "--exclude=./dev/*", "--directory", system, "--file", archive)
    archive.unlink()
    for place in (RUST, CRATES, SOURCE, TOOLS_FOLDER):
        (system / place[1:]).mkdir(parents=True)
    for tool, version in TOOLS.items():
        inside(root, "cargo", "install", tool, "--locked", "--version", version, "--root", TOOLS_FOLDER, installs=True)
    (root / "made").touch()


def cargo_home():
    return Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))


def cargo_settings():
    """The files in which cargo's user may name registries."""
    return [file for file in (cargo_home() / "config.toml", cargo_home() / "config") if file.is_file()]


def inside(root, *command, target=None, installs=False):
    """Runs a command in the root. `installs` gives it the network and a writable root."""
    crates = ["--tmpfs", CRATES] + ([] if installs else ["--ro-bind", cargo_home() / "registry", f"{CRATES}/registry"])
    crates += [part for file in cargo_settings() for part in ("--ro-bind", file, f"{CRATES}/{file.name}")]
    source = ["--ro-bind", CHECKOUT, SOURCE, "--bind", target, f"{SOURCE}/target", "--chdir", SOURCE] if target else []
    # The names of servers and their certificates are those of the machine.
    network = ["--share-net", *(part for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs") for part in ("--ro-bind", file, file))]
    environment = {
        "PATH": f"{RUST}/bin:{TOOLS_FOLDER}/bin:/usr/bin:/bin", "HOME": "/tmp", "CARGO_HOME": CRATES, "LC_ALL": "C.UTF-8", "TZ": "UTC",
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"),
        "CARGO_TARGET_DIR": f"{SOURCE}/target" if target else "/tmp/target", "CARGO_NET_OFFLINE": str(not installs).lower()}
    run(
        "bwrap", "--die-with-parent", "--unshare-all", "--hostname", "build", "--uid", "0", "--gid", "0",
        "--bind" if installs else "--ro-bind", root / "system", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        *(network if installs else ()), *crates, "--ro-bind", output("rustc", "--print", "sysroot"), RUST, *source,
        "--clearenv", *(part for name, value in environment.items() for part in ("--setenv", name, value)), "--", *command)


if __name__ == "__main__":
    os.umask(0o022)
    try:
        main()
    except Failure as failure:
        sys.exit(f"packaging/build/root.py: {failure}")
