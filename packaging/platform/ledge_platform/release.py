"""Releases: the files of one version of a model, of settings or of a runtime, and their signed description.

A release is one flat folder on the box. Its first file carries the description, as `src/updates/package.rs` reads it.
"""
import json
import re
import tomllib
from pathlib import Path

from . import files, names, ports, signing
from .errors import Failure

MODEL_FILES = ("model.onnx", "model.xml", "model.tflite")
SETTINGS, RUNTIMES = "settings.toml", ("onnxruntime", "openvino")
# Keys that a release may set, and sections of which it may set every key, as `src/updates/configuration.rs` has them.
SETTABLE = (
    "serving.max_queue_size", "serving.default_timeout_ms", "serving.batch_windows", "response_cache.max_bytes",
    "quota.max_rate_per_principal", "quota.burst", "quota.max_concurrent_per_principal", "mqtt.bindings",
    "mqtt.report_interval_s", "features.cache_mb", "features.snapshot_mb", "features.keep_expired_h",
    "updates.poll_interval_s", "updates.max_bytes_per_s",
)
MOST_JSON = 65_536  # of an accuracy report: all boxes fetch it with the metadata


def describe(description):
    """As custom data of a target. As text, for the canonical JSON that TUF signs knows no fractions."""
    return {"ledge": json.dumps({"schema": 1, **description}, sort_keys=True, ensure_ascii=False)}


def description_of(target):
    custom = (target.custom or {}).get("ledge")
    return json.loads(custom) if isinstance(custom, str) else custom


def main_file(repository, release):
    """The path of the file that carries the description of RELEASE."""
    role = names.role(release)
    targets = repository.load(role).signed.targets if repository.has(role) else {}
    for path, target in targets.items():
        if path.startswith(f"{release}/") and description_of(target):
            return path
    versions = sorted(int(path.split("/")[2]) for path, target in targets.items()
                      if path.startswith(f"{release.subject}/") and description_of(target))
    if repository.has(role) and (waits := signing.waiting(repository, role)) and any(
            path.startswith(f"{release}/") for path in waits.signed.targets):
        raise Failure(f"{release} waits for signatures: `ledge-platform sign {repository.folder} {role}`")
    there = f"there is nothing of {release.subject}"
    if versions:
        there = f"of {release.subject} there is {', '.join(map(str, versions))}"
    raise Failure(f"{release} is not in this repository ({there}): add it first")


def needed_ledge(repository, path):
    """The oldest Ledge that may run the release described by PATH, in the form of rollouts."""
    needed = description_of(repository.load(names.role(path)).signed.targets[path]).get("requires", {}).get("ledge")
    numbers = needed.split(".") if needed and re.fullmatch(r"\d+(\.\d+){0,2}", needed) else []
    return ".".join((numbers + ["0", "0"])[:3]) if numbers else None


def listing(repository, role="models"):
    """[(release, description, bytes)] of all that may run, or of all packages."""
    targets = repository.load(role).signed.targets
    sizes = {}
    for path, target in targets.items():
        sizes[names.release(path)] = sizes.get(names.release(path), 0) + target.length
    return sorted((names.release(path), description, sizes[names.release(path)]) for path, target in targets.items()
                  if (description := description_of(target)))


def refuse_unsignable(repository, ring, release, contents):
    """Fails where `add` would, before anything takes long."""
    role = names.role(release)
    metadata = signing.begin(repository, role, ring)
    if any(path.startswith(f"{release}/") for path in metadata.signed.targets):
        raise Failure(f"{release} is in this repository already; what was signed stays as it is, take the next version")
    for file, content in contents.items():
        names.name(file, "file name")
        files.refuse_private_key(content, file)
    return metadata


def add(repository, ring, release, main, contents, description):
    """Signs the files CONTENTS ({name: path or bytes}), MAIN first. Returns (the outcome, whether that is public)."""
    metadata = refuse_unsignable(repository, ring, release, contents)
    role = names.role(release)
    staged = not signing.suffices(repository, role, ring)
    others = sorted(set(contents) - {main})
    targets = {}
    for file in [main, *others]:
        custom = describe({**description, "files": others}) if file == main else None
        targets[release.path(file)] = repository.add_target(release.path(file), contents[file], custom, staged)
    metadata.signed.targets.update(targets)
    outcome = signing.submit(repository, role, metadata, ring)
    return outcome, outcome.done and repository.publish(ring)


