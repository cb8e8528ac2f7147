"""`make image`: makes an OCI image of Ledge from the files of the packages, without a daemon and without root.

python3 packaging/image STAGE [--arch amd64|arm64] [--form slim|full] [--format oci|docker] [--zstd] [--output DIR] [--version VERSION] [--suite SUITE]
    [--mirror URL]

STAGE is the folder that packaging/build fills: target/packages/stage. The image has layers for Debian's libraries, the runtimes,
the models (only in the form "full") and the program; a release of Ledge changes only the last. It has no shell and no package
manager.

mmdebstrap fetches Debian's packages, buildah makes the layers. With the same stage, the same packages of Debian and the same
SOURCE_DATE_EPOCH [the time of the last commit] the image has the same digest. To fetch the packages of a day in the past,
name a --mirror of snapshot.debian.org.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "packaging" / "build"))
import architecture  # noqa: E402
from layers import Layer, debian_layer  # noqa: E402

FORMS = ("slim", "full")
# A user id that no distribution assigns, so that it means the same user on every machine.
USER = 10001
# The time of the files below the program's layer, so that they are the same layers in each release: 1980-01-01.
FILE_TIME = 315532800
HEALTH_CHECK = "CMD /usr/bin/ledge health"


def main():
    parser = argparse.ArgumentParser(prog="packaging/image", description="Make an OCI image of Ledge.")
    parser.add_argument("stage", type=Path, help="the folder that packaging/build fills")
    architecture.add_argument(parser)
    parser.add_argument("--form", choices=FORMS, action="append", help="slim: without models; can be repeated [both]")
    parser.add_argument("--format", choices=["oci", "docker"], default="oci", help="docker also has the health check [oci]")
    parser.add_argument("--zstd", action="store_true", help="smaller layers, for containerd 1.5, Docker 23, Podman 3 or later [gzip]")
    parser.add_argument("--output", type=Path, default=CHECKOUT / "target" / "packages", help="[target/packages]")
    parser.add_argument("--version", help="[that of Cargo.toml]")
    parser.add_argument("--suite", default="trixie", help="the release of Debian, 13 or later [trixie]")
    parser.add_argument("--mirror", action="append", default=[], help="the archives of Debian [deb.debian.org, with security updates]")
    options = parser.parse_args()
    if not (options.stage / "base" / "usr/bin/ledge").is_file():
        sys.exit(f"packaging/image: {options.stage} has no base/usr/bin/ledge: `python3 packaging/build stage` fills such a folder")
    version = options.version or re.search(r'^version = "(.+)"$', (CHECKOUT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output, prefix="image-") as scratch:
        builder = Builder(Path(scratch), options, version, source_date_epoch())
        builder.common_layers()
        for form in options.form or FORMS:
            file, digest = builder.image(form)
            print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, {digest}")
        builder.remove_store()


class Builder:
    def __init__(self, scratch, options, version, epoch):
        self.scratch, self.options, self.version, self.epoch = scratch, options, version, epoch
        self.stage = options.stage.resolve()

    def common_layers(self):
        debian = self.scratch / "debian.tar"
        packages = debian_layer(debian, self.options.arch, self.options.suite, self.options.mirror, FILE_TIME)
        print("packages of Debian: " + ", ".join(packages))
        self.commit("scratch", debian, "debian")
        runtimes = Layer(self.scratch / "runtimes.tar", FILE_TIME)
        runtimes.add_tree(self.stage / "full" / "usr/lib/ledge", "usr/lib/ledge")
        runtimes.add_tree(self.stage / "full" / "usr/share/doc/ledge/licenses", "usr/share/doc/ledge/licenses")
        self.commit("debian", runtimes.write(), "runtimes")

    def image(self, form):
        below = "runtimes"
        if form == "full":
            models = Layer(self.scratch / "models.tar", FILE_TIME)
            for folder in ("full", "sentences"):
                models.add_tree(self.stage / folder / "usr/share/ledge/models", "usr/share/ledge/models")
            self.commit(below, models.write(), "models")
            below = "models"
        tag = f"ledge:{self.version}" + ("-slim" if form == "slim" else "")
        self.commit(below, self.program(form), tag, self.settings(form))
        other = "" if self.options.arch == architecture.OWN else f"-{self.options.arch}"
        file = self.options.output / f"{tag.replace(':', '-')}{other}.{self.options.format}.tar"
        file.unlink(missing_ok=True)
        digest = self.scratch / "digest"
        compression = ["--compression-format", *(("zstd", "--compression-level", 19) if self.options.zstd else ("gzip", "--compression-level", 9))]
        self.buildah("push", "--quiet", *compression, "--digestfile", digest, tag, f"{self.options.format}-archive:{file}:localhost/{tag}")
        return file, digest.read_text().strip()

    def program(self, form):
        """The layer of the program, its documents of law, its configuration and its folders."""
        layer = Layer(self.scratch / "program.tar", self.epoch)
        for path in ("usr/bin/ledge", "etc/ledge", "usr/share/ledge", "usr/share/doc/ledge/THIRD-PARTY.md"):
            layer.add_tree(self.stage / "base" / path, path)
        layer.add_tree(self.stage / "copyright", "usr/share/doc/ledge/copyright")
        layer.add_tree(self.stage / "sbom" / form, "usr/share/doc/ledge")
        if form == "full":
            layer.add_tree(self.stage / "sbom" / "sentences", "usr/share/doc/ledge-sentences")
        layer.add_text("etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\nledge:x:{USER}:{USER}:Ledge:/var/lib/ledge:/usr/sbin/nologin\n")
        layer.add_text("etc/group", f"root:x:0:\nledge:x:{USER}:\n")
        layer.add_folder("etc/ledge/feature_views.d")
        layer.add_folder("var/lib/ledge", 0o700, USER)
        layer.add_folder("var/lib/ledge/models", 0o700, USER)
        layer.add_folder("run/ledge", 0o755, USER)
        return layer.write()

    def settings(self, form):
        labels = {
            "title": "Ledge", "version": self.version, "licenses": "Apache-2.0",
            "description": "Inference appliance for servers without a GPU" + (", without models" if form == "slim" else "")}
        publisher = self.stage / "publisher.json"
        if publisher.is_file():
            labels.update(json.loads(publisher.read_text()))
        if revision := git("rev-parse", "HEAD"):
            labels["revision"] = revision
        arguments = [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
        # buildah would name the image of the layers below, which is in its temporary store only.
        arguments += ["--annotation", f"org.opencontainers.image.base.name=debian:{self.options.suite}"]
        arguments += ["--annotation", "org.opencontainers.image.base.digest-"]
        # Numbers, because Kubernetes checks runAsNonRoot by number only.
        arguments += ["--arch", self.options.arch, "--user", f"{USER}:{USER}", "--workingdir", "/var/lib/ledge", "--volume", "/var/lib/ledge"]
        arguments += ["--entrypoint", '["/usr/bin/ledge"]', "--cmd", "serve", "--stop-signal", "SIGTERM"]
        arguments += ["--port", "8000/tcp", "--port", "8001/tcp", "--port", "8443/tcp"]
        if self.options.format == "docker":
            arguments += ["--healthcheck", HEALTH_CHECK, "--healthcheck-interval", "30s", "--healthcheck-timeout", "15s"]
            arguments += ["--healthcheck-start-period", "60s", "--healthcheck-retries", "3"]
        return arguments

    def commit(self, below, archive, image, settings=()):
        """Makes IMAGE of the image BELOW and the files of ARCHIVE."""
        container = self.buildah("from", "--pull-never", "--quiet", below)
        self.buildah("add", "--quiet", container, archive, "/")
        archive.unlink()
        # buildah writes its own version into a label, and the history names temporary files.
        arguments = ["--identity-label=false", "--omit-history", "--timestamp", self.epoch if settings else FILE_TIME, "--format", self.options.format]
        if settings:
            self.buildah("config", *settings, container)
        self.buildah("commit", "--quiet", "--rm", *arguments, container, image)

    def buildah(self, *arguments):
        # A separate store: the user's images stay as they are. Only the driver vfs works on every file system and kernel.
        store = ["--root", self.scratch / "store", "--runroot", self.scratch / "run", "--storage-driver", "vfs"]
        return run("buildah", *store, *arguments)

    def remove_store(self):
        """Its files may belong to subordinate users, so only buildah can remove them."""
        self.buildah("rmi", "--all", "--force")
        if os.geteuid() != 0:
            run("buildah", "unshare", "rm", "-rf", self.scratch / "store", self.scratch / "run")


def source_date_epoch():
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or sys.exit(
        "packaging/image: set SOURCE_DATE_EPOCH, the time of the files in the image"))


def git(*arguments):
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", "-c", f"safe.directory={CHECKOUT}", "-C", CHECKOUT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def run(*command):
    try:
        return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    except FileNotFoundError as error:
        sys.exit(f"packaging/image: {error.filename} is not installed; Debian: apt install mmdebstrap buildah uidmap")
    except subprocess.CalledProcessError as error:
        sys.exit(f"packaging/image: {' '.join(map(str, command))} failed with status {error.returncode}")


if __name__ == "__main__":
    main()
