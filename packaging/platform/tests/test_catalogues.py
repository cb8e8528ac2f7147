"""Catalogues: after each signing, python-tuf's own client takes what was written."""
import os
import shutil
import unittest
from pathlib import Path
from unittest import mock

from support import Verbs, model_folder, moments
from ledge_platform import release, verify
from ledge_platform.repository import Repository
from tuf.ngclient import Updater


class Catalogues(Verbs):
    def setUp(self):
        super().setUp()
        self.models, self.folder_of_keys = self.folder / "models", self.folder / "keys"
        self.catalogue = self.folder / "catalogue"
        self.models.mkdir()
        os.rename(model_folder(self.folder / "models"), self.models / "wine")

    def words(self, *more):
        return ("catalogue", self.models, self.catalogue, "--keys", self.folder_of_keys, *more)

    def targets(self):
        return Repository(self.catalogue).load("targets").signed.targets

    def fetched(self, path):
        """The content of a target, as a client gets it that knows only root.json."""
        client = self.folder / "client"
        shutil.rmtree(client, ignore_errors=True)
        (client / "targets").mkdir(parents=True)
        updater = Updater(
            str(client), f"file://{self.catalogue}/metadata/", str(client / "targets"), f"file://{self.catalogue}/targets/",
            fetcher=verify.FolderFetcher(), bootstrap=(self.catalogue / "root.json").read_bytes())
        info = updater.get_targetinfo(path)
        self.assertIsNotNone(info, path)
        return Path(updater.download_target(info)).read_bytes()

    def test_a_client_gets_each_file_of_a_model_as_it_lies_in_its_folder(self):
        text = self.done(*self.words())
        self.assertIn("lists wine", text)
        self.assertIn("root.json", text)
        self.assertEqual(sorted(self.targets()), [
            "wine/1/model.onnx", "wine/README.md", "wine/golden/rows.json", "wine/labels.txt", "wine/model.toml"])
        for path in self.targets():
            self.assertEqual(self.fetched(path), (self.models / path).read_bytes(), path)
        self.assertEqual(release.description_of(self.targets()["wine/model.toml"])["release"], "2.1.0")

    def test_signed_again_it_has_what_the_folder_has_and_nothing_else(self):
        self.done(*self.words())
        os.rename(model_folder(self.folder / "models", b"cats"), self.models / "cats")
        shutil.rmtree(self.models / "wine")
        root = (self.catalogue / "root.json").read_bytes()
        self.done(*self.words())
        self.assertEqual({path.split("/")[0] for path in self.targets()}, {"cats"})
        self.assertEqual(self.fetched("cats/1/model.onnx"), b"cats")
        self.assertFalse((self.catalogue / "targets" / "wine").exists())
        self.assertEqual((self.catalogue / "root.json").read_bytes(), root)

    def test_the_root_is_signed_again_when_half_of_its_time_is_over(self):
        self.done(*self.words("--lifetime", "100d"))
        with self.at(49 * 86_400):
            self.done(*self.words())
        self.assertEqual(Repository(self.catalogue).newest("root"), 1)
        with self.at(51 * 86_400):
            self.done(*self.words())
            root = Repository(self.catalogue).load("root").signed
            self.assertEqual((root.version, round((root.expires - moments.now()).days)), (2, 100))
            self.assertIn(b"weights", self.fetched("wine/1/model.onnx"))

    def test_it_is_signed_with_its_own_keys_only(self):
        self.done(*self.words())
        before = self.targets()
        others = self.folder / "others"
        self.done("catalogue", self.models, self.folder / "other", "--keys", others)
        self.failed("the role targets needs 1 of its 1 keys", *self.words()[:3], "--keys", others)
        self.assertEqual(self.targets(), before)

    def test_keys_under_a_passphrase_open_with_it(self):
        with mock.patch("ledge_platform.pkcs8.COST", 2**4):
            with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE": "open sesame, please"}):
                self.done(*self.words("--encrypt"))
                self.done(*self.words())
            self.assertIn(b"ENCRYPTED", (self.folder_of_keys / "catalogue.pem").read_bytes())

    def test_what_boxes_would_refuse_or_nobody_should_see_is_not_signed(self):
        wine = self.models / "wine"

        def refused(says, path, content=b"x"):
            (wine / path).parent.mkdir(parents=True, exist_ok=True)
            (wine / path).write_bytes(content)
            self.failed(says, *self.words())
            (wine / path).unlink()

        refused("deeper than 3 levels", "1/a/b/c")
        refused("file", "a b")
        refused("private key", "box.key", b"-----BEGIN PRIVATE KEY-----\n")
        shutil.rmtree(wine / "1")
        os.symlink("/etc", wine / "1")
        self.failed("is a link to a folder", *self.words())
        os.unlink(wine / "1")
        (wine / "model.toml").write_text("license = 3\n")
        self.failed("license is no text", *self.words())
        (wine / "model.toml").write_text("license =\n")
        self.failed("model.toml", *self.words())
        (wine / "model.toml").unlink()
        self.failed("has no model.toml", *self.words())
        self.assertFalse((self.catalogue / "targets").exists())


if __name__ == "__main__":
    unittest.main()
