"""Making a repository, and replacing its keys."""
import re
import shutil
from copy import deepcopy

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization.json import JSONSerializer

from . import files, keys, manifest, moments
from .errors import Failure
from .repository import LIFETIME, OFFLINE, ROLES, SIGNED_AT, TARGETS_ROLES, TOP_LEVEL, Repository

DAY = 86_400
LIFETIMES = {
    "root": 365 * DAY,
    "targets": 365 * DAY,
    "models": 365 * DAY,
    "packages": 365 * DAY,
    "fleet": 7 * DAY,
    "snapshot": 7 * DAY,
    "timestamp": 2 * DAY,
}
DELEGATED = {
    "models": ["models/*/*/*", "configurations/*/*/*", "runtimes/*/*/*"],
    "packages": ["packages/*/*/*"],
    "fleet": ["fleet/*/*"],
}
# `packages.asc` is the key of apt and dnf.
KEY_NAMES = {"packages": "programs"}


def init(folder, ring_folder, offline_folder, root_keys, root_threshold, encrypt, lifetimes):
    """Makes all keys and the first version of everything. Returns the repository and the ring."""
    if not 1 <= root_threshold <= root_keys:
        raise Failure(f"of {root_keys} root keys, {root_threshold} cannot have to sign")
    repository = Repository(folder)
    if repository.metadata.exists() and not repository.unfinished:
        raise Failure(f"{folder} is a repository already")
    # All passphrases before the first key: a refused one leaves no half of a ring.
    wanted = []
    for role in ROLES:
        offline = role in OFFLINE
        where = offline_folder if offline else ring_folder
        encrypted = encrypt == "all" or encrypt == "offline" and offline
        for name in [f"root{number + 1}" for number in range(root_keys)] if role == "root" else [KEY_NAMES.get(role, role)]:
            wanted.append((role, where, name, keys.new_passphrase(name) if encrypted else None))
    private = {
        name: keys.resumed_or_new(where / f"{name}.pem", words, Ed25519PrivateKey.generate, repository.unfinished)
        for _, where, name, words in wanted
    }
    repository.unfinished.begin(map(keys.identity, private.values()))
    # Nobody has fetched what a killed run signed.
    shutil.rmtree(repository.metadata, ignore_errors=True)
    made = {role: [] for role in ROLES}
    for role, where, name, words in wanted:
        made[role].append(keys.write_pair(where, name, private[name], words))
    ring = keys.KeyRing({ring_folder: None, offline_folder: None})
    lifetimes = {**LIFETIMES, **lifetimes}

    def signed_of(kind, role, **fields):
        expires = moments.after(moments.now(), lifetimes[role])
        return kind(version=1, expires=expires, unrecognized_fields={LIFETIME: lifetimes[role]}, **fields)

    def write(role, metadata):
        repository.sign(metadata, repository.delegation(role)[1], ring)
        repository.write(role, metadata)

    root = signed_of(Root, "root", consistent_snapshot=True)
    for role in TOP_LEVEL:
        for key in made[role]:
            root.add_key(key, role)
    root.roles["root"].threshold = root_threshold
    metadata = Metadata(root)
    repository.sign(metadata, root.roles["root"], ring)
    repository.write("root", metadata)

    roles = {
        role: DelegatedRole(role, [key.keyid for key in made[role]], 1, True, paths)
        for role, paths in DELEGATED.items()
    }
    delegated_keys = {key.keyid: key for role in DELEGATED for key in made[role]}
    targets = signed_of(Targets, "targets", delegations=Delegations(delegated_keys, roles))
    write("targets", Metadata(targets))
    for role in (role for role in DELEGATED if role in OFFLINE):
        write(role, Metadata(signed_of(Targets, role)))
    fleet = signed_of(Targets, "fleet")
    first = manifest.empty("default", moments.now())
    path = manifest.path("default")
    fleet.targets[path] = repository.add_target(path, manifest.encode(first), manifest.notes_to_custom({}))
    write("fleet", Metadata(fleet))
    meta = {f"{role}.json": repository.meta_file(role) for role in TARGETS_ROLES}
    write("snapshot", Metadata(signed_of(Snapshot, "snapshot", meta=meta)))
    timestamp = signed_of(Timestamp, "timestamp", snapshot_meta=MetaFile(1))
    timestamp.snapshot_meta = repository.meta_file("snapshot")
    timestamp.unrecognized_fields[SIGNED_AT] = moments.text(moments.now())
    write("timestamp", Metadata(timestamp))
    repository.unfinished.end()
    return repository, ring


