"""Roles of which several keys sign, in the hands of several people: one of them alone changes nothing."""
import json
import shutil
import unittest
from random import Random
from unittest import mock

from packages import deb
from support import Kit, model_folder

from ledge_platform import signing, staged
from ledge_platform.errors import Failure
from tuf.api.metadata import Metadata
from tuf.api.serialization.json import JSONSerializer


class Holders(Kit):
    """Two of three keys sign each offline role, and each key is in a folder of its own."""

    thresholds = ("targets=2/3", "models=2/3", "packages=2/3")

    def setUp(self):
        super().setUp()
        for path in sorted(self.offline.glob("*.pem")):
            name = path.name.split(".")[0]
            (self.folder / name).mkdir(exist_ok=True)
            path.rename(self.folder / name / path.name)

    def keys(self, *holders):
        return [word for holder in holders for word in ("--keys", self.folder / holder)]

    def waits(self, *words):
        """Runs a verb that leaves a version for others to sign, and returns what it says."""
        status, text = self.run_verb(*words)
        self.assertEqual(status, 1, text)
        return text

    def stage(self, version=1, holder="models1", *more, name="wine"):
        folder = model_folder(self.models, b"weights %d" % version, version)
        return self.waits("model", "add", self.repo, name, version, folder, *self.keys(holder), *more)

    def sign(self, role, *holders, public=True):
        online = self.keys("online") if public else []
        return self.done("sign", self.repo, role, "--yes", *self.keys(*holders), *online)

    def add(self, version=1, *_):
        self.stage(version)
        self.sign("models", "models2")

    def staged(self, role="models", version=2):
        return self.repo / "staged" / f"{version}.{role}.json"

    def public(self):
        """All that a server of the folder shows."""
        folders = [self.repo / "metadata", self.repo / "targets"]
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


