"""Packages of Ledge itself: signed as releases by their own offline role, and rolled out like models."""
import json
import os
from types import SimpleNamespace
from unittest import mock

from packages import deb, rpm
from support import Kit
from ledge_platform import ceremony, files
from ledge_platform.keys import KeyRing
from ledge_platform.site import doctor

NAME = "packages/ledge-slim"
DEB_1, DEB_2 = f"{NAME}/1/ledge-slim_0.1.0-1_amd64.deb", f"{NAME}/2/ledge-slim_0.2.0-1_amd64.deb"


class Packages(Kit):
    def setUp(self):
        super().setUp()
        self.all_keys = ("--keys", self.online, "--keys", self.offline)

    def deb(self, version, name="ledge-slim", architecture="amd64", content="content"):
        made = self.folder / f"deb-{name}-{version}-{architecture}-{content}.deb"
        return made if made.exists() else deb(self.folder, version, name, architecture, content)

    def sign(self, release, *packages, says=None):
        words = ("upgrade", "add", self.repo, release, *packages, *self.all_keys)
        return self.failed(says, *words) if says else self.done(*words)

    def sign_two(self):
        self.sign(1, self.deb("0.1.0-1"))
        self.sign(2, self.deb("0.2.0-1"))

    def remove(self, release, says=None):
        words = ("upgrade", "remove", self.repo, "ledge-slim", release, *self.all_keys)
        return self.failed(says, *words) if says else self.done(*words)

    def refused(self, says, target, *more):
        words = ("rollout", "start", self.repo, "--id", "r-9", "--target", target, "--keys", self.online)
        self.failed(says, *words, *more)


class Signing(Packages):
    def test_packages_are_signed_by_their_own_role(self):
        amd64, arm64, x86_64 = self.deb("0.2.0-1"), self.deb("0.2.0-1", architecture="arm64"), rpm(
            self.folder, "0.2.0-1", "ledge-slim")
        self.sign(2, amd64, arm64, x86_64)
        self.assertIn("1 releases, 3 files", self.accepted())
        self.assertEqual(self.targets(), {})
        signed = self.targets("packages")
        rpm_2, arm_2 = f"{NAME}/2/ledge-slim-0.2.0-1.x86_64.rpm", f"{NAME}/2/ledge-slim_0.2.0-1_arm64.deb"
        self.assertEqual(list(signed), [rpm_2, DEB_2, arm_2])
        for path, source in ((DEB_2, amd64), (arm_2, arm64), (rpm_2, x86_64)):
            length, sha256 = files.measure(source)
            self.assertEqual((signed[path].length, signed[path].hashes), (length, {"sha256": sha256}))
        self.assertEqual(json.loads(signed[rpm_2].custom["ledge"]), {
            "schema": 1, "semantic_version": "0.2.0",
            "files": ["ledge-slim_0.2.0-1_amd64.deb", "ledge-slim_0.2.0-1_arm64.deb"],
            "package": {"name": "ledge-slim", "version": "0.2.0", "files": [
                {"file": "ledge-slim-0.2.0-1.x86_64.rpm", "format": "rpm", "architecture": "x86_64", "version": "0.2.0-1"},
                {"file": "ledge-slim_0.2.0-1_amd64.deb", "format": "deb", "architecture": "amd64", "version": "0.2.0-1"},
                {"file": "ledge-slim_0.2.0-1_arm64.deb", "format": "deb", "architecture": "arm64", "version": "0.2.0-1"},
            ]}})
        listed = self.done("upgrade", "list", self.repo)
        self.assertIn(f"{NAME}/2  0.2.0    rpm x86_64, deb amd64, deb arm64", listed)

    def test_the_order_of_the_files_does_not_matter(self):
        one, two = self.deb("0.1.0-1"), self.deb("0.1.0-1", architecture="arm64")
        self.sign(1, two, one)
        before = {path: target.to_dict() for path, target in self.targets("packages").items()}
        self.remove(1)
        self.assertFalse(list((self.repo / "targets" / "packages").rglob("*.deb")))
        self.sign(1, one, two)
        self.assertEqual({path: target.to_dict() for path, target in self.targets("packages").items()}, before)

    def test_a_pre_release_is_older_than_its_release_and_its_file_has_a_name_for_targets(self):
        self.sign(1, self.deb("0.2.0~rc.1-1"))
        path, target = next(iter(self.targets("packages").items()))
        described = json.loads(target.custom["ledge"])
        self.assertEqual(path, f"{NAME}/1/ledge-slim_0.2.0-rc.1-1_amd64.deb")
        self.assertEqual((described["semantic_version"], described["package"]["version"]), ("0.2.0-rc.1", "0.2.0~rc.1"))
        self.assertEqual(described["package"]["files"][0]["version"], "0.2.0~rc.1-1")
        self.sign(2, self.deb("0.2.0-1"))
        self.accepted()

    def test_a_rollout_waits_for_the_ledge_that_its_release_requires(self):
        self.sign(1, self.deb("0.1.0-1"))
        self.sign(2, self.deb("0.3.0-1"), "--requires-ledge", "0.2")
        self.start("r-1", f"{NAME}/2")
        self.assertEqual(self.manifest()["rollouts"][0]["requires_ledge"], "0.2.0")

    def test_two_programs_are_counted_apart(self):
        self.sign_two()
        self.sign(1, self.deb("0.1.0-1", "ledge"))
        self.assertIn("3 releases", self.accepted())
        self.refused("packages/ledge/1 has no release before it", "packages/ledge/1")

    def test_what_boxes_would_refuse_is_not_signed(self):
        self.sign(1, self.deb("0.2.0-1"))
        before = self.repository.newest("packages")
        self.sign(2, self.deb("0.1.0-1"), says="ledge-slim_0.1.0-1_amd64.deb is not newer than 0.2.0-1")
        self.sign(2, self.deb("0.2.0-1"), says="is not newer than 0.2.0-1")
        self.sign(2, self.deb("0.2.0~rc1-1"), says="is not newer than 0.2.0-1")
        self.sign(2, self.deb("0.1.0-1", architecture="arm64"), says="is not newer than 0.2.0-1")
        self.sign(2, rpm(self.folder, "0.1.0-1", "ledge-slim"), says="is not newer than 0.2.0-1")
        self.sign(1, self.deb("0.3.0-1"), says="is in this repository already; what was signed stays as it is")
        self.sign(1, self.deb("0.2.0-1", content="other"), says="is in this repository already")
        newer = self.deb("0.3.0-1")
        self.sign(2, newer, self.deb("0.3.0-1", "ledge"), says="packages of ledge, ledge-slim")
        self.sign(2, newer, self.deb("0.4.0-1", architecture="arm64"), says="they have the versions 0.3.0 and 0.4.0")
        self.sign(2, newer, self.deb("0.3.0-1", content="other"), says="two of them are a deb for amd64")
        self.sign(2, self.deb("0.3.0-1", architecture="riscv64"), says="for the architecture 'riscv64'")
        self.sign(2, rpm(self.folder, "0.3.0-1", "ledge-slim", "noarch"), says="for the architecture 'noarch'")
        self.sign("0", newer, says="is not a positive whole number")
        self.assertEqual(self.repository.newest("packages"), before)

    def test_what_is_no_whole_package_is_not_signed(self):
        key = self.folder / "ledge-slim_0.1.0-1_amd64.deb"
        key.write_bytes((self.online / "fleet.pem").read_bytes())
        self.sign(1, key, says="is neither a deb nor an rpm package")
        self.sign(1, self.folder / "absent.deb", says="No such file")
        appended = self.deb("0.1.0-1")
        content = appended.read_bytes()
        appended.write_bytes(content + (self.online / "fleet.pem").read_bytes())
        self.sign(1, appended, says="holds a private key")
        appended.write_bytes(content[:-40])
        self.sign(1, appended, says="dpkg-deb")
        damaged = rpm(self.folder, "0.1.0-1", "ledge-slim")
        damaged.write_bytes(damaged.read_bytes()[:-40])
        self.sign(1, damaged, says="is damaged")
        self.assertEqual(self.targets("packages"), {})

    def test_the_keys_of_the_fleet_and_of_models_sign_no_package(self):
        self.failed("the role packages needs 1 of its 1 keys", "upgrade", "add", self.repo, 1, self.deb("0.1.0-1"), "--keys", self.online)
        for half in ("programs.pem", "programs.pub.pem"):
            (self.offline / half).rename(self.folder / half)
        self.sign(1, self.deb("0.1.0-1"), says="the role packages needs 1 of its 1 keys")

    def test_a_changed_package_is_refused(self):
        self.sign(1, self.deb("0.1.0-1"))
        place = self.repository.place(self.targets("packages")[DEB_1])
        place.write_bytes(place.read_bytes()[:-1] + b"x")
        self.failed("a box would not take it", "verify", self.repo, status=1)

    def test_a_package_that_models_signed_is_refused(self):
        self.sign(1, self.deb("0.1.0-1"))
        repository, ring = self.repository, KeyRing([self.online, self.offline])
        models, packages = repository.load("models"), repository.load("packages")
        models.signed.targets.update(packages.signed.targets)
        packages.signed.targets.clear()
        repository.save("models", models, ring)
        repository.save("packages", packages, ring)
        repository.publish(ring)
        self.failed("does not resolve through it", "verify", self.repo, status=1)

    def test_what_is_signed_offline_becomes_public_where_the_online_keys_are(self):
        text = self.done("upgrade", "add", self.repo, 1, self.deb("0.1.0-1"), "--keys", self.offline)
        self.assertIn("not public yet", text)
        self.assertIn("0 releases", self.accepted())
        self.done("refresh", self.repo, "--keys", self.online)
        self.assertIn("1 releases", self.accepted())
        elsewhere = self.folder / "elsewhere"
        self.done("publish", self.repo, elsewhere)
        root = self.repo / "metadata" / "1.root.json"
        self.assertIn("1 releases, 1 files", self.done("verify", elsewhere.as_uri(), "--root", root))

    def test_the_key_can_be_replaced(self):
        self.sign(1, self.deb("0.1.0-1"))
        for key, made in (("packages", "programs-2"), ("programs-2", "programs-3")):
            self.done("key", "rotate", self.repo, key, *self.all_keys)
            self.assertTrue((self.offline / f"{made}.pem").exists())
            self.accepted()
        self.done("renew", self.repo, "packages", *self.all_keys)
        self.sign(2, self.deb("0.2.0-1"))
        self.assertIn("2 releases", self.accepted())


class RollingOut(Packages):
    def test_a_rollout_has_the_guards_of_packages_only(self):
        self.sign_two()
        text = self.start("r-1", f"{NAME}/2")
        self.assertEqual(text.splitlines()[-2:], ["gate    memory_ratio_max=1.5", "soak    min_s=10m"])
        self.start("r-2", f"{NAME}/2", "--soak", "min_s=2h", "--gate", "memory_ratio_max=2")
        text = self.start("r-3", f"{NAME}/2", "--soak", "off", "--gate", "off", "--shadow", "off", "--canary", "off")
        self.assertEqual(text.splitlines()[-2:], ["gate    memory_ratio_max=off", "soak    off"])
        rollouts = self.manifest()["rollouts"]
        self.assertEqual({key: rollouts[0][key] for key in rollouts[0] if key != "start"}, {
            "id": "r-1", "target": DEB_2, "waves": "default", "paused": False, "gate": {"memory_ratio_max": 1.5},
            "soak": {"min_s": 600}})
        self.assertEqual([(rollout["gate"], rollout["soak"]) for rollout in rollouts[1:]], [
            ({"memory_ratio_max": 2.0}, {"min_s": 7_200}), ({"memory_ratio_max": None}, {"min_s": 0})])
        self.assertIn("2 releases", self.accepted())

    def test_a_guard_that_nothing_would_look_at_is_refused(self):
        self.sign_two()
        for words, told in ((("--gate", "psi_max=0.2"), "gate psi_max"), (("--gate", "golden_min=0"), "gate golden_min"),
                            (("--shadow", "share=0.1"), "shadow share"), (("--canary", "share=0.1"), "canary share"),
                            (("--soak", "min_s=1h,max_s=2h"), "soak max_s")):
            self.refused(f"and not by {told}", f"{NAME}/2", *words)

    def test_after_every_verb_the_client_accepts_it(self):
        self.sign_two()
        self.start("r-1", f"{NAME}/2")
        for verb, words in (
            ("widen", ("--id", "r-1", "--to", "30%")), ("pause", ("--id", "r-1")), ("resume", ("--id", "r-1")),
            ("minimum", (NAME, "1")), ("pin", ("box-7", NAME, "1")), ("revoke", (f"{NAME}/1",)), ("stop", ("--id", "r-1")),
        ):
            self.steer(verb, *words)
            self.accepted()
        manifest = self.manifest()
        self.assertEqual((manifest["pins"], manifest["minimum"], manifest["revoked"]),
                         ({"box-7": {NAME: 1}}, {NAME: 1}, [f"{NAME}/1"]))

    def test_without_a_release_before_it_nothing_is_rolled_out(self):
        self.sign(1, self.deb("0.2.0-1"))
        self.refused("after `upgrade remove`, as release 2", f"{NAME}/1")
        self.remove(1)
        self.sign(2, self.deb("0.2.0-1"))
        self.refused(f"sign the version that they have now as release 1 (`ledge-platform upgrade add {self.repo} 1 FILE...`)", f"{NAME}/2")
        self.refused("there is nothing of packages/ledge", "packages/ledge/1")
        self.sign(1, self.deb("0.3.0-1"), says="is not older than 0.2.0-1")
        self.sign(1, self.deb("0.1.0-1"))
        self.start("r-1", f"{NAME}/2")
        self.accepted()

    def test_the_way_back_stays(self):
        self.sign_two()
        self.remove(1, says=f"{NAME}/1 is the way back from {NAME}/2")
        self.start("r-1", f"{NAME}/2")
        self.sign(3, self.deb("0.3.0-1"))
        self.remove(1, says=f"{NAME}/1 is the way back from {NAME}/2, which rollout r-1 of fleet default names")
        self.remove(2, says=f"{NAME}/2 is the way back from {NAME}/3")
        self.steer("stop", "--id", "r-1")
        place = self.repository.place(self.targets("packages")[DEB_1])
        self.assertIn(str(place.relative_to(self.repo)), self.remove(1))
        self.assertFalse(place.exists())
        self.remove(1, says=f"{NAME}/1 is not in this repository")
        self.remove(3)
        self.assertIn("1 releases", self.accepted())


