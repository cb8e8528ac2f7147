"""Configuration that `init` writes, and that the administrator may change: then it is kept."""
import hashlib
import json

from .. import files


class Written:
    """Remembers the hash of what was written last."""

    def __init__(self, layout):
        self.root, self.file = layout.root, layout.site_state / "written.json"
        self.replaced = set()  # what was there with other content, and is ours
        self.hashes = json.loads(self.file.read_text()) if self.file.exists() else {}

    def put(self, path, content, mode=0o644):
        """Writes it unless somebody changed it. Returns a line to print."""
        name, wanted, fresh = str(path.relative_to(self.root)), digest(content), path.with_name(f"{path.name}.new")
        present = digest(path.read_text()) if path.exists() else None
        if present not in (None, wanted, self.hashes.get(name)):
            files.write(fresh, content.encode(), mode)
            return f"kept {path}, which was changed by hand; compare it with {fresh}"
        if present != wanted:
            files.write(path, content.encode(), mode)
            self.replaced |= {path} if present else set()
        fresh.unlink(missing_ok=True)
        self.hashes[name] = wanted
        return f"{'found' if present == wanted else 'wrote again' if present else 'wrote'} {path}"

    def save(self):
        """Last: a file that is as wanted is taken for ours by the next run, after a kill before this."""
        content = json.dumps(self.hashes, indent=1).encode()
        if not self.file.exists() or self.file.read_bytes() != content:
            files.write(self.file, content)

    def changed(self):
        """The files that somebody changed since."""
        paths = {name: self.root / name for name in self.hashes}
        return [path for name, path in paths.items() if path.exists() and digest(path.read_text()) != self.hashes[name]]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
