"""Versions of the offline roles, which several people sign one after another.

A version that too few keys signed waits in `staged/`, and the new files of its releases in `staged/targets/`: nothing
there is public. Each holder sees what changes, and adds a signature; with the last one the version moves into place.
So one stolen key changes nothing. A new root waits, too, until `targets` has the signatures that it asks for, because
a root is public as soon as it is in place.
"""
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tuf.api.serialization.json import JSONSerializer

from . import files, manifest, moments, names, staged
from .errors import Failure
from .repository import OFFLINE, TOP_LEVEL, add_signature, lifetime


@dataclass
class Outcome:
    """Whether a version is in place, and lines about what it waits for."""

    done: bool
    lines: list = field(default_factory=list)
    removed: list = field(default_factory=list)  # targets that it does not have any more


def path_of(repository, role):
    return repository.staged / f"{repository.newest(role) + 1}.{role}.json"


def waiting(repository, role):
    """The next version of ROLE if it waits for signatures, checked; else None."""
    path = path_of(repository, role)
    try:
        return staged.checked(repository, role, staged.content_of(path), path) if path.exists() else None
    except Failure as failure:
        raise Failure(f"{failure} (`ledge-platform sign {repository.folder} {role} --discard` drops it)") from None


def pending_root(repository):
    """The next root if it has its signatures and waits for those of `targets`."""
    root = waiting(repository, "root")
    return root if root and all(results(repository, "root", root)) else None


def delegators(repository, role, metadata):
    """What has to accept METADATA as ROLE. A root is accepted by the one before and by itself."""
    if role == "root":
        return [repository.load("root"), metadata]
    if role == "targets":
        return [pending_root(repository) or repository.load("root")]
    return [repository.load("root" if role in TOP_LEVEL else "targets")]


def results(repository, role, metadata):
    return [delegator.signed.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
            for delegator in delegators(repository, role, metadata)]


def keys_of(repository, role, metadata):
    """All keys whose signatures count, by their ids."""
    return {keyid: key for result in results(repository, role, metadata)
            for keyid, key in {**result.signed, **result.unsigned}.items()}


def suffices(repository, role, ring):
    """True if the keys of RING alone can sign ROLE."""
    return all(sum(ring.has(keyid) for keyid in {**result.signed, **result.unsigned}) >= result.threshold
               for result in results(repository, role, repository.load(role)))


def begin(repository, role, ring):
    """The next version of ROLE, to be changed and given to `submit`: what waits, if a key of RING signed that."""
    metadata = repository.load(role)
    accepted = keys_of(repository, role, metadata)
    if not any(ring.has(keyid) for keyid in accepted):
        repository.need([role], ring)
        raise Failure(f"none of the keys in {ring} signs {role}")
    found = waiting(repository, role)
    if found is None:
        metadata.signed.version += 1
        return metadata
    if not any(ring.has(keyid) for result in results(repository, role, found) for keyid in result.signed):
        raise Failure(
            f"{role} {found.signed.version} was made by others and waits for signatures in {path_of(repository, role)}: "
            f"first `ledge-platform sign {repository.folder} {role}`, which shows it, or drop it with --discard"
        )
    return found


def submit(repository, role, metadata, ring):
    """Signs what `begin` gave with all keys that are here. In place if these are enough; else it waits for others."""
    signed = metadata.signed
    signed.expires = moments.after(moments.now(), lifetime(signed))
    metadata.signatures.clear()
    add_signatures(repository, role, metadata, ring)
    return settle(repository, role, metadata, ring)


def renew(repository, role, ring):
    """The next version of ROLE, with nothing changed but its expiry."""
    return submit(repository, role, begin(repository, role, ring), ring)


def add_signatures(repository, role, metadata, ring):
    accepted = keys_of(repository, role, metadata)
    signers = [ring.signer(keyid) for keyid in accepted]
    for signer in filter(None, signers):
        add_signature(metadata, signer)


