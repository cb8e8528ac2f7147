"""A TUF repository in a folder: metadata/, targets/ and, for new boxes, root.json.

Each version of a role's metadata is a file of its own. The newest is what counts here; the world sees what the
timestamp leads to. So the role `models` can be signed on a machine that has no other key, and `refresh` makes it
public elsewhere.
"""
import fcntl
import os
import re
from contextlib import contextmanager

from securesystemslib.exceptions import StorageError
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, TargetFile
from tuf.api.serialization.json import JSONSerializer

from . import files, moments
from .errors import Failure

TARGETS_ROLES = ("targets", "models", "packages", "fleet")
TOP_LEVEL = ("root", "targets", "snapshot", "timestamp")
OFFLINE = ("root", "targets", "models", "packages")
ROLES = ("root", "targets", "models", "packages", "fleet", "snapshot", "timestamp")
LIFETIME = "x-ledge-lifetime-s"  # in each role's metadata: how long its next version is to be good for
SIGNED_AT = "x-ledge-signed-at"  # in the timestamp: from it, boxes know what time it is at least
KEPT = 20  # old versions that stay, for clients that are in the middle of an update


class Repository:
    def __init__(self, folder):
        self.folder = folder
        self.metadata, self.targets, self.staged = folder / "metadata", folder / "targets", folder / "staged"
        self.unfinished = files.Unfinished(folder)

    @classmethod
    def open(cls, folder):
        repository = cls(folder)
        if not repository.newest("root"):
            raise Failure(
                f"{folder} is no repository (it has no metadata/1.root.json): make one with `ledge-platform repository init`"
            )
        if repository.unfinished:
            raise Failure(f"{folder} is not finished: run the command that made it again")
        return repository

    @contextmanager
    def locked(self):
        """One writer at a time: a cron line, a watch and a person may meet."""
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("another ledge-platform is writing to this repository; waiting for it", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- metadata ---

    def newest(self, role):
        """The newest version there is; 0 for none."""
        versions = [int(found[1]) for entry in self.metadata.glob(f"*.{role}.json")
                    if (found := re.fullmatch(rf"(\d+)\.{role}\.json", entry.name))]
        return max(versions, default=0)

    def path(self, role, version):
        return self.metadata / ("timestamp.json" if role == "timestamp" else f"{version}.{role}.json")

    def load(self, role, version=None):
        version = version or self.newest(role)
        if not version and not self.has(role):
            raise self.without_role(role)
        path = self.path(role, version)
        try:
            return Metadata.from_file(str(path))
        except (RepositoryError, StorageError) as error:
            raise Failure(f"{path} cannot be read: {first_line(error)}") from None

    def exists(self, role):
        return self.path("timestamp", 0).exists() if role == "timestamp" else self.newest(role) > 0

    def delegation(self, role):
        """(keys by id, the ids and threshold of ROLE) as in the role that delegates to it."""
        delegator = self.load("root" if role in TOP_LEVEL else "targets").signed
        holder = delegator if role in TOP_LEVEL else delegator.delegations
        try:
            return holder.keys, delegator.get_delegated_role(role)
        except ValueError:
            raise self.without_role(role) from None

    @property
    def roles(self):
        """The roles that it has: one from before packages of Ledge itself has none for them."""
        return [role for role in ROLES if self.has(role)]

    def has(self, role):
        """True if it has to have metadata of ROLE. What lies there before the role is delegated to does not count."""
        if role in TOP_LEVEL:
            return True
        delegations = self.load("targets").signed.delegations
        return delegations is not None and role in (delegations.roles or {})

    def without_role(self, role):
        return Failure(f"{self.folder} has no role {role}: `ledge-platform repository add-role {self.folder} {role}` adds it")

    def can_sign(self, role, ring):
        accepted = self.delegation(role)[1]
        return sum(ring.has(keyid) for keyid in accepted.keyids) >= accepted.threshold

    def need(self, roles, ring):
        """Fails before anything is written when a key is not here."""
        for role in roles:
            accepted = self.delegation(role)[1]
            here = sum(ring.has(keyid) for keyid in accepted.keyids)
            if here < accepted.threshold:
                missing = ", ".join(
                    keyid[:8] + (f", {absence}" if (absence := ring.absence(keyid)) else "")
                    for keyid in accepted.keyids if not ring.has(keyid))
                present = f"{here} {'is' if here == 1 else 'are'} in {ring}"
                raise Failure(
                    f"the role {role} needs {accepted.threshold} of its {len(accepted.keyids)} keys, and {present} "
                    f"(missing: {missing}): name the folder that has them with --keys"
                )

    def is_signed(self, role, metadata=None, delegator=None):
        """True if DELEGATOR, by default the newest, accepts the signatures of METADATA, by default the newest of ROLE."""
        metadata = metadata or self.load(role)
        delegator = delegator or self.load("root" if role in TOP_LEVEL else "targets")
        try:
            delegator.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (UnsignedMetadataError, RepositoryError, ValueError):
            return False
        return True

    def save(self, role, metadata, ring):
        """Signs a new version of the loaded metadata, and writes it."""
        self.need([role], ring)
        signed = metadata.signed
        signed.version += 1
        signed.expires = moments.after(moments.now(), lifetime(signed))
        self.sign(metadata, self.delegation(role)[1], ring)
        self.write(role, metadata)

    def sign(self, metadata, accepted, ring):
        metadata.signatures.clear()
        for keyid in accepted.keyids:
            signer = ring.signer(keyid)
            if signer:
                add_signature(metadata, signer)

    def write(self, role, metadata):
        content = metadata.to_bytes(JSONSerializer(compact=False))
        files.write(self.path(role, metadata.signed.version), content)
        if role == "root":
            files.write(self.folder / "root.json", content)
        elif role != "timestamp" and (old := metadata.signed.version - KEPT) > 0 and old != self.published(role):
            self.path(role, old).unlink(missing_ok=True)

    # --- what the world sees ---

    def publish(self, ring, fresh_snapshot=False):
        """Signs snapshot and timestamp over the newest metadata. Returns true if that is public then."""
        if not (self.can_sign("snapshot", ring) and self.can_sign("timestamp", ring)):
            return False
        snapshot = self.load("snapshot")
        meta, unsigned = self.acceptable(snapshot.signed.meta)
        if meta != snapshot.signed.meta or fresh_snapshot:
            snapshot.signed.meta = meta
            self.save("snapshot", snapshot, ring)
        timestamp = self.load("timestamp")
        timestamp.signed.snapshot_meta = self.meta_file("snapshot")
        timestamp.signed.unrecognized_fields[SIGNED_AT] = moments.text(moments.now())
        self.save("timestamp", timestamp, ring)
        return not unsigned

    def acceptable(self, published):
        """({file: version} that clients accept together, the roles that too few of their keys signed).

        After a change of keys, a role may wait for signatures by its new keys. Until it has them, clients see the
        version of `targets` before, and of each other role the newest that its keys signed.
        """
        roles, unsigned = self.present_roles(), self.unsigned()
        if not unsigned:
            return {f"{role}.json": self.meta_file(role) for role in roles}, []
        before = self.load("targets", published["targets.json"].version)
        meta = dict(published)
        for role in roles:
            if role != "targets" and self.is_signed(role, delegator=before):
                meta[f"{role}.json"] = self.meta_file(role)
        return meta, unsigned

    def present_roles(self):
        return [role for role in TARGETS_ROLES if self.has(role) and self.exists(role)]

    def unsigned(self):
        """The roles whose newest version too few of their keys signed, as after a change of keys."""
        return [role for role in self.present_roles() if not self.is_signed(role)]

    def refuse_unaccepted(self):
        """Fails where clients would refuse what is public: a root with other keys may be newer than what these sign."""
        versions = {"snapshot": None, "timestamp": None, "targets": self.published("targets")}
        for role, version in versions.items():
            if not self.is_signed(role, self.load(role, version)):
                raise Failure(
                    f"the public version of {role} is not signed by its present keys, and boxes would refuse it: "
                    f"run `ledge-platform refresh {self.folder}` where the keys of snapshot and timestamp are"
                )

    def meta_file(self, role):
        version = self.newest(role)
        length, sha256 = files.measure(self.path(role, version))
        return MetaFile(version, length, {"sha256": sha256})

    def published(self, role):
        """The version that the world sees; None for none."""
        meta = self.load("snapshot").signed.meta.get(f"{role}.json")
        return meta.version if meta else None

    # --- targets ---

    def add_target(self, path, source, custom=None, staged=False):
        """Stores a file (a path, or its bytes) as the target PATH and returns its signed description.

        One of a version that waits for signatures is STAGED: it is not public before that version is.
        """
        if isinstance(source, bytes):
            target = TargetFile.from_data(path, source, ["sha256"])
        else:
            length, sha256 = files.measure(source)
            target = TargetFile(length, {"sha256": sha256}, path)
        if custom is not None:
            target.unrecognized_fields["custom"] = custom
        place = self.staged_place(target) if staged and not self.place(target).exists() else self.place(target)
        if not place.exists():
            twin = self.twin(target)
            if twin:
                files.link(twin, place)
            elif isinstance(source, bytes):
                files.write(place, source)
            else:
                files.copy(source, place)
        return target

    def place(self, target):
        folder, _, file = target.path.rpartition("/")
        return self.targets / folder / f"{target.hashes['sha256']}.{file}"

    def staged_place(self, target):
        return self.staged / self.place(target).relative_to(self.folder)

    def twin(self, target):
        """A file with the same content: what did not change between two versions is stored once."""
        for role in ("models", "packages"):
            for other in self.load(role).signed.targets.values() if self.exists(role) and self.has(role) else ():
                if other.hashes.get("sha256") == target.hashes["sha256"] and self.place(other).exists():
                    return self.place(other)
        return None


def add_signature(metadata, signer):
    try:
        metadata.sign(signer, append=True)
    except UnsignedMetadataError as error:
        raise error.__cause__ if isinstance(error.__cause__, Failure) else Failure(first_line(error)) from None


def lifetime(signed):
    return signed.unrecognized_fields[LIFETIME]


def left(signed):
    """Seconds until it expires."""
    return (signed.expires - moments.now()).total_seconds()


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_private(path):
    return not os.stat(path).st_mode & 0o077
