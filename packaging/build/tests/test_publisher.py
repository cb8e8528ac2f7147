"""The file of the publisher: what is taken, what is refused, and what packages install of it."""
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BUILD))
from failure import Failure  # noqa: E402
from publisher import Publisher  # noqa: E402

OWN = {"maintainer": "Example packages <packages@example.com>", "homepage": "https://example.com/ledge"}
CATALOGUE = {"address": "https://packages.example.com/catalogue", "root_file": "root.json"}


class PublisherFile(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.root = self.folder / "root.json"
        self.root.write_text('{"signed": {"_type": "root"}}')

    def read(self, own=OWN, catalogue=None, more=""):
        lines = [f'{key} = "{value}"' for key, value in own.items()] + [more]
        if catalogue is not None:
            lines += ["[catalogue]", *(f'{key} = "{value}"' for key, value in catalogue.items())]
        file = self.folder / "publisher.toml"
        file.write_text("\n".join(lines))
        return Publisher.read(file)

    def refused(self, says, **file):
        with self.assertRaises(Failure) as caught:
            self.read(**file)
        self.assertIn(says, str(caught.exception))

    def test_it_names_the_maintainer_and_the_home_page(self):
        publisher = self.read(more="# A comment.")
        self.assertEqual((publisher.name, publisher.email), ("Example packages", "packages@example.com"))
        self.assertEqual(publisher.labels(), {
            "vendor": "Example packages", "url": "https://example.com/ledge", "authors": "Example packages <packages@example.com>"})
        self.assertEqual(publisher.files(), {})

    def test_packages_install_the_catalogue_with_its_root(self):
        files = self.read(catalogue=CATALOGUE).files()
        self.assertEqual(tomllib.loads(files["publisher.toml"].decode()), {
            "catalogue": {"address": CATALOGUE["address"], "root_file": "/usr/share/ledge/catalogue-root.json"}})
        self.assertEqual(files["catalogue-root.json"], self.root.read_bytes())

    def test_a_copy_is_as_complete(self):
        publisher = self.read(catalogue=CATALOGUE)
        publisher.copy_to(self.folder / "copy")
        self.assertEqual(Publisher.read(self.folder / "copy" / publisher.file.name).files(), publisher.files())

    def test_what_nobody_filled_in_is_refused(self):
        with self.assertRaises(Failure):
            Publisher.read(BUILD.parent / "publisher.toml.example")
        self.refused("maintainer = '' is not", own={"homepage": OWN["homepage"]})
        self.refused("homepage = '' is not", own={"maintainer": OWN["maintainer"]})

    def test_a_wrong_value_is_refused(self):
        for maintainer in ("Example", "packages@example.com", "Example <nobody@localhost>", "One <a@example.com>, Two <b@example.com>"):
            self.refused("a name and an address", own={**OWN, "maintainer": maintainer})
        for homepage in ("example.com", "ftp://example.com", "https://localhost/", "https://example.com/a b"):
            self.refused("homepage", own={**OWN, "homepage": homepage})
        self.refused("catalogue.address", catalogue={**CATALOGUE, "address": "http://packages.example.com"})
        self.refused("in the folder of this one", catalogue={**CATALOGUE, "root_file": "../root.json"})
        self.refused("no root metadata", catalogue={**CATALOGUE, "root_file": "absent.json"})
        self.refused("catalogue.root_file", catalogue={"address": CATALOGUE["address"]})

    def test_another_role_than_root_is_refused(self):
        self.root.write_text('{"signed": {"_type": "timestamp"}}')
        self.refused("is timestamp metadata", catalogue=CATALOGUE)

    def test_an_unknown_setting_and_other_toml_are_refused(self):
        self.refused("unknown settings: vendor", more='vendor = "Example"')
        self.refused("publisher.toml:3: write it as", more="homepage = '''x'''")


if __name__ == "__main__":
    unittest.main()