def settle(repository, role, metadata, ring):
    """Moves a version that has its signatures into place; stages any other."""
    path = path_of(repository, role)
    before = repository.load(role).signed
    reason = obstacle(repository, role, metadata, ring)
    if reason:
        write_staged(path, metadata)
        return Outcome(False, [f"{role} {metadata.signed.version} waits in {path}: {reason}"])
    removed = refuse_needed(repository, role, before, metadata.signed)
    root = pending_root(repository) if role == "targets" else None
    targets = waiting(repository, "targets") if role == "root" else None
    if targets is not None and not repository.is_signed("targets", targets, metadata):
        targets = None
    # A root is public at once, and `targets` with a snapshot only.
    for other, version in (("targets", targets), (role, metadata), ("root", root)):
        if version is not None:
            if other not in ("root", "targets"):
                place_files(repository, version)
            repository.write(other, version)
    tidy(repository)
    return Outcome(True, removed=removed)


def write_staged(path, metadata):
    files.write(path, metadata.to_bytes(JSONSerializer(compact=False)))


def obstacle(repository, role, metadata, ring):
    """Why METADATA cannot be in place yet, and what to do; None if it can."""
    lacking = [lacks(result, ring) for result in results(repository, role, metadata) if not result]
    if lacking:
        return f"it needs {', and '.join(dict.fromkeys(lacking))}: `ledge-platform sign {repository.folder} {role}`"
    if role == "root":
        versions = (repository.load("targets"), waiting(repository, "targets"))
        if not any(repository.is_signed("targets", found, metadata) for found in filter(None, versions)):
            return f"`targets` must be signed by its new keys first: `ledge-platform renew {repository.folder} targets`"
    absent = missing_files(repository, metadata) if role not in ("root", "targets") else []
    if absent:
        files_are = f"and {len(absent) - 1} more files are" if absent[1:] else "is"
        return (
            f"it has its signatures, and {absent[0].path} {files_are} not here: "
            f"`ledge-platform sign REPO {role} --staged FILE` where they are"
        )
    return None


def lacks(result, ring):
    """`1 more signature, of models2 or models3`."""
    number = result.threshold - len(result.signed)
    others = " or ".join(ring.name_of(keyid) or keyid[:8] for keyid in result.unsigned)
    return f"{number} more signature{'s' if number > 1 else ''}, of {others}"


def signed_by(repository, role, metadata, ring):
    """The names of the keys that signed it."""
    found = dict.fromkeys(keyid for result in results(repository, role, metadata) for keyid in result.signed)
    return [ring.name_of(keyid) or keyid[:8] for keyid in found]


def waits(repository, ring):
    """A line for each version that waits for signatures."""
    for role in filter(repository.has, OFFLINE):
        try:
            metadata = waiting(repository, role)
            if metadata is not None:
                by = ", ".join(signed_by(repository, role, metadata, ring)) or "nobody"
                reason = obstacle(repository, role, metadata, ring) or (
                    f"a run was interrupted, which `ledge-platform sign {repository.folder} {role}` finishes")
                yield f"{role} {metadata.signed.version} is signed by {by} and waits: {reason}"
        except Failure as failure:
            yield str(failure)


def held_back(repository):
    """A line for each version that clients do not see, because it does not have the signatures of its present keys."""
    for role in repository.unsigned():
        yield (f"{role} {repository.newest(role)} is not public, because too few of its present keys signed it: "
               f"`ledge-platform renew {repository.folder} {role}` where they are")


def missing_files(repository, metadata):
    return [target for target in metadata.signed.targets.values()
            if not repository.place(target).exists() and not repository.staged_place(target).exists()]


def place_files(repository, metadata):
    """Brings the files of new releases into place, where they are what was signed."""
    for target in metadata.signed.targets.values():
        place, new = repository.place(target), repository.staged_place(target)
        if not place.exists():
            refuse_other_content(target, new)
            files.link(new, place)


def refuse_other_content(target, path):
    if files.measure(path) != (target.length, target.hashes["sha256"]):
        raise Failure(f"{path} is not what was signed as {target.path}: get it again from who made it")


def take_files(repository, metadata, folder):
    """Copies the files of new releases from beside a staged version that somebody brought."""
    for target in metadata.signed.targets.values():
        new = repository.staged_place(target)
        source = folder / new.relative_to(repository.staged)
        if not repository.place(target).exists() and not new.exists() and source.is_file():
            refuse_other_content(target, source)
            files.copy(source, new)