class BeforeThem(Packages):
    """A repository from before packages, as an earlier version made it."""

    def setUp(self):
        older = {role: paths for role, paths in ceremony.DELEGATED.items() if role != "packages"}
        constants = {name: tuple(role for role in getattr(ceremony, name) if role != "packages")
                     for name in ("ROLES", "OFFLINE", "TARGETS_ROLES")}
        with mock.patch.multiple(ceremony, DELEGATED=older, **constants):
            super().setUp()

    def add_role(self, *more):
        return ("repository", "add-role", self.repo, "packages", *self.all_keys, *more)

    def test_it_works_as_before(self):
        self.assertEqual(list(self.repository.load("targets").signed.delegations.roles), ["models", "fleet"])
        self.add()
        self.start()
        self.steer("pause", "--id", "r-1")
        self.done("refresh", self.repo, "--keys", self.online)
        for role in ("root", "targets", "models"):
            self.done("renew", self.repo, role, *self.all_keys)
        for key in ("models", "targets", "fleet"):
            self.done("key", "rotate", self.repo, key, *self.all_keys)
        self.assertNotIn("packages", self.done("key", "list", self.repo, "--keys", self.online))
        self.done("upgrade", "list", self.repo)
        layout = SimpleNamespace(repository=self.repo, keys=self.online)
        found = list(doctor.signed_roles(SimpleNamespace(layout=layout, repository=self.repository)))
        self.assertEqual(len(found), 6)
        self.assertIn("1 releases", self.accepted())
        self.assertNotIn("packages", self.accepted())
        self.assertFalse(list(self.repo.glob("metadata/*.packages.json")) or list(self.offline.glob("programs*")))

    def test_what_needs_the_role_says_how_to_get_it(self):
        says = f"has no role packages: `ledge-platform repository add-role {self.repo} packages` adds it"
        self.sign(1, self.deb("0.1.0-1"), says=says)
        self.remove(1, says=says)
        self.failed(says, "renew", self.repo, "packages", *self.all_keys)
        self.refused("there is nothing of packages/ledge-slim", f"{NAME}/1")
        self.failed("names no key", "key", "rotate", self.repo, "packages", *self.all_keys)

    def test_it_gets_the_role_with_a_key_beside_that_of_models_and_clients_follow(self):
        self.add()
        first = self.repository.load("root").signed.version
        self.assertIn(f"{self.offline}/programs.pem signs packages", self.done(*self.add_role()))
        self.assertIn(b"ENCRYPTED", (self.offline / "programs.pem").read_bytes())
        self.assertIn("packages 1", self.accepted())
        self.failed("has the role packages already", *self.add_role())
        self.sign_two()
        self.start("r-1", f"{NAME}/2")
        self.assertIn("3 releases", self.accepted())
        self.done("key", "rotate", self.repo, "packages", *self.all_keys)
        self.accepted()
        self.assertEqual(self.repository.load("root").signed.version, first)
        role = self.repository.load("targets").signed.delegations.roles["packages"]
        self.assertEqual((role.paths, role.threshold, role.terminating), (["packages/*/*/*"], 1, True))

    def test_the_key_may_go_elsewhere(self):
        stick = self.folder / "stick"
        words = ("repository", "add-role", self.repo, "packages", "--keys", self.online, "--keys", self.offline)
        for half in ("models.pem", "models.pub.pem"):
            (self.offline / half).rename(self.folder / half)
        self.failed("name a folder with --new-keys", *words)
        self.done(*words, "--new-keys", stick, "--plain")
        self.assertNotIn(b"ENCRYPTED", (stick / "programs.pem").read_bytes())
        self.accepted()

    def test_a_wrong_or_absent_key_of_targets_changes_nothing(self):
        def files_there():
            return sorted(path for folder in (self.repo, self.offline) for path in folder.rglob("*") if path.name != ".lock")

        before = files_there()
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE_TARGETS": "wrong, wrong, wrong"}):
            self.failed("the passphrase does not open", *self.add_role())
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE_PROGRAMS": "short"}):
            self.failed("has 5 characters", *self.add_role())
        self.failed("the role targets needs", "repository", "add-role", self.repo, "packages", "--keys", self.online, "--new-keys", self.folder)
        self.assertEqual(files_there(), before)

    def test_a_run_that_was_killed_at_any_write_is_finished_by_the_next(self):
        self.add()
        real, kill = files.write, 1
        while True:
            writes = iter(range(1, kill + 1))

            def write(*words, **more):
                if next(writes, None) == kill:
                    raise KeyboardInterrupt
                return real(*words, **more)

            with mock.patch("ledge_platform.files.write", write):
                status, text = self.run_verb(*self.add_role())
            if status == 0:
                break
            self.assertEqual(status, 130, text)
            # Whatever is there, the other verbs work and clients take it.
            self.done("key", "list", self.repo, "--keys", self.online)
            self.done("refresh", self.repo, "--keys", self.online)
            self.accepted()
            if self.repository.has("packages"):
                break
            kill += 1
        self.assertGreater(kill, 4)
        self.assertIn("packages", self.accepted())
        self.sign(1, self.deb("0.1.0-1"))
        self.assertIn("2 releases", self.accepted())
        self.assertEqual(len(list(self.offline.glob("programs*"))), 2)

    def test_a_key_of_something_else_is_not_taken(self):
        self.done("key", "generate", "programs", "--keys", self.offline)
        self.failed("a key is never overwritten", *self.add_role())
        self.accepted()

