"""The files of the packages, as they are installed: base/ for all packages, full/ for the one with runtimes and models,
sentences/ for the package of the model of sentences, symbols/ for the debug symbols, sbom/ for what each brings, package/ for the file
in which each names itself, and the scripts of the packages."""
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

from architecture import ARCHITECTURES
from failure import Failure
from licenses import copyright_file
from sbom import bill_of_materials

DOC = "usr/share/doc/ledge"
SBOM = "ledge.cdx.json"


def packaged_models(checkout):
    """{model: the folder of the stage that it is in}, from models.list."""
    lines = (checkout / "packaging" / "models.list").read_text().splitlines()
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: apart[0] if apart else "full" for name, *apart in words}


class Stage:
    def __init__(self, checkout, binary, version, deb_version, metadata, architecture, publisher=None):
        self.checkout, self.binary, self.version, self.metadata = checkout, binary, version, metadata
        self.deb_version, self.architecture, self.publisher = deb_version, architecture, publisher
        # Cargo.toml names this folder, so it is in the checkout, whatever cargo's own target folder is.
        self.folder = checkout / "target" / "packages" / "stage"
        self.base, self.full, self.symbols = (self.folder / name for name in ("base", "full", "symbols"))

    def fill(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.program()
        packaging, configs = self.checkout / "packaging", self.checkout / "configs"
        for unit in (self.checkout / "systemd").iterdir():
            copy(unit, self.base / "usr/lib/systemd/system" / unit.name)
        copy(packaging / "ledge.sysusers", self.base / "usr/lib/sysusers.d/ledge.conf")
        copy(packaging / "ledge.tmpfiles", self.base / "usr/lib/tmpfiles.d/ledge.conf")
        # A file below /etc belongs to the owner after the installation. Therefore it never changes, or dpkg would ask
        # about it.
        copy(packaging / "ledge.toml", self.base / "etc/ledge/ledge.toml")
        copy(configs / "ledge.toml", self.base / "usr/share/ledge/ledge.toml")
        copy(configs / "feature_views.d", self.base / "usr/share/ledge/feature_views.d")
        copy(packaging / "THIRD-PARTY.md", self.base / DOC / "THIRD-PARTY.md")
        copy(packaging / "monitoring", self.base / "usr/share/ledge/monitoring")
        write(self.base / DOC / "changelog.gz", gzip.compress((self.checkout / "CHANGELOG.md").read_bytes(), mtime=0))
        models = self.models()
        write(self.folder / "copyright", copyright_file(self.checkout, self.metadata, models).encode())
        for form, package in (("full", "ledge"), ("slim", "ledge-slim"), ("sentences", "ledge-sentences")):
            own = [name for name, folder in models.items() if folder == form]
            bom = bill_of_materials(self.checkout, self.metadata, self.version, self.architecture, package, own, self.publisher)
            write(self.folder / "sbom" / form / SBOM, bom)
        self.names()
        self.published()
        self.documents()
        self.manuals()
        self.runtimes()
        for name, folder in models.items():
            copy(self.ledge / "models" / name, self.folder / folder / "usr/share/ledge/models" / name, ignore=[".made.json"])
        self.scripts()

    @property
    def ledge(self):
        return self.checkout / ".ledge"

    def program(self):
        """The program without its symbols, and the symbols in the place where debuggers expect them: by the program's build id."""
        program = self.base / "usr/bin/ledge"
        copy(self.binary, program)
        notes = self.binutils("readelf", "--notes", program)
        found = re.search(r"Build ID: ([0-9a-f]{40})", notes)
        if not found:
            raise Failure(f"{self.binary} has no build id: the linker is to be called with --build-id")
        build_id = found[1]
        symbols = self.symbols / "usr/lib/debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        symbols.parent.mkdir(parents=True)
        self.binutils("objcopy", "--only-keep-debug", "--compress-debug-sections", program, symbols)
        self.binutils("strip", "--strip-unneeded", "--remove-section=.comment", program)
        symbols.chmod(0o644)
        program.chmod(0o755)

    def names(self):
        """What a package calls itself, for the report of a box. No image has it."""
        debian = next(name for name, architecture in ARCHITECTURES.items() if architecture == self.architecture)
        for kind, version, architecture in (
                ("deb", self.deb_version, debian), ("rpm", f"{self.version}-1", self.architecture.machine)):
            for package in ("ledge", "ledge-slim"):
                named = {"name": package, "version": version, "format": kind, "architecture": architecture}
                write(self.folder / "package" / kind / package / "package.json", json.dumps(named).encode() + b"\n")

    def published(self):
        """What the publisher of the packages says to boxes, and to packaging/image."""
        if not self.publisher:
            return
        write(self.folder / "publisher.json", json.dumps(self.publisher.labels()).encode())
        for name, content in self.publisher.files().items():
            write(self.base / "usr/share/ledge" / name, content)

    def binutils(self, name, *arguments):
        if not self.architecture.is_foreign:
            return tool(name, *arguments, package="binutils")
        return tool(f"{self.architecture.prefix}-{name}", *arguments, package=f"binutils-{self.architecture.prefix}")

    def ask(self, *words):
        """What the program says. For another machine it is emulated, with the libraries of the cross compiler."""
        emulator = [f"qemu-{self.architecture.machine}", "-L", f"/usr/{self.architecture.prefix}"] if self.architecture.is_foreign else []
        return tool(*emulator, self.binary, *words, package="qemu-user")

    def documents(self):
        """In the same folders as in the checkout, so that their links work."""
        for document in ("README.md", "SECURITY.md", "docs", "models/README.md"):
            copy(self.checkout / document, self.base / DOC / document, ignore=["decisions"])

    def manuals(self):
        """The manual pages and completions, which the program itself writes."""
        made = self.folder / "made"
        self.ask("generate-assets", made)
        for page in sorted((made / "man").glob("*.1")):
            write(self.base / f"usr/share/man/man1/{page.name}.gz", gzip.compress(page.read_bytes(), mtime=0))
        completions = made / "completions"
        copy(completions / "bash/ledge", self.base / "usr/share/bash-completion/completions/ledge")
        # Each distribution has another folder for it.
        copy(completions / "zsh/_ledge", self.folder / "zsh/_ledge")
        copy(completions / "fish/ledge.fish", self.base / "usr/share/fish/vendor_completions.d/ledge.fish")

    def models(self):
        names = packaged_models(self.checkout)
        for name in names:
            if not (self.ledge / "models" / name).is_dir():
                raise Failure(f"packaging/models.list names {name}, and .ledge/models has no such folder: `make setup` makes it, coco_detector with npm")
        return names

    def runtimes(self):
        runtimes = self.ledge / f"runtimes{self.architecture.suffix}"
        if not list(runtimes.glob("lib*")):
            raise Failure(f"there are no runtimes in {runtimes}: `make setup` fetches them")
        copy(runtimes, self.full / "usr/lib/ledge/runtimes", ignore=["licenses", ".made.json"])
        copy(runtimes / "licenses", self.full / DOC / "licenses")

    def scripts(self):
        formats = self.ask("doctor", "--formats").split("\n")
        known = " ".join("=".join(line.split()) for line in formats if line)
        common = (self.checkout / "packaging" / "common.sh").read_text().replace("#FORMATS#", known)
        common = common.replace("#VERSION#", self.version).strip()
        for kind in ("deb", "rpm"):
            for script in sorted((self.checkout / "packaging" / kind).iterdir()):
                text = script.read_text().replace("#COMMON#", common)
                write(self.folder / kind / script.name, text.encode(), 0o755)
        for script in ("postinst", "postrm"):
            copy(self.checkout / "packaging" / "sentences" / "reload", self.folder / "sentences-scripts" / script)

    def sizes(self):
        """The installed sizes."""
        def size(*folders):
            return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())

        yield "full", size(self.base, self.full)
        yield "slim", size(self.base)
        yield "the program alone", (self.base / "usr/bin/ledge").stat().st_size
        yield "the runtimes", size(self.full / "usr/lib/ledge")
        yield "the models", size(self.full / "usr/share/ledge")

    def check_glibc(self):
        """Checks that the program and the runtimes run wherever a package of either kind can be installed."""
        def key(version):
            return [int(number) for number in version.split(".")]

        manifest = (self.checkout / "Cargo.toml").read_text()
        asked = min([re.search(rf"{before}>= ([0-9.]+)", manifest)[1] for before in (r"libc6 \(", 'glibc = "')], key=key)
        for file in [self.base / "usr/bin/ledge", *sorted((self.full / "usr/lib/ledge").rglob("*.so*"))]:
            used = re.findall(r"GLIBC_([0-9.]+)", self.binutils("objdump", "--dynamic-syms", file))
            latest = max(used, key=key, default="0")
            if key(latest) > key(asked):
                raise Failure(
                    f"{file.name} needs glibc {latest}, since it was built beside that or a later one, and Cargo.toml says that "
                    f"{asked} is enough: build it on an older distribution, or raise the number of both packages there")


def copy(source, target, ignore=()):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        # Copy the targets of the links: a package has files. Not their times: rpm packages keep one before SOURCE_DATE_EPOCH.
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*ignore), copy_function=shutil.copy)
    else:
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def write(target, content, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)


def tool(*command, package):
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Failure(f"{error.filename} is not installed; Debian and Ubuntu: apt install {package}") from error
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout
