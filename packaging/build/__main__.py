"""`make deb` and `make rpm`: lays out what the packages have in target/packages/stage, and has cargo-deb or
cargo-generate-rpm make packages of it. Cargo.toml says which file goes into which package. "stage" stops before the packages:
packaging/image makes images of those files. "sbom" only lists what they bring, in ledge.cdx.json.

python3 packaging/build deb|rpm|stage|sbom [--arch amd64|arm64] [--profile PROFILE | --binary FILE] [--version VERSION] [--publisher FILE]
    [--output DIR] [--fast] [--any-glibc]
"""
import argparse
import fcntl
import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

sys.dont_write_bytecode = True
from architecture import ARCHITECTURES, add_argument  # noqa: E402
from commands import CHECKOUT, output, run  # noqa: E402
from failure import Failure  # noqa: E402
from publisher import Publisher  # noqa: E402
from sbom import bill_of_materials  # noqa: E402
from stage import Stage, packaged_models, write  # noqa: E402

# The packages of each kind; "full" is the one that Cargo.toml describes outside of its variants.
VARIANTS = ("full", "slim", "symbols", "sentences")


def main():
    parser = argparse.ArgumentParser(prog="packaging/build", description="Make packages of Ledge.")
    parser.add_argument("kind", choices=["deb", "rpm", "stage", "sbom"])
    parser.add_argument("--profile", default="dist", help="the profile that cargo builds with [dist]")
    parser.add_argument("--binary", type=Path, help="take this program, and build none")
    parser.add_argument("--version", help="another version than Cargo.toml's, such as 0.1.0~prev")
    parser.add_argument("--publisher", type=Path, metavar="FILE", help="whose packages these are: packaging/publisher.toml.example [nobody's]")
    parser.add_argument("--output", type=Path, default=CHECKOUT / "target" / "packages", help="[target/packages]")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="only these [all]")
    parser.add_argument("--fast", action="store_true", help="larger packages in less time")
    parser.add_argument(
        "--any-glibc", action="store_true", help="make them although they need a later glibc than they ask for; for tests on this machine")
    add_argument(parser)
    options = parser.parse_args()
    architecture = ARCHITECTURES[options.arch]
    metadata = json.loads(output(
        "cargo", "metadata", "--locked", "--features", "full", "--format-version", "1", "--filter-platform", architecture.target))
    package, = (package for package in metadata["packages"] if package["id"] == metadata["resolve"]["root"])
    version = options.version or package["version"]
    publisher = Publisher.read(options.publisher) if options.publisher else None
    if options.kind == "sbom":
        bom = bill_of_materials(CHECKOUT, metadata, version, architecture, "ledge", packaged_models(CHECKOUT), publisher)
        write(options.output / "ledge.cdx.json", bom)
        return
    binary = options.binary or build(architecture, options.profile, Path(metadata["target_directory"]))
    # A checkout has one stage.
    (CHECKOUT / "target").mkdir(exist_ok=True)
    lock = (CHECKOUT / "target" / "packages.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    stage = Stage(CHECKOUT, binary.resolve(), version, deb_version(version, options), metadata, architecture, publisher)
    stage.fill()
    if not options.any_glibc:
        stage.check_glibc()
    if not publisher:
        print("There is no --publisher: what is made is nobody's, and not for publication.")
    if options.kind == "stage":
        return
    options.output.mkdir(parents=True, exist_ok=True)
    make = deb if options.kind == "deb" else rpm
    for name in options.variant or VARIANTS:
        made = make(name, version, publisher, options)
        print(f"{made.relative_to(CHECKOUT) if made.is_relative_to(CHECKOUT) else made}: {megabytes(made.stat().st_size)}")
    if not options.variant:
        for what, size in stage.sizes():
            print(f"  installed, {what}: {megabytes(size)}")


def build(architecture, profile, target):
    cross = []
    if architecture.is_foreign:
        cross = ["--target", architecture.target, "--config", f"target.{architecture.target}.linker='{architecture.prefix}-gcc'"]
        target /= architecture.target
    run("cargo", "build", "--locked", "--bin", "ledge", "--features", "full", "--profile", profile, *cross)
    return target / ("debug" if profile == "dev" else profile) / "ledge"


def deb_version(version, options):
    """The version of the debs: with a revision, unless --version says another one."""
    return options.version or f"{version}-1"


def deb(variant, version, publisher, options):
    architecture = ARCHITECTURES[options.arch]
    arguments = ["--no-build", "--no-strip", "--quiet", "--output", options.output, "--deb-version", deb_version(version, options)]
    if architecture.is_foreign:
        arguments += ["--target", architecture.target]
    if variant != "full":
        arguments += ["--variant", variant]
    if options.fast:
        arguments += ["--fast"]
    if publisher:
        arguments += ["--maintainer", publisher.maintainer]
    with manifest_of(publisher) as manifest:
        return Path(output("cargo", "deb", "--manifest-path", manifest, *arguments).splitlines()[-1])


@contextmanager
def manifest_of(publisher):
    """Cargo.toml with the publisher's home page, for cargo-deb takes that from nowhere else. The paths in it lead to the checkout."""
    if not publisher:
        yield CHECKOUT / "Cargo.toml"
        return
    with tempfile.TemporaryDirectory() as scratch:
        for path in CHECKOUT.iterdir():
            (Path(scratch) / path.name).symlink_to(path)
        manifest = Path(scratch) / "Cargo.toml"
        text = manifest.read_text()
        manifest.unlink()
        manifest.write_text(text.replace("[package]\n", f'[package]\nhomepage = "{publisher.homepage}"\n', 1))
        yield manifest


def rpm(variant, version, publisher, options):
    name, variants = {
        "full": ("ledge", "scripts"), "slim": ("ledge-slim", "scripts,slim"), "symbols": ("ledge-debuginfo", "symbols"),
        "sentences": ("ledge-sentences", "sentences")}[variant]
    machine = ARCHITECTURES[options.arch].machine
    made = options.output / f"{name}-{version}-1.{machine}.rpm"
    # Cargo.toml lists the requirements. rpm would search other packages for libraries that the runtimes need of each other.
    arguments = ["--arch", machine, "--output", made, "--auto-req", "disabled", "--set-metadata", f'version = "{version}"', "--variant", variants]
    if publisher:
        arguments += ["--set-metadata", f'vendor = "{publisher.name}"', "--set-metadata", f'url = "{publisher.homepage}"']
    if options.fast:
        arguments += ["--payload-compress", "gzip"]
    run("cargo", "generate-rpm", *arguments)
    return made


def megabytes(size):
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"packaging/build: {failure}")