def remove(repository, ring, release, manifests):
    """Takes a release out, with those of its files that no other release has. Returns (the outcome, public, files)."""
    role = names.role(release)
    metadata = signing.begin(repository, role, ring)
    for manifest in manifests:
        for rollout in manifest["rollouts"]:
            if names.release(rollout["target"]) == release:
                raise Failure(f"rollout {rollout['id']} of fleet {manifest['fleet']} names {release}: stop it first")
    gone = [path for path in metadata.signed.targets if path.startswith(f"{release}/")]
    if not gone:
        raise Failure(f"{release} is not in this repository")
    for path in gone:
        del metadata.signed.targets[path]
    outcome = signing.submit(repository, role, metadata, ring)
    public = outcome.done and repository.publish(ring)
    return outcome, public, clear(repository, outcome.removed, public)


def clear(repository, removed, public):
    """Deletes the files of targets that are signed no more. Only once that is PUBLIC: what is named must be there."""
    places = [repository.place(target) for target in removed]
    for place in places if public else []:
        place.unlink(missing_ok=True)
    return [str(place.relative_to(repository.folder)) for place in places]


class ModelFolder:
    """One of Ledge's model folders: flat, or with a folder for the version as in a model repository."""

    def __init__(self, folder, version):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise Failure(f"{folder} is no folder")
        inner = self.version_folder(version)
        found = [inner / file for file in MODEL_FILES if (inner / file).exists()]
        if len(found) != 1:
            raise Failure(f"{inner} holds {'more than one' if found else 'none'} of {', '.join(MODEL_FILES)}")
        self.main = found[0].name
        self.contents = {self.main: files.inside(self.folder, found[0])}
        if self.main == "model.xml":
            if not (inner / "model.bin").is_file():
                raise Failure(f"{inner} has model.xml and no model.bin")
            self.contents["model.bin"] = files.inside(self.folder, inner / "model.bin")
        # The fallback if the model answers its golden inputs wrong.
        for path in sorted(inner.glob("model.float.*")):
            self.contents[path.name] = files.inside(self.folder, path)
        self.toml = self.read_toml()
        self.config = self.parse(self.toml)
        self.take_named_files()

    def version_folder(self, version):
        if any((self.folder / file).is_file() for file in MODEL_FILES):
            return self.folder
        numbered = sorted(
            entry for entry in self.folder.iterdir() if entry.is_dir() and names.VERSION.fullmatch(entry.name)
        )
        exact = [entry for entry in numbered if entry.name == str(version)]
        if not (exact or numbered):
            raise Failure(f"{self.folder} holds no model: neither {', '.join(MODEL_FILES)} nor a folder of a version")
        if not exact and len(numbered) > 1:
            there = ", ".join(entry.name for entry in numbered)
            raise Failure(f"{self.folder} has the versions {there} and no {version}: which is meant?")
        return (exact or numbered)[0]

    def read_toml(self):
        path = self.folder / "model.toml"
        try:
            return files.inside(self.folder, path).read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"{path} cannot be read: {error}") from None

    def parse(self, text):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Failure(f"{self.folder / 'model.toml'}: {error}") from None

    def take_named_files(self):
        """Files that model.toml names are included, in one flat folder; others stay here."""
        flat = {}
        for value in texts(self.config):
            path = self.folder / value
            if value and not value.startswith("/") and ".." not in Path(value).parts and path.is_file():
                flat[value] = path.name
                self.include(path.name, files.inside(self.folder, path))
        for value, name in flat.items():
            if value != name:
                self.toml = re.sub(rf"""(["']){re.escape(value)}\1""", json.dumps(name), self.toml)
        golden = self.config.get("golden", [])
        missing = [entry["file"] for entry in golden if entry.get("file") not in flat]
        missing += [entry["outputs"] for entry in golden if "outputs" in entry and entry["outputs"] not in flat]
        missing += [
            entry["labels"]
            for entry in self.config.get("output", [])
            if "labels" in entry and entry["labels"] not in flat
        ]
        if missing:
            raise Failure(f"{self.folder / 'model.toml'} names {', '.join(missing)}, which is not there")
        if self.parse(self.toml) != replaced(self.config, flat):
            raise Failure(
                f"{self.folder / 'model.toml'}: the paths of its files could not be made flat; put the files beside it"
            )

    def include(self, name, path):
        other = self.contents.get(name)
        if other is not None and other != path:
            raise Failure(f"{path} and {other} have the same name: in a release all files lie in one folder")
        self.contents[name] = path

    def add_golden(self, path, label=None, tolerance=None, min_score=None):
        path = Path(path)
        if not path.is_file():
            raise Failure(f"golden input {path} is no file")
        self.include(path.name, path)
        entry = {"file": path.name, "label": label, "tolerance": tolerance, "min_score": min_score}
        lines = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items() if value is not None
        ]
        self.toml = self.toml.rstrip("\n") + "\n\n[[golden]]\n" + "\n".join(lines) + "\n"
        self.config = self.parse(self.toml)

    def finished(self):
        """The contents, with model.toml as it will be."""
        if not self.toml:
            return self.contents
        unchanged = self.folder / "model.toml"
        same = unchanged.exists() and unchanged.read_bytes() == self.toml.encode()
        return {**self.contents, "model.toml": unchanged if same else self.toml.encode()}

    def left_out(self):
        """Files that are there and do not come along."""
        taken = {path for path in self.contents.values() if isinstance(path, Path)} | {self.folder / "model.toml"}
        main = self.contents[self.main].parent
        left = [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and path not in taken and not path.name.startswith(".")
        ]
        return sorted(
            str(path.relative_to(self.folder)) for path in left if main in path.parents or not self.is_version(path)
        )

    def is_version(self, path):
        """True if it belongs to a separate version."""
        return names.VERSION.fullmatch(path.relative_to(self.folder).parts[0]) is not None

    def ports(self):
        return ports.of_onnx(self.contents[self.main]) if self.main == "model.onnx" else None


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def replaced(value, flat):
    if isinstance(value, str):
        return flat.get(value, value)
    if isinstance(value, list):
        return [replaced(inner, flat) for inner in value]
    if isinstance(value, dict):
        return {key: replaced(inner, flat) for key, inner in value.items()}
    return value


