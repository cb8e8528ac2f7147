"""Reads files out of clones of the repositories in sources.tsv, without a work tree, and makes the clones that are missing."""
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("sources.tsv")


@dataclass(frozen=True)
class Source:
    """A repository whose documents belong to a set."""

    set: str
    repository: str
    commit: str
    licence: str


def read_table():
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [Source(*line.split("\t")) for line in lines if line and not line.startswith("#")]


class Clone:
    """The files of one commit in the git folder of a clone."""

    def __init__(self, git, commit):
        self.git, self.commit = git, commit
        listing = subprocess.run(["git", "-C", git, "ls-tree", "-r", "-z", "--full-tree", commit], check=True, stdout=subprocess.PIPE).stdout
        entries = (entry.split(b"\t", 1) for entry in listing.split(b"\0") if entry)
        self.blobs = {path.decode("utf-8", "surrogateescape"): about.split()[2] for about, path in entries}
        self.reader = subprocess.Popen(["git", "-C", git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def paths(self):
        return sorted(self.blobs)

    def has(self, path):
        return path in self.blobs

    def read(self, path):
        """The bytes of a file. None if the commit or this clone lacks it: some clones leave out large files."""
        if path not in self.blobs:
            return None
        self.reader.stdin.write(self.blobs[path] + b"\n")
        self.reader.stdin.flush()
        header = self.reader.stdout.readline().split()
        if header[1] == b"missing":
            return None
        content = self.reader.stdout.read(int(header[2]))
        self.reader.stdout.read(1)  # a line feed follows
        return content

    def text(self, path):
        return self.read(path).decode("utf-8")

    def close(self):
        self.reader.stdin.close()
        self.reader.stdout.close()
        self.reader.wait()


class Clones:
    """The clones in a folder, `<owner>+<name>`, each opened when it is first asked for."""

    def __init__(self, folder, may_fetch):
        self.folder, self.may_fetch, self.opened = Path(folder), may_fetch, {}
        self.sources = {source.repository: source for source in read_table()}

    def open(self, repository):
        if repository not in self.opened:
            source = self.sources[repository]
            git = self.git_folder(repository)
            if self.may_fetch and not (git and has_commit(git, source.commit)):
                git = self.fetch(source)
            if git is None:
                sys.exit(f"{repository} is not in {self.folder}: clone it to {self.clone_folder(repository)}, or leave --sources out to fetch it")
            self.opened[repository] = Clone(git, commit_of(git, source))
        return self.opened[repository]

    def licence(self, repository):
        return self.sources[repository].licence

    def clone_folder(self, repository):
        return self.folder / repository.replace("/", "+")

    def git_folder(self, repository):
        """The folder with the objects: of a bare clone, or of one with a work tree."""
        clone = self.clone_folder(repository)
        folders = [clone / ".git", clone, clone / "repo" / ".git", clone / "repo"]
        return next((folder for folder in folders if (folder / "HEAD").exists() and (folder / "objects").exists()), None)

    def fetch(self, source):
        """Fetches the pinned commit alone into a bare clone."""
        folder = self.clone_folder(source.repository)
        print(f"  fetch {source.repository} ...", file=sys.stderr, flush=True)
        subprocess.run(["git", "init", "--quiet", "--bare", folder], check=True)
        address = f"https://github.com/{source.repository}"
        subprocess.run(["git", "-C", folder, "fetch", "--quiet", "--depth", "1", address, source.commit], check=True)
        return folder

    def close(self):
        for clone in self.opened.values():
            clone.close()


def has_commit(git, commit):
    return subprocess.run(["git", "-C", git, "cat-file", "-e", f"{commit}^{{commit}}"], stderr=subprocess.DEVNULL).returncode == 0


def commit_of(git, source):
    """The pinned commit where the clone has it, else the clone's own, with a message: files and truth may differ then."""
    if has_commit(git, source.commit):
        return source.commit
    head = subprocess.run(["git", "-C", git, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(f"  {source.repository}: the clone has commit {head}, not {source.commit}", file=sys.stderr)
    return head
