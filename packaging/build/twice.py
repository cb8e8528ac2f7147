"""`make twice`: builds the last commit a second time elsewhere, and compares what both builds made, byte for byte.

python3 packaging/build/twice.py [--folder FOLDER] [--binary FILE] [deb|rpm|stage]... [-- arguments of root.py]

The first build is that of `make deb` and `make rpm`, in this checkout. The second one has another root, made anew; another path of it, of the
checkout and of the crates, with a space in it; another user, umask, host name, locale, time zone and home; one more core; and a clock
that is 400 days ahead (elsewhere.c). To be another user, it is run as root. FOLDER keeps the second root and checkout [/var/tmp/ledge elsewhere].
With --binary neither build compiles: only the steps after that are compared.
"""
import argparse
import difflib
import hashlib
import os
import shutil
import sys
import tarfile
from pathlib import Path

sys.dont_write_bytecode = True
import root as clean_root  # noqa: E402
from commands import CHECKOUT, output, run  # noqa: E402
from failure import Failure  # noqa: E402

USER = 4711  # without a name
ENVIRONMENT = {"LANG": "de_DE.UTF-8", "LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati"}
# What mounts and names need a namespace for. The toolchain of root is in a folder that other users cannot enter.
ENTER = """
mount --bind "$1" "$2" && hostname elsewhere && umask 077 && cd "$3" && shift 3 &&
exec setpriv --reuid {user} --regid {user} --clear-groups --inh-caps=-all env --ignore-environment "$@"
"""
ELSEWHERE = "/usr/lib/elsewhere.so"
DIFFERENCES_MAX = 40


def main():
    parser = argparse.ArgumentParser(prog="packaging/build/twice.py", description="Build packages twice, and compare them.")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/ledge elsewhere"), help="[/var/tmp/ledge elsewhere]")
    parser.add_argument("--binary", type=Path, metavar="FILE", help="take this program, and build none")
    parser.add_argument("kinds", nargs="*", metavar="deb|rpm|stage", help="[deb rpm]")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    options, arguments = parser.parse_args(words[:own]), words[own + 1:]
    if os.geteuid() != 0:
        raise Failure("run it as root: the second build is another user's")
    if output("git", "status", "--porcelain"):
        raise Failure("the checkout has changes: commit them, because the second build is of the last commit")
    second = Elsewhere(options.folder.resolve())
    second.prepare()
    differ = False
    for kind in options.kinds or ["deb", "rpm"]:
        words = [kind, *arguments, *program(CHECKOUT, options.binary)]
        run(sys.executable, "packaging/build/root.py", *words)
        program(second.checkout, options.binary)
        second.run("python3", "packaging/build/root.py", "--folder", second.root, *words)
        for one, other in pairs(kind, CHECKOUT / "target/packages", second.checkout / "target/packages"):
            differ |= not same(one, other)
    if differ:
        raise Failure("the two builds differ")


