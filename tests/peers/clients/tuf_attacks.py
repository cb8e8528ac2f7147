"""Makes repositories with the reference implementation of TUF, and attacks on them.

usage: tuf_attacks.py ATTACK FOLDER

Writes FOLDER/root.json, what a box trusts first, and the repository in each of its states: FOLDER/0, FOLDER/1, ...
Offline are root (2 of 3 keys), targets and models; online are timestamp, snapshot and fleet.
"""
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (DelegatedRole, Delegations, Metadata, MetaFile, Root, Snapshot, TargetFile, Targets,
                              Timestamp)
from tuf.api.serialization.json import JSONSerializer

NOW = datetime.now(timezone.utc).replace(microsecond=0)
LATER = NOW + timedelta(days=30)
PAST = NOW - timedelta(seconds=5)
FAR = 2**31
DELEGATED = {"models": ["models/*/*/*", "configurations/*/*/*", "runtimes/*/*/*"], "fleet": ["fleet/*/*"]}
ONLINE = ("timestamp", "snapshot", "fleet")
MODEL, MANIFEST = "models/minilm/2/model.onnx", "fleet/default/rollout.json"


def key():
    return CryptoSigner.generate_ecdsa()


class Platform:
    """A repository and all of its keys. What is changed is published by `publish`."""

    def __init__(self, folder):
        self.folder, self.states = Path(folder), 0
        self.signers = {role: [key()] for role in ("timestamp", "snapshot", "targets", "models", "fleet")}
        self.signers["root"] = [key() for _ in range(3)]
        self.roles = {"timestamp": Timestamp(expires=LATER), "snapshot": Snapshot(expires=LATER),
                      "targets": Targets(expires=LATER), "models": Targets(expires=LATER),
                      "fleet": Targets(expires=LATER), "root": Root(expires=LATER, consistent_snapshot=True)}
        root, targets = self.roles["root"], self.roles["targets"]
        for role in ("root", "timestamp", "snapshot", "targets"):
            for signer in self.signers[role]:
                root.add_key(signer.public_key, role)
        root.roles["root"].threshold = 2
        targets.delegations = Delegations(keys={}, roles={
            name: DelegatedRole(name, [], 1, True, paths) for name, paths in DELEGATED.items()})
        for name in DELEGATED:
            targets.add_key(self.signers[name][0].public_key, name)
        self.files = {}
        self.list("models", MODEL, b"a model", {"ledge": {"schema": 1}})
        self.list("fleet", MANIFEST, b'{"schema": 1}')
        self.roots = [self.signed("root", self.signers["root"][:2])]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.joinpath("root.json").write_bytes(self.roots[0])

    def list(self, role, path, content, custom=None):
        target = TargetFile.from_data(path, content, ["sha256"])
        if custom:
            target.unrecognized_fields["custom"] = custom
        self.roles[role].targets[path] = target
        folder, _, name = path.rpartition("/")
        self.files[f"{folder}/{target.hashes['sha256']}.{name}"] = content

    def signed(self, role, signers=None):
        metadata = Metadata(self.roles[role])
        for signer in self.signers[role] if signers is None else signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes(JSONSerializer())

    def bump(self, *roles):
        """A new version of these roles, and of those above them that say which versions count."""
        for role in {*roles, "snapshot", "timestamp"}:
            self.roles[role].version += 1

    def pin(self):
        snapshot = self.roles["snapshot"]
        for role in ("targets", *DELEGATED):
            snapshot.meta[f"{role}.json"] = MetaFile(self.roles[role].version)
        self.roles["timestamp"].snapshot_meta = MetaFile(snapshot.version)

    def new_root(self, signers):
        self.roles["root"].version += 1
        self.roots.append(self.signed("root", signers))

    def publish(self, pin=True, **signers):
        """Writes the next state. `signers`: whose keys sign a role, where they are not its own."""
        if pin:
            self.pin()
        metadata = self.folder / str(self.states) / "metadata"
        metadata.mkdir(parents=True)
        for number, root in enumerate(self.roots, 1):
            metadata.joinpath(f"{number}.root.json").write_bytes(root)
        for role in ("snapshot", "targets", *DELEGATED):
            name = f"{self.roles[role].version}.{role}.json"
            metadata.joinpath(name).write_bytes(self.signed(role, signers.get(role)))
        metadata.joinpath("timestamp.json").write_bytes(self.signed("timestamp", signers.get("timestamp")))
        for name, content in self.files.items():
            target = metadata.parent / "targets" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        self.states += 1
        return metadata

    def update(self):
        """A release and a rollout, as they should be."""
        self.list("models", "models/minilm/3/model.onnx", b"another model")
        self.bump("models", "fleet", "targets")
        return self.publish()


def honest(platform):
    platform.publish()
    platform.update()


def rollback(platform):
    """The first state is what the second is turned back to."""
    honest(platform)


def rollback_of_models(platform):
    """Who has the online keys takes back the newest release, under a newer timestamp."""
    platform.publish()
    platform.update()
    platform.roles["models"].version = 1
    platform.bump()
    platform.publish()


def fast_forward(platform):
    """Online keys were used for versions that nothing can follow; new keys make the box start over."""
    platform.publish()
    for role in ("timestamp", "snapshot"):
        platform.roles[role].version = FAR
    platform.publish()
    root = platform.roles["root"]
    for role in ("timestamp", "snapshot"):
        root.revoke_key(platform.signers[role][0].public_key.keyid, role)
        platform.signers[role] = [key()]
        root.add_key(platform.signers[role][0].public_key, role)
        platform.roles[role].version = 2
    platform.new_root(platform.signers["root"][1:])
    platform.publish()


def expired(role):
    def attack(platform):
        platform.publish()
        platform.roles[role].expires = PAST
        if role == "root":
            platform.new_root(platform.signers["root"][:2])
            platform.bump()
        else:
            platform.bump(role)
        platform.publish()
    return attack


def mix_and_match(role):
    """A role's file has the name of the new version, and is the old one."""
    def attack(platform):
        old = platform.publish()
        new = platform.update()
        new.joinpath(f"2.{role}.json").write_bytes(old.joinpath(f"1.{role}.json").read_bytes())
    return attack


def wrong_keys(role):
    def attack(platform):
        platform.publish()
        if role == "root":
            # The new one vouches for itself, and for the old one only one of three does.
            stranger = [key(), key()]
            root = platform.roles["root"]
            for signer in stranger:
                root.add_key(signer.public_key, "root")
            platform.new_root([*stranger, platform.signers["root"][0]])
            platform.publish()
        else:
            platform.bump(role)
            platform.publish(**{role: [key()]})
    return attack


def stolen_fleet_key(platform):
    """The thief has every online key: names a model of his own, delegates models to himself, signs `models`."""
    platform.publish()
    evil = platform.signers["fleet"][0]
    platform.list("fleet", "models/evil/1/model.onnx", b"evil")
    fleet = platform.roles["fleet"]
    fleet.delegations = Delegations(keys={}, roles={
        "below": DelegatedRole("below", [], 1, True, ["models/*/*/*"])})
    fleet.add_key(evil.public_key, "below")
    below = Targets(expires=LATER)
    below.targets["models/evil/2/model.onnx"] = TargetFile.from_data("models/evil/2/model.onnx", b"evil", ["sha256"])
    platform.bump("fleet")
    platform.roles["snapshot"].meta["below.json"] = MetaFile(1)
    metadata = platform.publish()
    signed = Metadata(below)
    signed.sign(evil)
    metadata.joinpath("1.below.json").write_bytes(signed.to_bytes(JSONSerializer()))
    platform.list("models", "models/evil/3/model.onnx", b"evil")
    platform.bump("models")
    platform.publish(models=[evil])


ATTACKS = {"honest": honest, "rollback": rollback, "rollback_of_models": rollback_of_models,
           "fast_forward": fast_forward, "stolen_fleet_key": stolen_fleet_key}
for each in ("root", "timestamp", "snapshot", "targets", "models", "fleet"):
    ATTACKS[f"expired_{each}"] = expired(each)
    ATTACKS[f"wrong_keys_{each}"] = wrong_keys(each)
    if each not in ("root", "timestamp"):
        ATTACKS[f"mix_and_match_{each}"] = mix_and_match(each)

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](Platform(sys.argv[2]))