def add_role(repository, role, ring, folder, encrypted):
    """Gives an older repository a role that new ones have, and its key in FOLDER. Whether that is public.

    Until targets delegates to the role, the repository is as it was, and a run after a kill goes on with the same key.
    """
    if repository.has(role):
        raise Failure(f"{repository.folder} has the role {role} already")
    repository.need(["targets"], ring)
    for keyid in repository.delegation("targets")[1].keyids:
        ring.signer(keyid)  # asks for the passphrase, before anything is written
    name = KEY_NAMES.get(role, role)
    words = keys.new_passphrase(name) if encrypted else None
    unfinished = files.Unfinished(repository.folder, f".unfinished-{role}")
    private = keys.resumed_or_new(folder / f"{name}.pem", words, Ed25519PrivateKey.generate, unfinished)
    unfinished.begin([keys.identity(private)])
    key = keys.write_pair(folder, name, private, words)
    ring = keys.KeyRing([*ring.folders, folder])

    targets = repository.load("targets")
    accepted = DelegatedRole(role, [key.keyid], 1, True, DELEGATED[role])
    targets.signed.delegations.keys[key.keyid] = key
    targets.signed.delegations.roles[role] = accepted
    first = Targets(
        version=1,
        expires=moments.after(moments.now(), LIFETIMES[role]),
        unrecognized_fields={LIFETIME: LIFETIMES[role]},
    )
    metadata = Metadata(first)
    repository.sign(metadata, accepted, ring)
    repository.write(role, metadata)
    repository.save("targets", targets, ring)
    unfinished.end()
    return repository.publish(ring)


def beside_models(repository, ring):
    """The folder of the key of models."""
    for keyid in repository.delegation("models")[1].keyids:
        if keyid in ring.found:
            return ring.found[keyid].parent
    raise Failure("the new key goes beside the key of models, which is not in --keys: name a folder with --new-keys")


def delegator_of(role):
    return "root" if role in TOP_LEVEL else "targets"


def rotate(repository, what, ring, new_folder, public_file, encrypted):
    """Puts a new key in the place of an old one. Returns (lines to print, whether the change is complete)."""
    role, old = find(repository, what, ring)
    delegator = delegator_of(role)
    if delegator == "targets":
        repository.need(["targets"], ring)  # a new root can be signed by its holders one after another, this cannot
    if public_file:
        new = keys.read_public(public_file)
    else:
        name = free_name(ring.name_of(old) or KEY_NAMES.get(role, role), ring, new_folder)
        new = keys.generate(new_folder, name, keys.new_passphrase(name) if encrypted else None)
        ring = keys.KeyRing([*ring.folders, new_folder])
    if delegator == "targets":
        metadata = repository.load("targets")
        metadata.signed.revoke_key(old, role)
        metadata.signed.add_key(new, role)
        repository.save("targets", metadata, ring)
        complete = True
    else:
        metadata = pending_root(repository)
        metadata.signed.revoke_key(old, role)
        metadata.signed.add_key(new, role)
        complete = stage_root(repository, metadata, ring)
    lines = [f"{role}: {old[:8]} is replaced by {new.keyid[:8]}"]
    return [*lines, *finish(repository, ring, complete)], complete


