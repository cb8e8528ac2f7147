"""Catalogues: signed models that owners of boxes add by themselves, with `ledge models add`.

A catalogue is a TUF repository whose role `targets` lists folders of models as a model repository has them. One key signs
the root, another one all the rest: who makes a catalogue signs it in one go, on one machine.
"""
import tomllib

from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from . import files, keys, moments, names, release
from .errors import Failure
from .repository import LIFETIME as LIFETIME_FIELD
from .repository import SIGNED_AT, TOP_LEVEL, Repository, left, lifetime

LIFETIME = 730 * 86_400
ROOT_KEY, KEY = "catalogue-root", "catalogue"
FACTS = ("description", "license", "source", "accuracy", "release")  # of model.toml
LEVELS_MAX = 3  # below the folder of a model, as boxes accept them


def publish(models, folder, key_folder, encrypt, lifetime_s):
    """Signs the models in the folder MODELS as the catalogue FOLDER; returns their names."""
    wanted = {path: found for source in model_folders(models) for path, found in files_of(source).items()}
    repository = Repository(folder)
    if not repository.newest("root"):
        begin(repository, key_folder, encrypt, lifetime_s)
    ring = keys.KeyRing([key_folder])
    with repository.locked():
        repository.need(TOP_LEVEL[1:], ring)
        root, targets = repository.load("root"), repository.load("targets")
        targets.signed.targets = {
            path: repository.add_target(path, source, custom) for path, (source, custom) in wanted.items()}
        repository.save("targets", targets, ring)
        if left(root.signed) < lifetime(root.signed) / 2:
            repository.save("root", root, ring)
        repository.publish(ring, fresh_snapshot=True)
        remove_others(repository, targets.signed)
    return sorted({path.split("/")[0] for path in wanted})


def begin(repository, key_folder, encrypt, lifetime_s):
    """Makes the first version of everything, and the keys that are not there yet."""
    def key(name):
        path = key_folder / f"{name}.pub.pem"
        return keys.read_public(path) if path.exists() else keys.generate(
            key_folder, name, keys.new_passphrase(name) if encrypt else None)

    root_key, other_key = key(ROOT_KEY), key(KEY)
    ring = keys.KeyRing([key_folder])
    expires = moments.after(moments.now(), lifetime_s)
    common = {"version": 1, "expires": expires}

    def fields():
        return {LIFETIME_FIELD: lifetime_s}

    root = Root(**common, consistent_snapshot=True, unrecognized_fields=fields())
    for role in TOP_LEVEL:
        root.add_key(root_key if role == "root" else other_key, role)
    first = Metadata(root)
    repository.sign(first, root.roles["root"], ring)
    repository.write("root", first)

    def write(role, signed):
        metadata = Metadata(signed)
        repository.sign(metadata, repository.delegation(role)[1], ring)
        repository.write(role, metadata)

    write("targets", Targets(**common, unrecognized_fields=fields()))
    meta = {"targets.json": repository.meta_file("targets")}
    write("snapshot", Snapshot(**common, meta=meta, unrecognized_fields=fields()))
    timestamp = Timestamp(**common, snapshot_meta=MetaFile(1), unrecognized_fields=fields())
    timestamp.snapshot_meta = repository.meta_file("snapshot")
    timestamp.unrecognized_fields[SIGNED_AT] = moments.text(moments.now())
    write("timestamp", timestamp)


def model_folders(models):
    if not models.is_dir():
        raise Failure(f"{models} is no folder of models")
    return sorted(path for path in models.iterdir() if path.is_dir() and not path.name.startswith("."))


def files_of(folder):
    """{target path: (file, custom data)} of one model."""
    names.name(folder.name, "model")
    description = folder / "model.toml"
    if not description.is_file():
        raise Failure(f"{folder} has no model.toml: what the model does and its licence are listed from there")
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts):
            continue
        if path.is_dir():
            if path.is_symlink():
                raise Failure(f"{path} is a link to a folder: copy the folder there, for what it contains would be left out")
            continue
        if len(parts) > LEVELS_MAX:
            raise Failure(f"{path} is deeper than {LEVELS_MAX} levels in the folder of the model, which boxes refuse")
        for part in parts:
            names.name(part, "file")
        files.refuse_private_key(files.inside(folder, path), path)
        custom = release.describe(facts(description)) if path == description else None
        found["/".join((folder.name, *parts))] = (path, custom)
    return found


def facts(path):
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {error}") from None
    wrong = [key for key in FACTS if not isinstance(table.get(key, ""), str)]
    if wrong:
        raise Failure(f"{path}: {', '.join(wrong)} is no text")
    return {key: table[key] for key in FACTS if key in table}


def remove_others(repository, targets):
    """Removes files that are not listed any more: a catalogue is read as a whole, and no update is in progress."""
    listed = {repository.place(target) for target in targets.targets.values()}
    for path in sorted(repository.targets.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in listed:
            path.unlink()