class Elsewhere:
    """The folder of the second build, and what is run there."""

    def __init__(self, folder):
        self.folder = folder
        self.root, self.checkout, self.rust = folder / "root", folder / "a checkout", folder / "rust"

    def prepare(self):
        for name in ("home", "crates", "rust"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not (self.root / "made").exists():
            clean_root.make(self.root)
        system = self.root / "system"
        shutil.copy(CHECKOUT / "packaging/build/elsewhere.c", system / "opt")
        clean_root.inside(self.root, "gcc", "-O2", "-shared", "-fPIC", "-o", ELSEWHERE, "/opt/elsewhere.c", installs=True)
        (system / "etc/ld.so.preload").write_text(f"{ELSEWHERE}\n")
        shutil.rmtree(self.checkout, ignore_errors=True)
        run("git", "clone", "--quiet", "--no-hardlinks", CHECKOUT, self.checkout)
        for name in ("models", "runtimes", "downloads"):
            shutil.copytree(CHECKOUT / ".ledge" / name, self.checkout / ".ledge" / name)
        (self.checkout / "target").mkdir()
        self.hand_over()
        for file in clean_root.cargo_settings():
            shutil.copy(file, self.folder / "crates")

    def hand_over(self):
        """Gives everything to the other user alone, as if that user had made it under its umask."""
        run("chmod", "--recursive", "go=", self.checkout)
        run("chown", "--recursive", f"{USER}:{USER}", *(self.folder / name for name in ("a checkout", "home", "crates")))

    def run(self, *command):
        environment = {
            **ENVIRONMENT, "HOME": self.folder / "home", "CARGO_HOME": self.folder / "crates", "PATH": f"{self.rust}/bin:/usr/bin:/bin"}
        run("unshare", "--mount", "--uts", "sh", "-ec", ENTER.format(user=USER), "sh", output("rustc", "--print", "sysroot"), self.rust,
            self.checkout, *(f"{name}={value}" for name, value in environment.items()), *command)


def program(checkout, binary):
    """Brings the program to where the root has it, and returns the arguments that name it there."""
    if not binary:
        return []
    place = checkout / "target/root/program"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(binary, place)
    for path in (place, *place.parents[:2]):
        shutil.chown(path, *[checkout.stat().st_uid] * 2)
    return ["--binary", "target/program"]


def pairs(kind, first, second):
    """The files to compare."""
    if kind == "stage":
        return [(first / kind, second / kind)]
    made = sorted(path.name for path in second.glob(f"*.{kind}"))
    if not made:
        raise Failure(f"{second} has no {kind}")
    return [(first / name, second / name) for name in made]


def same(one, other):
    if one.is_file() and one.read_bytes() == other.read_bytes():
        print(f"same: {one.name}, {one.stat().st_size} bytes, SHA-256 {digest(one.read_bytes())}")
        return True
    members_of_one = describe(one)
    lines = [line for line in difflib.unified_diff(members_of_one, describe(other), lineterm="", n=0) if line[:2] not in ("--", "++", "@@")]
    if one.is_dir() and not lines:
        print(f"same: {one.name}, {len(members_of_one)} files and folders")
        return True
    print("\n".join([f"DIFFERENT: {one.name}", *lines[:DIFFERENCES_MAX], *([f"... {len(lines)} in all"] if len(lines) > DIFFERENCES_MAX else [])]))
    return False


def describe(path):
    """Lines about each member of a package, or each file of a folder."""
    if path.is_dir():
        return [f"{file.relative_to(path)} {digest(file.read_bytes()) if file.is_file() else ''}" for file in sorted(path.rglob("*"))]
    if path.suffix == ".rpm":
        return [line for form in ("--dump", "--xml") for line in output("rpm", "--query", "--nosignature", form, "--package", path).splitlines()]
    lines = []
    for name, offset, size in members(path):
        with path.open("rb") as file:
            file.seek(offset)
            lines.append(f"{name} {size} {digest(file.read(size))}")
            if ".tar" in name:
                file.seek(offset)
                with tarfile.open(fileobj=file, mode="r|*") as archive:
                    lines += [f"{name} {described(archive, entry)}" for entry in archive]
    return lines


def described(archive, entry):
    content = digest(archive.extractfile(entry).read()) if entry.isfile() else entry.linkname
    return f"{entry.name} {entry.mode:o} {entry.uid}:{entry.gid} {entry.uname}:{entry.gname} {entry.mtime} {entry.size} {content}"


def members(deb):
    """The name, offset and size of each member of an archive of ar."""
    with deb.open("rb") as file:
        file.seek(8)
        while head := file.read(60):
            name, size = head[:16].decode().strip().rstrip("/"), int(head[48:58])
            yield name, file.tell(), size
            file.seek(size + size % 2, os.SEEK_CUR)


def digest(content):
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    os.umask(0o022)
    try:
        main()
    except Failure as failure:
        sys.exit(f"packaging/build/twice.py: {failure}")