def settings(path):
    """A file of settings, under the name by which boxes look for it."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{path}: {error}") from None
    foreign = unsettable(found)
    if foreign:
        raise Failure(f"{path} sets {', '.join(foreign)}: no platform sets that; it can set {', '.join(SETTABLE)}")
    return {SETTINGS: Path(path)}


def unsettable(table, above=""):
    """The keys of settings that boxes would refuse."""
    found = []
    for key, value in table.items():
        path = above + key
        if "." not in key and path in SETTABLE:
            continue
        if "." not in key and isinstance(value, dict) and any(settable.startswith(path + ".") for settable in SETTABLE):
            found += unsettable(value, path + ".")
        else:
            found.append(path)
    return found


def libraries(path):
    """The files of a folder."""
    path = Path(path)
    if not path.is_dir():
        raise Failure(f"{path} is no folder")
    folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    if folders:
        raise Failure(f"{path} has folders ({', '.join(folders)}): all files of a release lie in one folder")
    contents = {
        entry.name: files.inside(path, entry)
        for entry in path.iterdir()
        if entry.is_file() and not entry.name.startswith(".")
    }
    if not contents:
        raise Failure(f"{path} holds no file")
    return contents


def read_json(path, what):
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise Failure(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_JSON:
        raise Failure(f"{what} {path} has {len(content)} bytes, {MOST_JSON} at most: every box fetches it")
    try:
        return json.loads(content)
    except ValueError as error:
        raise Failure(f"{what} {path} is no JSON: {error}") from None


def read_reference(path):
    """The expected distribution of the best classes: {"output": NAME, "classes": [shares]}."""
    reference = read_json(path, "reference")
    classes = reference.get("classes") if isinstance(reference, dict) else None
    shares = (
        isinstance(classes, list)
        and classes
        and all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in classes)
    )
    if not shares or set(reference) != {"output", "classes"} or not isinstance(reference["output"], str):
        raise Failure(
            f'{path} is not of the form {{"output": NAME, "classes": [the share of each class, from 0 to 1]}}'
        )
    if abs(sum(classes) - 1) > 0.01:
        raise Failure(f"{path}: the shares of the classes sum up to {sum(classes):.3f}, not to 1")
    return reference