class Signing(Holders):
    def test_a_model_is_public_once_two_of_three_holders_signed_it(self):
        before = self.public()
        text = self.stage()
        self.assertIn("models 2 waits in", text)
        self.assertIn("it needs 1 more signature, of ", text)
        self.assertEqual(self.public(), before)
        self.assertIn("models 2 is signed by models1 and waits", self.done("key", "list", self.repo, *self.keys("models1")))
        self.done("refresh", self.repo, *self.keys("online"))
        self.assertIn("0 releases", self.accepted())
        text = self.sign("models", "models3")
        self.assertIn("models 2 is complete", text)
        self.assertIn("1 releases", self.accepted())
        self.start()
        self.assertIn("r-1", self.accepted())
        self.assertFalse(list((self.repo / "staged").rglob("*.json")))
        self.assertFalse((self.repo / "staged" / "targets").exists())

    def test_each_verb_of_one_holder_waits_and_shows_the_second_what_it_changes(self):
        settings, libraries = self.folder / "night.toml", self.folder / "libraries"
        settings.write_text("[serving]\nmax_queue_size = 7\n")
        libraries.mkdir()
        (libraries / "libonnxruntime.so").write_bytes(b"library")
        debs = [deb(self.folder, version, "ledge-slim") for version in ("0.1.0-1", "0.2.0-1", "0.3.0-1")]
        model = model_folder(self.models)
        verbs = [
            ("models", "ADDED   models/wine/1/model.onnx: 7 bytes, sha256 ", ("model", "add", self.repo, "wine", 1, model)),
            ("models", "ADDED   configurations/night/1/settings.toml",
             ("configuration", "add", self.repo, "night", 1, settings)),
            ("models", "ADDED   runtimes/onnxruntime/1/libonnxruntime.so",
             ("runtime", "add", self.repo, "onnxruntime", 1, libraries)),
            ("models", "REMOVED models/wine/1/model.onnx: sha256 ", ("model", "remove", self.repo, "wine", 1)),
            ("models", "nothing else changes", ("renew", self.repo, "models")),
            *(("packages", f"ADDED   packages/ledge-slim/{number}/", ("upgrade", "add", self.repo, number, deb))
              for number, deb in enumerate(debs, 1)),
            ("packages", "REMOVED packages/ledge-slim/1/", ("upgrade", "remove", self.repo, "ledge-slim", 1)),
            ("targets", "nothing else changes", ("renew", self.repo, "targets")),
            ("root", "nothing else changes", ("renew", self.repo, "root")),
        ]
        for role, shown, words in verbs:
            stem = {"packages": "programs"}.get(role, role)
            before = self.public()
            self.waits(*words, *self.keys(f"{stem}1", "online"))
            self.assertEqual(self.public(), before, words)
            # The same key once more counts once.
            self.waits("sign", self.repo, role, "--yes", *self.keys(f"{stem}1", "online"))
            # Keys of other roles count for nothing.
            others = [name for name in ("models2", "targets2", "programs2", "root2") if not name.startswith(stem)]
            self.waits("sign", self.repo, role, "--yes", *self.keys(*others, "online"))
            self.assertEqual(self.public(), before, words)
            text = self.sign(role, f"{stem}2")
            self.assertIn(shown, text)
            self.assertIn(" is complete", text)
            self.accepted()
        self.assertIn("4 releases", self.accepted())

    def test_the_second_holder_is_asked_before_signing(self):
        self.stage()
        before = self.staged().read_bytes()
        self.assertIn("nothing is signed: say --yes", self.run_verb("sign", self.repo, "models", *self.keys("models2"))[1])
        terminal = mock.patch("sys.stdin.isatty", return_value=True)
        for answer, status in (("", 1), ("n", 1), ("y", 0)):
            with terminal, mock.patch("builtins.input", return_value=answer) as asked:
                self.assertEqual(self.run_verb("sign", self.repo, "models", *self.keys("models2"))[0], status)
            self.assertEqual(asked.call_args.args, ("Sign models 2 with models2? [y/N] ",))
            self.assertEqual(self.staged().exists() and self.staged().read_bytes(), status and before)

    def test_a_wrong_passphrase_of_the_second_holder_changes_nothing(self):
        self.stage()
        before = self.staged().read_bytes()
        with mock.patch.dict("os.environ", {"LEDGE_PLATFORM_PASSPHRASE_MODELS2": "wrong"}):
            status, text = self.run_verb("sign", self.repo, "models", "--yes", *self.keys("models2"))
        self.assertEqual(status, 2)
        self.assertIn("the passphrase does not open", text)
        self.assertEqual(self.staged().read_bytes(), before)

    def test_a_holder_adds_to_what_waits_only_after_signing_it(self):
        self.stage(1)
        self.stage(2)  # by the same holder: both are in the version that waits
        self.failed("was made by others and waits for signatures", "model", "add", self.repo, "beer", 1,
                    model_folder(self.models), *self.keys("models2"))
        self.failed("models/wine/1 waits for signatures", "rollout", "start", self.repo, "--id", "r-1", "--target",
                    "models/wine/1", *self.keys("online"))
        self.failed("models/wine/1 is in this repository already", "model", "add", self.repo, "wine", 1,
                    model_folder(self.models), *self.keys("models1"))
        self.sign("models", "models2")
        self.assertIn("2 releases", self.accepted())

    def test_what_waits_can_be_dropped_with_its_files(self):
        self.stage()
        self.assertTrue(list((self.repo / "staged" / "targets").rglob("*.model.onnx")))
        self.assertIn("dropped", self.done("sign", self.repo, "models", "--discard"))
        self.assertFalse([path for path in (self.repo / "staged").rglob("*") if path.is_file()])
        self.failed("no models waits", "sign", self.repo, "models", *self.keys("models2"))
        self.failed("no version of models waits", "sign", self.repo, "models", "--discard")

    def test_a_version_that_cannot_be_read_is_named_and_can_be_dropped(self):
        self.stage()
        self.staged().write_bytes(b"{")
        for words in (("model", "remove", self.repo, "wine", 1, *self.keys("models1")),
                      ("renew", self.repo, "models", *self.keys("models1", "models2"))):
            self.failed("models --discard` drops it", *words)
        self.assertIn("--discard` drops it", self.done("refresh", self.repo, *self.keys("online")))
        self.done("sign", self.repo, "models", "--discard")
        self.stage()
        with self.at(366 * 86_400):
            self.failed("it expired on", "renew", self.repo, "models", *self.keys("models1"))

    def test_a_rollout_that_began_meanwhile_keeps_its_release(self):
        self.add(1)
        self.waits("model", "remove", self.repo, "wine", 1, *self.keys("models1"))
        self.start()
        status, text = self.run_verb("sign", self.repo, "models", "--yes", *self.keys("models2", "online"))
        self.assertEqual(status, 2)
        self.assertIn("rollout r-1 of fleet default names models/wine/1: stop it first", text)
        self.assertIn("r-1", self.accepted())
        self.steer("stop", "--id", "r-1")
        place = self.repository.place(self.targets()["models/wine/1/model.onnx"])
        self.sign("models", "models2")
        self.assertFalse(place.exists())
        self.accepted()

    def test_a_run_that_was_killed_at_any_write_leaves_the_repository_as_it_was(self):
        before = self.public()
        stage = ("model", "add", self.repo, "wine", 1, model_folder(self.models), *self.keys("models1"))

        def nothing_changed():
            self.assertEqual(self.public(), before)
            self.accepted()

        writes, status, text = self.killed_at_each_write(lambda: stage, nothing_changed)
        self.assertEqual((writes, status), (2, 1), text)
        sign = ("sign", self.repo, "models", "--yes", *self.keys("models2", "online"))

        def accepted_and_finished():
            self.accepted()
            self.done("refresh", self.repo, *self.keys("online"))
            self.accepted()
            status, text = self.run_verb(*sign)
            self.assertIn(status, (0, 2), text)  # 2: it is in place, and nothing waits
            self.done("refresh", self.repo, *self.keys("online"))
            self.assertIn("1 releases", self.accepted())

        writes, status, text = self.killed_at_each_write(lambda: sign, accepted_and_finished)
        self.assertEqual((writes, status), (3, 0), text)
        self.assertIn("1 releases", self.accepted())

    def test_what_waits_is_published_nowhere(self):
        self.stage()
        self.done("publish", self.repo, self.folder / "served")
        self.assertFalse(list((self.folder / "served").rglob("*.onnx")))
        self.assertFalse((self.folder / "served" / "staged").exists())