def find(repository, what, ring):
    """(role, key id) of the name of a role with one key, the name of a key's file, or the beginning of an id."""
    held = {role: list(repository.delegation(role)[1].keyids) for role in repository.roles}
    if what in held and len(held[what]) == 1:
        return what, held[what][0]
    matches = [(role, keyid) for role, ids in held.items() for keyid in ids
               if ring.name_of(keyid) == what or len(what) >= 8 and keyid.startswith(what)]
    if len(matches) != 1:
        raise Failure(
            f"{what!r} names no key of this repository: give a role with one key, the name of a key's file in --keys, "
            "or 8 digits of an id (`ledge-platform key list`)"
        )
    return matches[0]


def free_name(name, ring, folder, suffix=".pub.pem"):
    """root2, then root2-2, root2-3 ...: the old file stays until somebody destroys it."""
    stem = re.sub(r"-\d+$", "", name)
    taken = {path.name for place in [*ring.folders, folder] if place.is_dir() for path in place.iterdir()}
    number = 2
    while f"{stem}-{number}{suffix}" in taken:
        number += 1
    return f"{stem}-{number}"


def pending_root(repository):
    """The next root: the staged one, else a copy of the newest."""
    newest = repository.newest("root")
    path = repository.staged / f"{newest + 1}.root.json"
    if path.exists():
        return Metadata.from_file(str(path))
    metadata = deepcopy(repository.load("root"))
    metadata.signed.version = newest + 1
    return metadata


def stage_root(repository, metadata, ring):
    """Signs the next root again with the keys that are here, and takes it if they are enough."""
    metadata.signed.expires = moments.after(moments.now(), metadata.signed.unrecognized_fields[LIFETIME])
    metadata.signatures.clear()
    return sign_root(repository, metadata, ring)


def sign_root(repository, metadata, ring):
    old = repository.load("root").signed
    for keyid in dict.fromkeys([*old.roles["root"].keyids, *metadata.signed.roles["root"].keyids]):
        signer = ring.signer(keyid)
        if signer:
            metadata.sign(signer, append=True)
    path = repository.staged / f"{metadata.signed.version}.root.json"
    result = metadata.signed.get_root_verification_result(old, metadata.signed_bytes, metadata.signatures)
    if not result:
        files.write(path, metadata.to_bytes(JSONSerializer(compact=False)))
        return False
    repository.write("root", metadata)
    path.unlink(missing_ok=True)
    return True


def add_signatures(repository, ring):
    """Another key holder signs the staged root."""
    path = repository.staged / f"{repository.newest('root') + 1}.root.json"
    if not path.exists():
        raise Failure("no root waits for signatures")
    complete = sign_root(repository, Metadata.from_file(str(path)), ring)
    return finish(repository, ring, complete), complete


def renew(repository, role, ring):
    """A new version of the metadata of an offline role, with nothing changed but its expiry."""
    if role == "root":
        complete = stage_root(repository, pending_root(repository), ring)
    else:
        repository.save(role, repository.load(role), ring)
        complete = True
    return finish(repository, ring, complete), complete


def finish(repository, ring, complete):
    """Signs the roles again that were signed by a replaced key, after a change of keys."""
    if not complete:
        version = repository.newest("root") + 1
        path = repository.staged / f"{version}.root.json"
        return [
            f"root {version} needs more signatures and waits in {path}: each holder "
            f"signs it with `ledge-platform root sign`"
        ]
    lines = []
    for role in filter(repository.has, TARGETS_ROLES):
        if not is_valid(repository, role):
            if not repository.can_sign(role, ring):
                lines.append(
                    f"{role} must be signed by its new key BEFORE you publish: "
                    f"`ledge-platform renew {role}` where it is"
                )
                continue
            repository.save(role, repository.load(role), ring)
    if not repository.publish(ring, fresh_snapshot=not is_valid(repository, "snapshot")):
        lines.append("not public yet: run `ledge-platform refresh` where the keys of snapshot and timestamp are")
    return lines


def is_valid(repository, role):
    metadata = repository.load(role)
    delegator = repository.load(delegator_of(role))
    try:
        delegator.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except (UnsignedMetadataError, RepositoryError):
        return False
    return True
