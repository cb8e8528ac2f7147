"""Keys and metadata: after every verb, python-tuf's own client takes what was written."""
import io
import json
import os
import stat
import unittest
from unittest import mock

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from support import Kit, moments
from ledge_platform import keys, pkcs8
from tuf.api.metadata import Metadata


class Repositories(Kit):
    def test_a_new_repository_is_accepted_and_has_the_promised_form(self):
        self.accepted()
        root = self.repository.load("root").signed
        self.assertEqual((root.roles["root"].threshold, len(root.roles["root"].keyids)), (2, 3))
        self.assertTrue(root.consistent_snapshot)
        targets = self.repository.load("targets").signed
        self.assertEqual(targets.targets, {})
        roles = targets.delegations.roles
        self.assertEqual(list(roles), ["models", "packages", "fleet"])
        self.assertEqual(roles["models"].paths, ["models/*/*/*", "configurations/*/*/*", "runtimes/*/*/*"])
        self.assertEqual(roles["fleet"].paths, ["fleet/*/*"])
        self.assertTrue(roles["models"].terminating and roles["fleet"].terminating)
        self.assertEqual((self.repo / "root.json").read_bytes(), (self.repo / "metadata" / "1.root.json").read_bytes())
        left = (self.repository.load("fleet").signed.expires - moments.now()).total_seconds()
        self.assertAlmostEqual(left, 7 * 86_400, delta=60)

    def test_private_keys_are_for_their_owner_alone_and_offline_keys_are_encrypted(self):
        for path in [*self.online.glob("*.pem"), *self.offline.glob("*.pem")]:
            if not path.name.endswith(".pub.pem"):
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600, path)
                self.assertEqual(b"ENCRYPTED" in path.read_bytes(), path.parent == self.offline, path)

    def test_a_wrong_passphrase_is_told(self):
        os.environ["LEDGE_PLATFORM_PASSPHRASE_MODELS"] = "wrong"
        self.failed("the passphrase does not open", "renew", self.repo, "models", "--keys", self.offline)

    def test_a_passphrase_costs_a_guesser_128_mib_and_a_good_part_of_a_second(self):
        with mock.patch.object(pkcs8, "COST", 2**17):
            self.done("key", "generate", "carla", "--keys", self.folder / "carla")
        content = (self.folder / "carla" / "carla.pem").read_bytes()
        parameters = pkcs8.scrypt_of(content)
        self.assertEqual((parameters.cost, parameters.block_size, parameters.parallelization), (2**17, 8, 1))
        self.assertEqual(len(parameters.salt), 16)
        load_pem_private_key(content, b"open sesame, please")
        with self.assertRaises(ValueError):
            load_pem_private_key(content, b"open sesame, pleasE")

    def test_a_weak_passphrase_is_refused_before_anything_is_written(self):
        weak = {"x": "has 1 characters and needs at least 12", "elevenchars": "has 11 characters",
                "a" * 40: "repeats the same 1 characters", "abababababababab": "repeats the same 2 characters"}
        offline = ("--keys", self.online, "--keys", self.offline)
        for words, reason in weak.items():
            with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE": words}):
                self.failed(reason, "repository", "init", self.folder / "new", "--keys", self.folder / "a")
                self.failed(reason, "key", "generate", "carla", "--keys", self.folder / "a")
            with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE_MODELS_2": words}):
                self.failed(reason, "key", "rotate", self.repo, "models", *offline)
            with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_NEW_PASSPHRASE": words}):
                self.failed(reason, "key", "passphrase", "models", "--keys", self.offline)
        # The weak one is not the first that `init` asks for.
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE_MODELS": "x"}):
            self.failed("has 1 characters", "repository", "init", self.folder / "new", "--keys", self.folder / "a")
        self.assertFalse((self.folder / "a").exists() or (self.folder / "new").exists())
        self.done("renew", self.repo, "models", *offline)

    def make_old(self, name):
        """An offline key as earlier versions wrote it: PBKDF2 with 2,048 rounds, under a passphrase of one character."""
        path = self.offline / f"{name}.pem"
        private = keys.load_private(path, name)
        path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
        return path

    def test_a_key_file_of_an_earlier_version_still_signs_and_is_named_until_it_is_encrypted_again(self):
        path = self.make_old("models")
        os.environ["LEDGE_PLATFORM_PASSPHRASE_MODELS"] = "x"
        self.done("renew", self.repo, "models", "--keys", self.offline, "--keys", self.online)
        self.accepted()
        listed = self.done("key", "list", self.repo, "--keys", self.offline)
        self.assertEqual(listed.count("weakly encrypted: ledge-platform key passphrase models"), 1, listed)
        with mock.patch("sys.stdin", io.StringIO()):  # nobody sits there
            self.failed("the key models is under a passphrase: set LEDGE_PLATFORM_NEW_PASSPHRASE_MODELS",
                        "key", "passphrase", "models", "--keys", self.offline)
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_NEW_PASSPHRASE": "correct horse battery"}):
            self.done("key", "passphrase", "models", "--keys", self.offline)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertNotIn("weakly", self.done("key", "list", self.repo, "--keys", self.offline))
        self.failed("the passphrase does not open", "renew", self.repo, "models", "--keys", self.offline)
        os.environ["LEDGE_PLATFORM_PASSPHRASE_MODELS"] = "correct horse battery"
        self.done("renew", self.repo, "models", "--keys", self.offline, "--keys", self.online)
        self.accepted()

    def test_nothing_is_overwritten(self):
        self.failed("is a repository already", "repository", "init", self.repo, "--keys", self.folder / "other")
        self.failed("a key is never overwritten", "repository", "init", self.folder / "second", "--keys", self.online)

    def test_a_missing_key_is_named_and_nothing_is_written(self):
        before = sorted(self.repo.rglob("*"))
        self.failed(
            "the role fleet needs 1 of its 1 keys",
            "rollout",
            "revoke",
            self.repo,
            "models/wine/1",
            "--keys",
            self.offline,
        )
        self.failed("the role fleet needs", "rollout", "revoke", self.repo, "models/wine/1")
        self.assertEqual([path for path in sorted(self.repo.rglob("*")) if path.name != ".lock"],
                         [path for path in before if path.name != ".lock"])

    def test_what_is_signed_offline_becomes_public_where_the_online_keys_are(self):
        from support import model_folder
        folder = model_folder(self.models)
        text = self.done("model", "add", self.repo, "wine", 1, folder, "--keys", self.offline)
        self.assertIn("not public yet", text)
        self.assertIn("0 releases", self.accepted())
        self.done("refresh", self.repo, "--keys", self.online)
        self.assertIn("1 releases", self.accepted())

    def test_a_refresh_signs_the_time_and_renews_what_expires(self):
        with self.at(3_600):
            self.done("refresh", self.repo, "--keys", self.online)
            moment = moments.text(moments.now())
        timestamp = self.repository.load("timestamp").signed
        self.assertEqual((timestamp.version, timestamp.unrecognized_fields["x-ledge-signed-at"]), (2, moment))
        self.assertEqual(self.repository.load("fleet").signed.version, 1)
        with self.at(4 * 86_400):
            self.done("refresh", self.repo, "--keys", self.online)
        self.assertEqual([self.repository.load(role).signed.version for role in ("fleet", "snapshot")], [2, 2])
        self.accepted()

    def test_a_refresh_says_which_offline_role_expires_soon(self):
        with self.at(340 * 86_400):
            self.assertIn("`ledge-platform renew models`", self.done("refresh", self.repo, "--keys", self.online))
            for role in ("root", "targets", "models", "packages"):
                self.done("renew", self.repo, role, "--keys", self.online, "--keys", self.offline)
            self.assertNotIn("renew", self.done("refresh", self.repo, "--keys", self.online))
        self.accepted()

    def test_every_key_can_be_rotated_and_clients_follow_from_the_first_root(self):
        self.add(1)
        self.start()
        for key in ("fleet", "models", "snapshot", "timestamp", "targets", "root2"):
            role = key.rstrip("2")
            before = set(self.repository.delegation(role)[1].keyids)
            self.done("key", "rotate", self.repo, key, "--keys", self.online, "--keys", self.offline)
            after = set(self.repository.delegation(role)[1].keyids)
            self.assertEqual((len(before - after), len(after - before)), (1, 1), key)
            self.assertIn("r-1", self.accepted())
        self.assertTrue((self.offline / "root2-2.pem").exists() and (self.online / "fleet-2.pem").exists())
        self.steer("pause", "--id", "r-1")
        self.accepted()

    def test_a_replaced_key_signs_nothing_any_more(self):
        self.done("key", "rotate", self.repo, "fleet", "--keys", self.online, "--keys", self.offline)
        for half in ("fleet-2.pem", "fleet-2.pub.pem"):
            (self.online / half).rename(self.folder / half)
        self.failed("the role fleet needs", "rollout", "revoke", self.repo, "models/wine/1", "--keys", self.online)

    def test_root_holders_sign_one_after_another(self):
        holders = [self.folder / f"holder{number}" for number in (1, 2)]
        for number, holder in enumerate(holders, 1):
            holder.mkdir()
            for half in (f"root{number}.pem", f"root{number}.pub.pem"):
                (self.offline / half).rename(holder / half)
        third = self.folder / "third"
        self.done("key", "generate", "carla", "--keys", third)
        status, text = self.run_verb(
            "key",
            "rotate",
            self.repo,
            "root3",
            "--keys",
            self.online,
            "--keys",
            self.offline,
            "--keys",
            holders[0],
            "--public",
            third / "carla.pub.pem",
        )
        # Two of the old three signed, and of the new three only root1.
        self.assertEqual((status, self.repository.newest("root")), (1, 1), text)
        self.assertIn(
            "root 2 is complete", self.done("root", "sign", self.repo, "--yes", "--keys", holders[1], "--keys", self.online)
        )
        status, text = self.run_verb(
            "key", "rotate", self.repo, "timestamp", "--keys", self.online, "--keys", holders[0]
        )
        self.assertEqual((status, self.repository.newest("root")), (1, 2), text)
        self.assertIn("it needs 1 more signature", text)
        self.accepted()  # clients see the old root until the new one is whole
        status, text = self.run_verb("root", "sign", self.repo, "--yes", "--keys", holders[0], "--keys", self.online)
        self.assertEqual(status, 1, text)
        self.assertIn(
            "root 3 is complete", self.done("root", "sign", self.repo, "--yes", "--keys", holders[1], "--keys", self.online)
        )
        self.accepted()
        self.failed("no root waits", "root", "sign", self.repo, "--yes", "--keys", holders[1])

    def test_the_list_of_keys_says_where_each_is(self):
        lines = self.done("key", "list", self.repo, "--keys", self.online).splitlines()
        self.assertEqual(len(lines), 10)
        self.assertEqual(sum("not in --keys" in line for line in lines), 6)
        os.chmod(self.online / "fleet.pem", 0o644)
        self.assertIn("readable by others", self.done("key", "list", self.repo, "--keys", self.online))

    def test_tampering_is_refused(self):
        self.add(1)
        place = self.repository.place(self.targets()["models/wine/1/model.onnx"])
        place.write_bytes(b"weighty 1")
        self.failed("a box would not take it", "verify", self.repo, status=1)
        place.write_bytes(b"weights 1")
        self.accepted()
        path = self.repo / "metadata" / "2.models.json"
        path.write_bytes(path.read_bytes().replace(b'"length": 9', b'"length": 8'))
        self.failed("a box would not take it", "verify", self.repo, status=1)

    def test_an_expired_timestamp_is_refused(self):
        with self.at(-3 * 86_400):
            self.done("refresh", self.repo, "--keys", self.online)
        self.failed("a box would not take it", "verify", self.repo, status=1)

    def test_lifetimes_are_kept_from_version_to_version(self):
        repo = self.folder / "short"
        self.done(
            "repository",
            "init",
            repo,
            "--keys",
            self.folder / "keys",
            "--expires",
            "timestamp=3h",
            "--expires",
            "fleet=1d",
            "--encrypt",
            "none",
        )
        self.done("refresh", repo, "--keys", self.folder / "keys")
        left = (
            Metadata.from_file(str(repo / "metadata" / "timestamp.json")).signed.expires - moments.now()
        ).total_seconds()
        self.assertAlmostEqual(left, 3 * 3_600, delta=60)

    def test_old_versions_are_cleared_away_but_for_roots(self):
        for _ in range(25):
            self.steer("revoke", "models/other/1")
        versions = sorted(int(path.name.split(".")[0]) for path in (self.repo / "metadata").glob("*.fleet.json"))
        self.assertEqual(versions, list(range(7, 27)))
        self.accepted()

    def test_metadata_says_how_long_and_what_hash_each_file_has(self):
        snapshot = json.loads((self.repo / "metadata" / "1.snapshot.json").read_text())["signed"]["meta"]
        self.assertEqual(sorted(snapshot), ["fleet.json", "models.json", "packages.json", "targets.json"])
        self.assertTrue(all({"version", "length", "hashes"} == set(entry) for entry in snapshot.values()))


if __name__ == "__main__":
    unittest.main()