class Hostile(Holders):
    """What a thief with one key, or with the stick, puts in the way of the second holder."""

    def thief(self, change, name="models1", role="models", version=2):
        """Signs a changed version with one stolen key, in the form of the verbs."""
        from ledge_platform import keys
        metadata = Metadata.from_file(str(self.staged(role, version)))
        change(metadata)
        ring = keys.KeyRing([self.folder / name])
        metadata.signatures.clear()
        for keyid in ring.found:
            metadata.sign(ring.signer(keyid), append=True)
        self.staged(role, version).write_bytes(metadata.to_bytes(JSONSerializer(compact=False)))

    def refused(self, says, role="models", holder="models2"):
        before = self.public()
        status, text = self.run_verb("sign", self.repo, role, "--yes", *self.keys(holder, "online"))
        self.assertIn(says, text)
        self.assertEqual(status, 2, text)
        self.assertNotIn("\x1b", text)
        self.assertEqual(self.public(), before)
        self.done("sign", self.repo, role, "--discard")

    def test_a_stolen_key_that_signs_as_before_changes_nothing_for_boxes(self):
        # The thief writes the next version where the server shows it, and signs snapshot and timestamp with stolen keys.
        self.stage()
        shutil.copy(self.staged(), self.repo / "metadata" / "2.models.json")
        shutil.copytree(self.repo / "staged" / "targets", self.repo / "targets", dirs_exist_ok=True)
        self.done("refresh", self.repo, *self.keys("online"))
        self.assertIn("0 releases", self.accepted())
        with mock.patch("ledge_platform.repository.Repository.is_signed", return_value=True):
            self.done("refresh", self.repo, *self.keys("online"))
        self.failed("a box would not take it", "verify", self.repo, status=1)

    def test_a_changed_file_loses_its_signatures(self):
        self.stage()
        path = self.staged()
        path.write_bytes(path.read_bytes().replace(b'"length": 9', b'"length": 8'))
        text = self.waits("sign", self.repo, "models", "--yes", *self.keys("models2"))
        self.assertIn("ignored: a signature of", text)
        self.assertIn("8 bytes", text)

    def test_what_is_not_in_the_form_of_the_verbs_is_not_signed(self):
        changes = {
            "it is not in the form": lambda content: content.replace(b'"signed": {', b'"signed": {"version": 2,'),
            "no metadata": lambda content: content[:-20],
            "nothing": lambda content: b"[" * 100_000,
        }
        for says, change in changes.items():
            self.stage()
            self.staged().write_bytes(change(self.staged().read_bytes()))
            self.refused(says if says != "nothing" else "no metadata")

    def test_what_boxes_would_not_take_or_nobody_sees_is_not_signed(self):
        model = "models/wine/1/model.onnx"

        def hash_of(metadata, value):
            metadata.signed.targets[model].hashes["sha256"] = value

        def moved(metadata, path):
            metadata.signed.targets[path] = metadata.signed.targets.pop(model)

        changes = {
            "has the field x-more": lambda metadata: metadata.signed.unrecognized_fields.update({"x-more": 1}),
            "has the field more": lambda metadata: metadata.signed.targets[model].unrecognized_fields.update({"more": 1}),
            "a description that boxes": lambda metadata: metadata.signed.targets[model].unrecognized_fields.update({"custom": 1}),
            "not exactly a SHA-256": lambda metadata: hash_of(metadata, "../../../../etc/passwd"),
            "is not a path that models signs": lambda metadata: moved(metadata, "packages/ledge/9/ledge.deb"),
            "\\x1b[2J": lambda metadata: moved(metadata, "models/wine/1/\x1b[2J"),
            "it is version 3 of models, and the next one is 2": lambda metadata: setattr(metadata.signed, "version", 3),
            "it is version 1 of models, and 1 is signed already": lambda metadata: setattr(metadata.signed, "version", 1),
            "it would be valid until": lambda metadata: setattr(
                metadata.signed, "expires", metadata.signed.expires.replace(year=2090)),
            "it expired on": lambda metadata: setattr(metadata.signed, "expires", metadata.signed.expires.replace(year=2020)),
            "is not from 1 s to ten years": lambda metadata: metadata.signed.unrecognized_fields.update({"x-ledge-lifetime-s": "1"}),
        }
        for says, change in changes.items():
            with self.subTest(says):
                self.stage()
                self.thief(change)
                self.refused(says)

    def test_a_file_with_any_byte_changed_is_refused_or_shown_as_it_is(self):
        self.stage()
        self.waits("renew", self.repo, "targets", *self.keys("targets1"))
        self.waits("renew", self.repo, "root", *self.keys("root1"))
        random = Random(7)
        for role in ("models", "targets", "root"):
            content, taken = self.staged(role).read_bytes(), 0
            for _ in range(400):
                changed = bytearray(content)
                place = random.randrange(len(changed))
                changed[place:place + random.randrange(3)] = random.choice((b"", b"0", b'"', b"{", b"\\", b"\xff", b"9" * 30))
                try:
                    metadata = staged.checked(self.repository, role, bytes(changed), "it")
                except Failure:
                    continue
                taken += 1
                self.assertEqual(metadata.to_bytes(JSONSerializer(compact=False)), changed)
                self.assertTrue(list(staged.difference(self.repository, role, metadata, self.folder)))
            self.assertGreater(taken, 0)

    def test_metadata_of_another_role_is_not_signed(self):
        self.waits("renew", self.repo, "targets", *self.keys("targets1"))
        self.staged("targets").rename(self.staged())
        self.refused("the role models delegates to nobody")
        self.waits("renew", self.repo, "root", *self.keys("root1"))
        self.staged("root").rename(self.staged())
        self.refused("it is metadata of the kind root, and not of models")

    def test_a_version_that_was_made_for_an_older_state_is_not_signed(self):
        self.stage(1)
        stick = self.folder / "stick.json"
        shutil.copy(self.staged(), stick)
        self.sign("models", "models2")
        words = ("sign", self.repo, "models", "--yes", "--staged", stick, *self.keys("models3"))
        self.failed("it is version 2 of models, and 2 is signed already", *words)

    def test_files_that_are_not_those_that_were_signed_stay_out(self):
        self.stage()
        path, = (self.repo / "staged" / "targets").rglob("*.model.onnx")
        path.write_bytes(b"weighty 1")
        before = self.public()
        status, text = self.run_verb("sign", self.repo, "models", "--yes", *self.keys("models2", "online"))
        self.assertEqual(status, 2, text)
        self.assertIn("is not what was signed as models/wine/1/model.onnx", text)
        self.assertFalse((self.repo / "metadata" / "2.models.json").exists())
        self.assertEqual({path: content for path, content in self.public().items() if path in before}, before)

    def test_one_key_of_targets_lowers_no_threshold(self):
        self.waits("key", "threshold", self.repo, "models", "1/3", *self.keys("targets1", "online"))
        text = self.run_verb("sign", self.repo, "targets", *self.keys("targets2"))[1]
        self.assertIn("CHANGED models is signed by 1 of 3 keys (before: 2 of 3)", text)
        # What waits counts for nothing.
        self.stage()
        self.waits("sign", self.repo, "models", "--yes", *self.keys("models1", "online"))
        self.assertIn("0 releases", self.accepted())

    def test_a_key_in_two_forms_or_under_another_id_is_not_signed(self):
        self.waits("renew", self.repo, "targets", *self.keys("targets1"))

        def twice(metadata):
            delegations = metadata.signed.delegations
            first = delegations.keys[delegations.roles["models"].keyids[0]]
            value = json.loads(json.dumps(first.to_dict()))
            value["keyval"]["public"] = value["keyval"]["public"].upper()
            copy = type(first).from_dict("00" * 32, value)
            delegations.keys[copy.keyid] = copy
            delegations.roles["models"].keyids.append(copy.keyid)

        self.thief(twice, "targets1", "targets")
        self.refused("the key 0000000000000000 is not what its id says", "targets", "targets2")

    def test_other_paths_and_impossible_thresholds_are_not_signed(self):
        changes = {
            "it lets the role models sign other paths": lambda roles: roles["models"].paths.append("packages/*/*/*"),
            "4 of 3 keys cannot sign models": lambda roles: setattr(roles["models"], "threshold", 4),
        }
        for says, change in changes.items():
            self.waits("renew", self.repo, "targets", *self.keys("targets1"))
            self.thief(lambda metadata: change(metadata.signed.delegations.roles), "targets1", "targets")
            self.refused(says, "targets", "targets2")


