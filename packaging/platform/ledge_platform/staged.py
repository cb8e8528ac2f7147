"""Staged metadata is hostile input: it may come from a stick of another key holder, or of somebody who stole a key.

`checked` refuses what the verbs of ledge-platform do not write, so that nothing is signed that `difference` does not
show.
"""
import json
import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.signer import SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata
from tuf.api.serialization.json import JSONSerializer

from . import moments, names
from .errors import Failure
from .repository import LIFETIME, TOP_LEVEL, first_line, lifetime

BYTES_MAX = 16 << 20
DESCRIPTION_SHOWN_MAX = 2_000
LIFETIME_S_MAX = 3_650 * 86_400
CLOCKS_DIFFER_S_MAX = 86_400  # between the machines of two holders
# What boxes take from each role; ceremony.py makes them with these.
DELEGATED = {
    "models": ["models/*/*/*", "configurations/*/*/*", "runtimes/*/*/*"],
    "packages": ["packages/*/*/*"],
    "fleet": ["fleet/*/*"],
}


def content_of(path):
    try:
        with open(path, "rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise Failure(f"{path} has more than {BYTES_MAX} bytes")
    return content


def checked(repository, role, content, place):
    """The metadata in CONTENT, where it can be the next version of ROLE."""
    try:
        metadata = Metadata.from_bytes(content)
        same = metadata.to_bytes(JSONSerializer(compact=False)) == content
    except (RepositoryError, ValueError) as error:
        raise Failure(f"{place} is no metadata: {printable(first_line(error))}") from None
    try:
        if not same:
            raise Failure(
                "it is not in the form that ledge-platform writes, so what is signed could differ from what is shown"
            )
        check(repository, role, metadata.signed)
    except Failure as failure:
        raise Failure(f"{place}: {failure}") from None
    return metadata


def check(repository, role, signed):
    kind = role if role in TOP_LEVEL else "targets"
    if signed.type != kind:
        raise Failure(f"it is metadata of the kind {printable(signed.type)}, and not of {role}")
    current = repository.load(role).signed
    if signed.version <= current.version:
        raise Failure(
            f"it is version {signed.version} of {role}, and {current.version} is signed already: it was made for an "
            "older state, so make it again"
        )
    if signed.version != current.version + 1:
        raise Failure(f"it is version {signed.version} of {role}, and the next one is {current.version + 1}")
    refuse_unknown(signed.unrecognized_fields, "the metadata", {LIFETIME})
    if signed.spec_version != current.spec_version:
        raise Failure(f"it is of TUF {printable(signed.spec_version)}, and the version before of {current.spec_version}")
    valid_for_s = signed.unrecognized_fields.get(LIFETIME)
    if type(valid_for_s) is not int or not 0 < valid_for_s <= LIFETIME_S_MAX:
        raise Failure(f"{LIFETIME} is not from 1 s to ten years")
    rest = (signed.expires - moments.now()).total_seconds()
    if rest <= 0:
        raise Failure(f"it expired on {moments.text(signed.expires)}: make it again")
    if rest > valid_for_s + CLOCKS_DIFFER_S_MAX:
        until = moments.text(signed.expires)
        raise Failure(f"it would be valid until {until}, longer than {moments.spoken(valid_for_s)}")
    if role == "root":
        check_root(signed)
    elif role == "targets":
        check_delegations(signed)
    else:
        check_releases(repository, role, signed)


def refuse_unknown(fields, of, known=frozenset()):
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise Failure(f"{of} has the field {printable(unknown[0])}, which this version of ledge-platform does not know")


def check_root(root):
    if set(root.roles) != set(TOP_LEVEL) or not root.consistent_snapshot:
        raise Failure(f"a root has the roles {', '.join(TOP_LEVEL)}, and a consistent snapshot")
    check_keys(root.keys)
    for name, role in root.roles.items():
        check_role(name, role, root.keys)


def check_delegations(targets):
    if targets.targets:
        raise Failure("the role targets has no targets of its own")
    found = targets.delegations
    if found is None or found.roles is None or not {"models", "fleet"} <= set(found.roles) <= set(DELEGATED):
        raise Failure(f"the role targets delegates to {', '.join(DELEGATED)}")
    refuse_unknown(found.unrecognized_fields, "its delegation")
    check_keys(found.keys)
    for name, role in found.roles.items():
        if role.paths != DELEGATED[name] or not role.terminating or role.path_hash_prefixes is not None:
            raise Failure(f"it lets the role {name} sign other paths than {', '.join(DELEGATED[name])}")
        check_role(name, role, found.keys)


def check_keys(found):
    """Each key has the id of its content. One key in two forms would count twice."""
    for keyid, key in found.items():
        refuse_unknown(key.unrecognized_fields, "a key")
        try:
            value = key.keyval["public"]
            if key.keytype == "ed25519":
                same = SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(value)))
            else:
                same = SSlibKey.from_crypto(load_pem_public_key(value.encode()))
            fits = same.to_dict() == key.to_dict() and same.keyid == keyid
        except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
            fits = False
        if not fits or key.keytype not in ("ed25519", "ecdsa"):
            raise Failure(f"the key {printable(keyid[:16])} is not what its id says")