def refuse_needed(repository, role, before, after):
    """The targets that a version takes out. A rollout may have begun to name one while the version waited."""
    if role in ("root", "targets"):
        return []
    removed = {path: target for path, target in before.targets.items() if path not in after.targets}
    for found in repository.load("fleet").signed.targets.values() if removed else ():
        content = manifest.decode(repository.place(found).read_bytes())
        for rollout in content["rollouts"]:
            if rollout["target"] in removed:
                release = names.release(rollout["target"])
                raise Failure(f"rollout {rollout['id']} of fleet {content['fleet']} names {release}: stop it first")
    return list(removed.values())


def discard(repository, role):
    """Drops the version that waits, with the files that only it has."""
    path = path_of(repository, role)
    if not path.exists():
        raise Failure(f"no version of {role} waits for signatures")
    path.unlink()
    tidy(repository)
    return path


def tidy(repository):
    """Removes what waits for nothing any more: versions of earlier numbers, and files that none of the others names."""
    wanted = set()
    for path in sorted(repository.staged.glob("*.json")) if repository.staged.is_dir() else ():
        number, _, role = path.name.removesuffix(".json").partition(".")
        if not number.isdecimal() or role not in OFFLINE or not repository.has(role):
            continue
        if int(number) <= repository.newest(role):
            path.unlink()
            continue
        try:
            found = waiting(repository, role)
        except Failure:
            return
        if found is not None and role not in TOP_LEVEL:
            wanted |= {repository.staged_place(target) for target in found.signed.targets.values()}
    folder = repository.staged / repository.targets.name
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
        path.unlink()
    if not wanted:
        shutil.rmtree(folder, ignore_errors=True)


class Proposal:
    """A staged version as its next signer sees it. What is shown is what `sign` signs."""

    def __init__(self, repository, role, brought):
        self.repository, self.role, self.brought = repository, role, brought
        self.path = path_of(repository, role)
        if not brought and not self.path.exists():
            raise Failure(f"no {role} waits for signatures")
        self.place = Path(brought) if brought else self.path
        self.content = staged.content_of(self.place)
        self.metadata = self.checked()
        self.ignored = self.drop_foreign_signatures()

    def checked(self):
        metadata = staged.checked(self.repository, self.role, self.content, self.place)
        here = waiting(self.repository, self.role) if self.brought else None
        if here is not None:
            if here.signed_bytes != metadata.signed_bytes:
                raise Failure(
                    f"another {self.role} {metadata.signed.version} than {self.place} waits in {self.path}: somebody made "
                    "it at the same time. Agree on one, and drop the one that is here with --discard"
                )
            for keyid, signature in here.signatures.items():
                metadata.signatures.setdefault(keyid, signature)
        return metadata

    def drop_foreign_signatures(self):
        """Signatures that do not count, or are not of these bytes, go no further."""
        valid = {keyid for result in results(self.repository, self.role, self.metadata) for keyid in result.signed}
        foreign = [keyid for keyid in self.metadata.signatures if keyid not in valid]
        for keyid in foreign:
            del self.metadata.signatures[keyid]
        return foreign

    def shown(self, ring):
        """The lines that a signer reads before signing."""
        version, by = self.metadata.signed.version, signed_by(self.repository, self.role, self.metadata, ring)
        yield f"{self.role} {version} in {self.place}, signed by {', '.join(by) or 'nobody'}"
        for keyid in self.ignored:
            yield f"  ignored: a signature of {staged.printable(keyid[:16])}, which does not count"
        yield from staged.difference(self.repository, self.role, self.metadata, self.place.parent)

    def signers(self, ring):
        """The keys that are here, opened: a wrong passphrase or PIN ends this before anything is written."""
        accepted = keys_of(self.repository, self.role, self.metadata)
        return [signer for keyid in accepted if (signer := ring.signer(keyid))]

    def sign(self, signers, ring):
        """Adds the signatures, to the file that was brought as well."""
        if staged.content_of(self.place) != self.content:
            raise Failure(f"{self.place} has changed since it was shown: begin again")
        # Since then, others may have signed this version here, or another one.
        self.metadata = self.checked()
        self.drop_foreign_signatures()
        for signer in signers:
            add_signature(self.metadata, signer)
        if self.brought:
            take_files(self.repository, self.metadata, self.place.parent)
        outcome = settle(self.repository, self.role, self.metadata, ring)
        if self.brought and self.place.resolve() != self.path.resolve():
            write_staged(self.place, self.metadata)
        return outcome