class InDifferentPlaces(Holders):
    """The second holder has a copy of the metadata, and the first one's stick."""

    def setUp(self):
        super().setUp()
        self.far, self.stick = self.folder / "far", self.folder / "stick"

    def bring(self, version=2):
        shutil.copytree(self.repo / "staged", self.stick, dirs_exist_ok=True)
        return self.stick / f"{version}.models.json"

    def test_a_stick_brings_a_version_there_and_its_signature_back(self):
        self.add(1)
        shutil.copytree(self.repo, self.far, ignore=shutil.ignore_patterns("targets"))
        self.stage(2)
        file = self.bring(3)
        text = self.waits("sign", self.far, "models", "--yes", "--staged", file, *self.keys("models3"))
        self.assertIn("ADDED   models/wine/2/model.onnx", text)
        self.assertNotIn("its file is not here", text)
        self.assertIn("it has its signatures, and models/wine/1/", text)
        text = self.done("sign", self.repo, "models", "--yes", "--staged", file, *self.keys("online"))
        self.assertIn("models 3 is complete", text)
        self.assertIn("2 releases", self.accepted())

    def test_the_files_come_along_and_are_checked(self):
        self.stage()
        file = self.bring()
        self.done("sign", self.repo, "models", "--discard")
        path, = self.stick.rglob("*.model.onnx")
        path.write_bytes(b"weighty 1")
        words = ("sign", self.repo, "models", "--yes", "--staged", file, *self.keys("models2", "online"))
        status, text = self.run_verb(*words)
        self.assertEqual(status, 2)
        self.assertIn("is not what was signed", text)
        path.write_bytes(b"weights 1")
        self.done(*words)
        self.assertIn("1 releases", self.accepted())

    def test_of_two_versions_made_at_once_the_second_is_refused(self):
        self.stage(1)
        file = self.bring()
        self.done("sign", self.repo, "models", "--discard")
        self.stage(2, "models2")
        words = ("sign", self.repo, "models", "--yes", "--staged", file, *self.keys("models3", "online"))
        self.failed("somebody made it at the same time", *words)
        self.done("sign", self.repo, "models", "--discard")
        self.done(*words)
        self.assertIn("1 releases", self.accepted())

    def test_a_version_that_nobody_signed_is_not_taken(self):
        self.stage()
        file = self.bring()
        self.done("sign", self.repo, "models", "--discard")
        file.write_bytes(file.read_bytes().replace(b'"length": 9', b'"length": 8'))
        status, text = self.run_verb("sign", self.repo, "models", "--staged", file, *self.keys("online"))
        self.assertEqual(status, 2, text)
        self.assertIn("nobody signed this yet", text)
        self.assertFalse(self.staged().exists())

    def test_a_file_that_changes_while_it_is_shown_is_not_signed(self):
        self.stage()
        file = self.bring()
        real = signing.Proposal.signers

        def change(proposal, ring):
            file.write_bytes(file.read_bytes() + b"\n")
            return real(proposal, ring)

        with mock.patch("ledge_platform.signing.Proposal.signers", change):
            status, text = self.run_verb("sign", self.repo, "models", "--yes", "--staged", file, *self.keys("models2"))
        self.assertEqual(status, 2)
        self.assertIn("has changed since it was shown", text)


