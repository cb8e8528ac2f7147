"""Making a repository, and replacing its keys."""
import itertools
import re
import shutil

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from . import files, keys, manifest, moments, signing
from .errors import Failure
from .repository import LIFETIME, OFFLINE, ROLES, SIGNED_AT, TARGETS_ROLES, TOP_LEVEL, Repository
from .staged import DELEGATED

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
KEYS_MAX = 9  # of a role
THRESHOLDS = {"root": (2, 3)}  # (keys that must sign, keys); of other roles (1, 1)
# `packages.asc` is the key of apt and dnf.
KEY_NAMES = {"packages": "programs"}


def init(folder, ring_folder, offline_folder, thresholds, encrypt, lifetimes):
    """Makes all keys and the first version of everything. Returns the repository and the ring."""
    thresholds = {**THRESHOLDS, **thresholds}
    for role, (needed, number) in thresholds.items():
        if not 1 <= needed <= number <= KEYS_MAX:
            raise Failure(f"of {number} {role} keys, {needed} cannot have to sign")
    repository = Repository(folder)
    if repository.metadata.exists() and not repository.unfinished:
        raise Failure(f"{folder} is a repository already")
    # All passphrases before the first key: a refused one leaves no half of a ring.
    wanted = []
    for role in ROLES:
        offline = role in OFFLINE
        where = offline_folder if offline else ring_folder
        encrypted = encrypt == "all" or encrypt == "offline" and offline
        for name in first_names(role, thresholds.get(role, (1, 1))[1]):
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
    for role in ("root", "targets"):
        root.roles[role].threshold = thresholds.get(role, (1, 1))[0]
    metadata = Metadata(root)
    repository.sign(metadata, root.roles["root"], ring)
    repository.write("root", metadata)

    roles = {
        role: DelegatedRole(role, [key.keyid for key in made[role]], thresholds.get(role, (1, 1))[0], True, paths)
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


def first_names(role, number):
    """root1, root2 ... where a role has several keys."""
    stem = KEY_NAMES.get(role, role)
    return [f"{stem}{each + 1}" for each in range(number)] if number > 1 or role == "root" else [stem]


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
    metadata = signing.begin(repository, delegator_of(role), ring)
    if old not in metadata.signed.get_delegated_role(role).keyids:
        raise Failure(f"{old[:8]} is replaced already, in the version that waits for signatures")
    if public_file:
        new = refuse_twice(metadata, role, keys.read_public(public_file))
    else:
        name = free_name(ring.name_of(old) or KEY_NAMES.get(role, role), ring, new_folder)
        new = keys.generate(new_folder, name, keys.new_passphrase(name) if encrypted else None)
        ring = keys.KeyRing([*ring.folders, new_folder])
    metadata.signed.revoke_key(old, role)
    metadata.signed.add_key(new, role)
    lines, complete = submit(repository, delegator_of(role), metadata, ring)
    return [f"{role}: {old[:8]} is replaced by {new.keyid[:8]}", *lines], complete


def change_threshold(repository, role, needed, number, ring, removed, public_files, new_folder, encrypted):
    """Makes NEEDED of NUMBER keys sign ROLE. Returns (lines to print, whether the change is complete)."""
    metadata = signing.begin(repository, delegator_of(role), ring)
    accepted = metadata.signed.get_delegated_role(role)
    gone = [find(repository, what, ring, role)[1] for what in removed]
    new = []
    for file in public_files:
        new.append(refuse_twice(metadata, role, keys.read_public(file), new))
    made = number - len(set(accepted.keyids) - set(gone)) - len(new)
    if made < 0:
        raise Failure(f"{role} would have {number - made} keys: take {-made} out with --remove KEY")
    if not 1 <= needed <= number <= KEYS_MAX:
        raise Failure(f"of {number} {role} keys, {needed} cannot have to sign")
    # All passphrases before the first key: a refused one leaves no half of a ring.
    stem = KEY_NAMES.get(role, role)
    names = free_names(stem, len(accepted.keyids) + 1, made, ring, new_folder)
    wanted = [(name, keys.new_passphrase(name) if encrypted else None) for name in names]
    for name, words in wanted:
        new.append(keys.generate(new_folder, name, words))
    if wanted:
        ring = keys.KeyRing([*ring.folders, new_folder])
    for key in new:
        metadata.signed.add_key(key, role)
    for keyid in gone:
        metadata.signed.revoke_key(keyid, role)
    accepted.threshold = needed
    lines, complete = submit(repository, delegator_of(role), metadata, ring)
    added = ", ".join(ring.name_of(key.keyid) or key.keyid[:8] for key in new)
    changes = [f"added {added}"] * bool(new) + [f"removed {', '.join(keyid[:8] for keyid in gone)}"] * bool(gone)
    return [f"{role}: {needed} of {number} keys sign it{''.join(f', {each}' for each in changes)}", *lines], complete


def refuse_twice(metadata, role, key, others=()):
    """A key counts once, so a role has it once."""
    if key.keyid in metadata.signed.get_delegated_role(role).keyids or key in others:
        raise Failure(f"the key {key.keyid[:8]} is one of {role} already")
    return key


def find(repository, what, ring, of=None):
    """(role, key id) of the name of a role with one key, the name of a key's file, or the beginning of an id."""
    held = {role: list(repository.delegation(role)[1].keyids) for role in repository.roles if of in (None, role)}
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


def free_names(stem, first, number, ring, folder):
    """models2, models3 ...: so many names from number FIRST on that no file has."""
    taken = {path.name for place in [*ring.folders, folder] if place.is_dir() for path in place.iterdir()}
    candidates = (f"{stem}{each}" for each in itertools.count(first))
    free = (name for name in candidates if not {f"{name}.pem", f"{name}.pub.pem"} & taken)
    return list(itertools.islice(free, number))


def submit(repository, role, metadata, ring):
    """Signs a change of keys, and what has to be signed again after it."""
    outcome = signing.submit(repository, role, metadata, ring)
    return follow_up(repository, ring, outcome)


def renew(repository, role, ring):
    """A new version of the metadata of an offline role, with nothing changed but its expiry."""
    return follow_up(repository, ring, signing.renew(repository, role, ring))


def follow_up(repository, ring, outcome):
    """Signs the roles again whose keys were replaced. Returns (lines to print, whether all is complete)."""
    lines, complete = list(outcome.lines), outcome.done
    root = signing.pending_root(repository)
    if root is not None:
        # Its last signature is that of the new keys of `targets`.
        found = signing.keys_of(repository, "targets", repository.load("targets"))
        if any(ring.has(keyid) for keyid in found) and signing.waiting(repository, "targets") is None:
            renewed = signing.renew(repository, "targets", ring)
            lines, complete = list(renewed.lines), renewed.done
    if not complete:
        return lines, False
    for role in filter(repository.has, TARGETS_ROLES):
        if repository.is_signed(role):
            continue
        accepted = repository.delegation(role)[1]
        if role == "fleet" and repository.can_sign(role, ring):
            repository.save(role, repository.load(role), ring)
        elif role != "fleet" and any(ring.has(keyid) for keyid in accepted.keyids):
            lines += signing.renew(repository, role, ring).lines
        if not repository.is_signed(role):
            complete = False
        if not repository.is_signed(role) and signing.waiting(repository, role) is None:
            lines.append(
                f"{role} must be signed by {accepted.threshold} of its new keys before this is public: "
                f"`ledge-platform renew {repository.folder} {role}` where they are"
            )
    if not repository.publish(ring, fresh_snapshot=not repository.is_signed("snapshot")) and not lines:
        lines.append("not public yet: run `ledge-platform refresh` where the keys of snapshot and timestamp are")
    return lines, complete
