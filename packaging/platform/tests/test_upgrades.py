"""Packages of Ledge itself: signed as releases by their own offline role, and rolled out like models."""
import json
import shutil

from packages import deb
from support import Kit

NAME = "packages/ledge-slim"


class Upgrades(Kit):
    def package(self, version, name="ledge-slim", architecture="amd64"):
        made = self.folder / f"deb-{name}-{version}-{architecture}-content.deb"
        return made if made.exists() else deb(self.folder, version, name, architecture)

    def sign(self, release, *packages, says=None):
        words = ("upgrade", "add", self.repo, release, *packages, "--keys", self.online, "--keys", self.offline)
        return self.failed(says, *words) if says else self.done(*words)

    def test_packages_are_signed_by_their_own_role_and_rolled_out(self):
        self.sign(1, self.package("0.1.0-1"), self.package("0.1.0-1", architecture="arm64"))
        self.sign(2, self.package("0.2.0-1"))
        self.assertIn("2 releases, 3 files", self.accepted())
        signed = self.targets("packages")
        self.assertEqual(sorted(signed), [
            f"{NAME}/1/ledge-slim_0.1.0-1_amd64.deb", f"{NAME}/1/ledge-slim_0.1.0-1_arm64.deb",
            f"{NAME}/2/ledge-slim_0.2.0-1_amd64.deb"])
        self.assertEqual(self.targets(), {})
        described = json.loads(signed[f"{NAME}/1/ledge-slim_0.1.0-1_amd64.deb"].custom["ledge"])["package"]
        self.assertEqual((described["name"], described["version"], len(described["files"])), ("ledge-slim", "0.1.0", 2))
        listed = self.done("upgrade", "list", self.repo)
        self.assertIn("deb amd64, deb arm64", listed)
        self.start("r-1", f"{NAME}/2")
        self.assertEqual(self.manifest()["rollouts"][0]["target"], f"{NAME}/2/ledge-slim_0.2.0-1_amd64.deb")
        self.assertIn("2 releases", self.accepted())

    def test_what_boxes_would_refuse_is_not_signed(self):
        self.sign(1, self.package("0.2.0-1"))
        self.sign(2, self.package("0.1.0-1"), says="is not newer than 0.2.0-1")
        self.sign(2, self.package("0.2.0-1"), says="is not newer than 0.2.0-1")
        self.sign(1, self.package("0.3.0-1"), says="is in this repository already")
        other = self.package("0.3.0-1", name="ledge")
        self.sign(2, self.package("0.3.0-1"), other, says="packages of ledge, ledge-slim")
        self.sign(2, self.package("0.3.0-1"), self.package("0.4.0-1", architecture="arm64"), says="they have the versions")
        self.sign(2, self.package("0.3.0-1", architecture="riscv64"), says="for the architecture 'riscv64'")
        self.sign(3, self.package("0.3.0-1"))
        self.sign(2, self.package("0.4.0-1"), says="has a higher number than those before")

    def test_the_way_back_stays(self):
        self.sign(1, self.package("0.1.0-1"))
        self.failed("no way back", "rollout", "start", self.repo, "--id", "r-1", "--target", f"{NAME}/1", "--keys", self.online)
        self.sign(2, self.package("0.2.0-1"))
        keys = ("--keys", self.online, "--keys", self.offline)
        self.failed("is the way back", "upgrade", "remove", self.repo, "ledge-slim", 1, *keys)
        self.sign(3, self.package("0.3.0-1"))
        self.done("upgrade", "remove", self.repo, "ledge-slim", 1, *keys)
        self.assertIn("2 releases", self.accepted())

    def test_the_key_of_the_fleet_alone_signs_no_package(self):
        words = ("upgrade", "add", self.repo, 1, self.package("0.1.0-1"), "--keys", self.online)
        self.failed("needs 1 of its 1 keys", *words)

    def test_the_key_can_be_replaced(self):
        self.sign(1, self.package("0.1.0-1"))
        keys = ("--keys", self.online, "--keys", self.offline)
        self.done("key", "rotate", self.repo, "packages", *keys)
        self.accepted()
        self.sign(2, self.package("0.2.0-1"))
        self.accepted()


class BeforeThem(Kit):
    """A repository from before packages."""

    def setUp(self):
        super().setUp()
        keys = ("--keys", self.online, "--keys", self.offline)
        repository = self.repository
        targets = repository.load("targets")
        del targets.signed.delegations.roles["packages"]
        from ledge_platform.keys import KeyRing
        ring = KeyRing([self.online, self.offline])
        for path in (self.repo / "metadata").glob("*.packages.json"):
            path.unlink()
        repository.save("targets", targets, ring)
        repository.publish(ring)
        for name in ("programs.pem", "programs.pub.pem"):
            (self.offline / name).unlink()
        self.all_keys = keys

    def test_it_works_as_before_and_gets_the_role_when_it_is_asked_for(self):
        self.add()
        self.accepted()
        self.done("refresh", self.repo, "--keys", self.online)
        self.assertNotIn("packages", self.done("key", "list", self.repo, "--keys", self.online))
        package = deb(self.folder, "0.1.0-1", "ledge-slim")
        self.failed("upgrade add-role", "upgrade", "add", self.repo, 1, package, *self.all_keys)
        self.done("upgrade", "add-role", self.repo, "--new-keys", self.offline, *self.all_keys)
        self.failed("has the role packages already", "upgrade", "add-role", self.repo, "--new-keys", self.folder, *self.all_keys)
        self.accepted()
        self.done("upgrade", "add", self.repo, 1, package, *self.all_keys)
        self.assertIn("2 releases", self.accepted())
        shutil.rmtree(self.online)