class Keys(Holders):
    def test_one_of_three_keys_is_replaced_and_the_others_go_on(self):
        self.add(1)
        self.waits("key", "rotate", self.repo, "models3", "--new-keys", self.folder / "models4",
                   *self.keys("targets1", "models3", "online"))
        self.sign("targets", "targets2")
        self.assertIn("targets 2", self.accepted())
        self.failed("the role models needs 2 of its 3 keys, and 0 are", "renew", self.repo, "models", *self.keys("models3"))
        self.stage(2, "models1")
        self.sign("models", "models4")
        self.assertIn("2 releases", self.accepted())

    def test_a_lost_key_that_had_signed_is_replaced_without_it(self):
        self.add(1)
        lost, = self.ring("models2").found
        shutil.rmtree(self.folder / "models2")
        self.done("key", "generate", "carla", "--keys", self.folder / "carla")
        self.waits("key", "rotate", self.repo, lost[:8], "--public", self.folder / "carla" / "carla.pub.pem",
                   *self.keys("targets3", "online"))
        # The new key signs nothing before it is one of the role.
        self.failed("the role models needs 2 of its 3 keys, and 0 are", "renew", self.repo, "models", *self.keys("carla"))
        text = self.waits("sign", self.repo, "targets", "--yes", *self.keys("targets2", "online"))
        self.assertIn("models must be signed by 2 of its new keys", text)
        self.assertIn("targets 1, models 2", self.accepted())
        self.waits("renew", self.repo, "models", *self.keys("models3", "online"))
        self.sign("models", "carla")
        self.assertIn("targets 2, models 3", self.accepted())
        self.stage(2, "models1")
        self.sign("models", "carla")
        self.assertIn("2 releases", self.accepted())

    def ring(self, name):
        from ledge_platform import keys
        return keys.KeyRing([self.folder / name])

    def test_a_key_is_one_of_a_role_once(self):
        file = self.folder / "models1" / "models1.pub.pem"
        for words in (("key", "threshold", self.repo, "models", "2/4", "--public", file),
                      ("key", "rotate", self.repo, "models2", "--public", file)):
            self.failed("is one of models already", *words, *self.keys("targets1", "models2"))
        self.done("key", "generate", "carla", "--keys", self.folder / "carla")
        carla = self.folder / "carla" / "carla.pub.pem"
        self.failed("is one of models already", "key", "threshold", self.repo, "models", "2/5", "--public", carla,
                    "--public", carla, *self.keys("targets1"))
        self.failed("take 1 out with --remove KEY", "key", "threshold", self.repo, "models", "2/2", *self.keys("targets1"))
        for wrong in ("0/3", "4/3", "2/10", "2", "two/3"):
            self.failed("write M/N", "key", "threshold", self.repo, "models", wrong, *self.keys("targets1"))
        self.assertFalse(self.staged("targets").exists())

    def test_a_key_is_removed(self):
        self.waits("key", "threshold", self.repo, "packages", "2/2", "--remove", "programs2",
                   *self.keys("targets1", "programs2", "online"))
        self.sign("targets", "targets3", "programs1", "programs3")
        self.accepted()
        accepted = self.repository.delegation("packages")[1]
        self.assertEqual((accepted.threshold, len(accepted.keyids)), (2, 2))

    def test_a_change_of_keys_that_was_killed_at_any_write_is_finished_by_the_next_run(self):
        self.add(1)
        words = ("key", "threshold", self.repo, "models", "1/3", *self.keys("targets1", "targets2", "online"))
        writes, status, text = self.killed_at_each_write(lambda: words, self.accepted)
        self.assertEqual(status, 0, text)
        self.assertGreaterEqual(writes, 3)
        self.assertEqual(self.repository.delegation("models")[1].threshold, 1)
        self.accepted()