def check_role(name, role, found):
    refuse_unknown(role.unrecognized_fields, f"the role {name}")
    if not set(role.keyids) <= set(found) or not 1 <= role.threshold <= len(role.keyids):
        raise Failure(f"{role.threshold} of {len(role.keyids)} keys cannot sign {name}")


def check_releases(repository, role, signed):
    if signed.delegations is not None:
        raise Failure(f"the role {role} delegates to nobody")
    accepted = repository.delegation(role)[1]
    for path, target in signed.targets.items():
        try:
            names.target(path)
        except Failure as failure:
            raise Failure(printable(str(failure))) from None
        if not accepted.is_delegated_path(path):
            raise Failure(f"{path} is not a path that {role} signs")
        if set(target.hashes) != {"sha256"} or not re.fullmatch(r"[0-9a-f]{64}", str(target.hashes["sha256"])):
            raise Failure(f"{path} has not exactly a SHA-256")
        refuse_unknown(target.unrecognized_fields, path, {"custom"})
        if target.custom is not None and not is_description(target.custom):
            raise Failure(f"{path} has a description that boxes do not read")


def is_description(custom):
    try:
        return set(custom) == {"ledge"} and isinstance(json.loads(custom["ledge"]), dict)
    except (ValueError, TypeError, RecursionError):
        return False


def printable(text):
    """Text of somebody else, without what would move the cursor of a terminal."""
    ascii_only = str(text).encode("ascii", "backslashreplace").decode()
    return ascii_only.translate({code: f"\\x{code:02x}" for code in (*range(32), 127)})


def difference(repository, role, metadata, folder):
    """What changes between the newest version of ROLE and METADATA, in lines."""
    before, after = repository.load(role).signed, metadata.signed
    until, until_before = moments.text(after.expires), moments.text(before.expires)
    yield f"  after {role} {before.version}, valid until {until} (before: {until_before})"
    if lifetime(before) != lifetime(after):
        time, time_before = moments.spoken(lifetime(after)), moments.spoken(lifetime(before))
        yield f"  CHANGED each version is valid for {time} (before: {time_before})"
    if role == "root":
        lines = keys_changed((before.keys, before.roles), (after.keys, after.roles))
    elif role == "targets":
        lines = keys_changed(*((found.delegations.keys, found.delegations.roles) for found in (before, after)))
    else:
        lines = targets_changed(repository, before.targets, after.targets, folder)
    lines = list(lines)
    yield from lines or ["  nothing else changes"]


def keys_changed(before, after):
    for name, role in sorted(after[1].items()):
        old = before[1].get(name)
        if old is None:
            yield f"  ADDED   role {name}: {role.threshold} of {len(role.keyids)} keys"
        elif (old.threshold, len(old.keyids)) != (role.threshold, len(role.keyids)):
            yield (f"  CHANGED {name} is signed by {role.threshold} of {len(role.keyids)} keys "
                   f"(before: {old.threshold} of {len(old.keyids)})")
        for keyid in role.keyids:
            if old is None or keyid not in old.keyids:
                yield f"  ADDED   key of {name}: {keyid} ({after[0][keyid].keytype})"
        for keyid in old.keyids if old else ():
            if keyid not in role.keyids:
                yield f"  REMOVED key of {name}: {keyid}"
    for name in sorted(set(before[1]) - set(after[1])):
        yield f"  REMOVED role {name}"


def targets_changed(repository, before, after, folder):
    for path, target in sorted(after.items()):
        old = before.get(path)
        if old == target:
            continue
        new = repository.staged_place(target)
        places = [repository.place(target), new, folder / new.relative_to(repository.staged)]
        here = "" if any(place.is_file() for place in places) else ", its file is not here"
        content = f"{target.length:,} bytes, sha256 {target.hashes['sha256']}{here}"
        if old is None:
            yield f"  ADDED   {path}: {content}"
        elif (old.length, old.hashes) != (target.length, target.hashes):
            yield f"  CHANGED {path}: {content} (before: {old.hashes['sha256']})"
        if target.custom is not None and (old is None or old.custom != target.custom):
            word = "ADDED  " if old is None or old.custom is None else "CHANGED"
            text = printable(json.dumps(json.loads(target.custom["ledge"]), sort_keys=True))
            hidden = len(text) - DESCRIPTION_SHOWN_MAX
            rest = f" ... and {hidden} more characters" if hidden > 0 else ""
            yield f"  {word} description of {path}: {text[:DESCRIPTION_SHOWN_MAX]}{rest}"
        elif old is not None and old.custom is not None and target.custom is None:
            yield f"  REMOVED description of {path}"
    for path, target in sorted(before.items()):
        if path not in after:
            yield f"  REMOVED {path}: sha256 {target.hashes['sha256']}"