class FromOneKey(Kit):
    """A repository whose roles have one key each, as earlier versions made it, gets more."""

    def setUp(self):
        super().setUp()
        self.add(1)
        self.start()

    def all_keys(self, *folders):
        return [word for folder in (self.online, self.offline, *folders) for word in ("--keys", folder)]

    def test_a_role_gets_three_keys_of_which_two_sign(self):
        carla = self.folder / "carla"
        self.done("key", "generate", "carla", "--keys", carla)
        for role in ("targets", "packages", "models"):
            public = ["--public", carla / "carla.pub.pem"] if role == "models" else []
            text = self.done("key", "threshold", self.repo, role, "2/3", *public, *self.all_keys())
            self.assertIn(f"{role}: 2 of 3 keys sign it, added ", text)
            accepted = self.repository.delegation(role)[1]
            self.assertEqual((accepted.threshold, len(accepted.keyids)), (2, 3))
            self.assertIn("r-1", self.accepted())
        self.assertTrue((self.offline / "models2.pem").exists() and (self.offline / "programs3.pem").exists())
        self.assertRegex(self.done("key", "list", self.repo, "--keys", carla), r"models +offline +2 of 3 +carla ")

    def test_boxes_see_the_keys_of_before_until_the_new_ones_have_signed(self):
        carla, targets = self.folder / "carla", self.folder / "targets"
        targets.mkdir()
        for half in ("targets.pem", "targets.pub.pem"):
            (self.offline / half).rename(targets / half)
        self.done("key", "generate", "carla", "--keys", carla)
        status, text = self.run_verb(
            "key", "threshold", self.repo, "models", "2/2", "--public", carla / "carla.pub.pem",
            "--keys", targets, "--keys", self.online)
        self.assertEqual(status, 1, text)
        self.assertIn("models must be signed by 2 of its new keys before this is public", text)
        self.assertIn("targets 1", self.accepted())
        text = self.done("refresh", self.repo, "--keys", self.online)
        self.assertIn("models 2 is not public, because too few of its present keys signed it", text)
        # Meanwhile a rollout is paused as ever.
        self.steer("pause", "--id", "r-1")
        self.assertIn("r-1 (paused)", self.accepted())
        self.done("publish", self.repo, self.folder / "served")
        self.assertEqual(self.run_verb("renew", self.repo, "models", "--keys", self.offline, "--keys", self.online)[0], 1)
        self.assertIn("targets 1", self.accepted())
        self.done("sign", self.repo, "models", "--yes", "--keys", carla, "--keys", self.online)
        self.assertIn("targets 2, models 3", self.accepted())

    def test_a_root_with_new_keys_of_targets_waits_for_their_signatures(self):
        holders = [self.folder / name for name in ("anna", "ben")]
        for holder in holders:
            self.done("key", "generate", holder.name, "--keys", holder)
        public = [word for holder in holders for word in ("--public", holder / f"{holder.name}.pub.pem")]
        away = self.folder / "away"
        away.mkdir()
        for half in ("targets.pem", "targets.pub.pem"):
            (self.offline / half).rename(away / half)
        status, text = self.run_verb("key", "threshold", self.repo, "targets", "2/3", *public, *self.all_keys())
        self.assertEqual(status, 1, text)
        self.assertIn("`targets` must be signed by its new keys first", text)
        self.assertEqual(self.repository.newest("root"), 1)
        self.assertIn("r-1", self.accepted())
        status, text = self.run_verb("renew", self.repo, "targets", "--keys", holders[0], "--keys", self.online)
        self.assertEqual((status, self.repository.newest("root")), (1, 1), text)
        self.assertIn("r-1", self.accepted())
        sign = ("sign", self.repo, "targets", "--yes", "--keys", holders[1], "--keys", self.online)

        def accepted_and_finished():
            # A root is public at once. Until the next timestamp, boxes refuse what is there, and go on as they are.
            if self.repository.newest("root") == 1:
                self.accepted()
            text = self.done("refresh", self.repo, "--keys", self.online)
            self.accepted()
            role = "root" if "root 2 is signed by" in text and "finishes" in text else "targets"
            status, text = self.run_verb("sign", self.repo, role, *sign[3:])
            self.assertIn(status, (0, 2), text)  # 2: both are in place
            self.done("refresh", self.repo, "--keys", self.online)
            self.assertIn("root 2, targets 2", self.accepted())

        writes, status, text = self.killed_at_each_write(lambda: sign, accepted_and_finished)
        self.assertEqual(status, 0, text)
        self.assertGreaterEqual(writes, 4)
        self.assertEqual((self.repository.newest("root"), self.repository.newest("targets")), (2, 2))
        self.assertIn("r-1", self.accepted())
        # A stolen old key signs nothing alone.
        self.assertEqual(self.run_verb("renew", self.repo, "targets", "--keys", away, "--keys", self.online)[0], 1)
        self.accepted()


if __name__ == "__main__":
    unittest.main()
