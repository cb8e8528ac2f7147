"""The verbs of `ledge-platform package`: what goes in, the key, and the same files for the same time."""
import filecmp
import os
import re
import shutil
import stat
import time
import unittest
from email.utils import parsedate_to_datetime
from unittest import mock

from packages import DAY, Packages, deb, must, rpm, run
from support import installed
from ledge_platform import files, moments
from ledge_platform.errors import Failure


class Adding(Packages):
    def setUp(self):
        super().setUp()
        self.init()

    def refused(self, says, path):
        self.failed(says, "package", "add", self.repo, path)

    def test_a_package_is_added_once(self):
        both = deb(self.folder), rpm(self.folder)
        self.assertIn("added tiny 1.0-1 (amd64)\nadded tiny 1.0-1 (x86_64)\n", self.add(*both))
        for _ in range(2):
            self.assertEqual(self.add(*both), "tiny 1.0-1 (amd64) is there already\ntiny 1.0-1 (x86_64) is there already\n")
            self.publish()
        names = sorted(path.name for path in self.repo.rglob("*.[dr]*[bm]") if path.is_file())
        self.assertEqual(names, ["tiny-1.0-1.x86_64.rpm", "tiny_1.0-1_amd64.deb"])

    def test_another_file_of_the_same_version_is_refused(self):
        self.add(deb(self.folder), rpm(self.folder))
        others = deb(self.folder, content="other"), rpm(self.folder, content="other")
        for _ in range(2):
            for path in others:
                self.refused("give the package a new version", path)
            self.publish()

    def test_a_lower_version_is_added_with_a_note(self):
        self.add(deb(self.folder, "1:1.10-1"), rpm(self.folder, "1.10-1"))
        self.publish()
        text = self.add(deb(self.folder, "1.9-1"), rpm(self.folder, "1.9-1"))
        self.assertEqual(text.splitlines(), [
            "added tiny 1.9-1 (amd64); clients prefer 1:1.10-1, which stays",
            "added tiny 1.9-1 (x86_64); clients prefer 1.10-1, which stays"])
        self.assertNotIn("prefer", self.add(deb(self.folder, "1:1.11-1"), rpm(self.folder, "1.11-1")))

    def test_what_is_no_package_for_a_box_is_refused(self):
        text = self.folder / "x.deb"
        text.write_text("text")
        self.refused("neither a deb nor an rpm", text)
        self.refused("No such file", self.folder / "absent.deb")
        self.refused("architecture 'riscv64'", deb(self.folder, architecture="riscv64"))
        self.refused("architecture 'noarch'", rpm(self.folder, architecture="noarch"))
        for path in (deb(self.folder, "2.0-1"), rpm(self.folder, "2.0-1")):
            content = path.read_bytes()
            path.write_bytes(content[:-40])
            self.failed(path.name if path.suffix == ".rpm" else "dpkg-deb", "package", "add", self.repo, path)
        self.failed("no package repository", "package", "add", self.folder, text)
        self.failed("there are no packages", "package", "publish", self.repo, "--keys", self.keys)

    def test_a_missing_program_is_named_with_its_package(self):
        self.add(deb(self.folder), rpm(self.folder))
        there = shutil.which
        needed = {"gpg": "gpg", "apt-ftparchive": "apt-utils", "createrepo_c": "createrepo-c", "rpmsign": "rpm"}
        for program, package in needed.items():
            with mock.patch("shutil.which", lambda name, program=program: None if name == program else there(name)):
                self.failed(f"{program} is not installed, and packages need it: Debian and Ubuntu: apt install {package}",
                            "package", "publish", self.repo, "--keys", self.keys)
        self.assertFalse((self.repo / "dists").exists())


class Keys(Packages):
    def test_the_key_is_made_once_and_only_its_owner_reads_it(self):
        self.init("--maintainer", "Somebody <somebody@example.com>")
        private, public = self.keys / "packages.asc", self.keys / "packages.pub.asc"
        self.assertEqual([stat.S_IMODE(path.stat().st_mode) for path in (private, public, self.keys)], [0o600, 0o644, 0o700])
        self.assertIn("Somebody <somebody@example.com>", must("gpg", "--show-keys", self.repo / "ledge.asc"))
        self.failed("is a package repository already", "package", "init", self.repo, "--keys", self.keys)
        before = private.read_bytes()
        self.init(repo=self.folder / "second")
        self.assertEqual(private.read_bytes(), before)
        with self.assertRaises(Failure):
            files.refuse_private_key(private, "a model")
        self.failed("keep the keys elsewhere", "package", "init", self.folder / "third", "--keys", self.folder / "third" / "keys")

    def test_a_key_under_a_passphrase_opens_with_it(self):
        self.enterContext(mock.patch("ledge_platform.pkcs8.COST", 2**4))
        words = "open sesame, please"
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE_PACKAGES": words}):
            self.init("--encrypt")
            self.add(deb(self.folder))
            self.publish()
            new = {"LEDGE_PLATFORM_NEW_PASSPHRASE": "close sesame, please"}
            with mock.patch.dict(os.environ, new):
                self.done("key", "passphrase", "packages", "--keys", self.keys)
            self.failed("the passphrase does not open", "package", "publish", self.repo, "--keys", self.keys)
        self.assertIn(b"ENCRYPTED OPENPGP PRIVATE KEY", (self.keys / "packages.asc").read_bytes())
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE": "close sesame, please"}):
            self.publish()
        weak = {"LEDGE_PLATFORM_PASSPHRASE": "short"}
        with mock.patch.dict(os.environ, weak):
            self.failed("needs at least 12", "package", "init", self.folder / "other", "--keys", self.folder / "x", "--encrypt")

    def test_only_its_own_key_signs(self):
        self.init()
        self.add(deb(self.folder))
        self.init(repo=self.folder / "other", keys=self.folder / "other-keys")
        self.failed("name the folder that has it with --keys",
                    "package", "publish", self.repo, "--keys", self.folder / "other-keys")
        self.failed("--keys, which is not given", "package", "publish", self.repo)

    def test_the_owner_hears_of_a_key_that_expires_soon_or_that_others_read(self):
        self.init("--key-lifetime", "100d")
        self.add(deb(self.folder))
        self.assertEqual(len(self.publish().splitlines()), 1)
        (self.keys / "packages.asc").chmod(0o640)
        with self.at(20 * DAY):
            text = self.publish()
        self.assertIn("expires on", text)
        self.assertIn("packages.asc is readable by others: chmod 600", text)

    def test_the_index_of_apt_expires_with_the_last_key(self):
        self.init("--key-lifetime", "10d")
        self.add(deb(self.folder))
        said = self.publish()
        self.assertIn(moments.text(self.valid_until()), said)
        self.assertLess(self.valid_until(), moments.after(moments.now(), 11 * DAY))
        with self.at(5 * DAY):
            self.done("package", "rotate", self.repo, "--keys", self.keys)
        self.assertLess(moments.after(moments.now(), 14 * DAY), self.valid_until())

    def valid_until(self):
        release = (self.repo / "dists/stable/InRelease").read_text()
        return parsedate_to_datetime(re.search(r"^Valid-Until: (.*) UTC$", release, re.MULTILINE)[1] + " +0000")

    def test_a_rotation_has_two_steps(self):
        self.init()
        self.add(deb(self.folder))
        self.failed("there is no second key yet", "package", "rotate", self.repo, "--keys", self.keys, "--finish")
        self.done("package", "rotate", self.repo, "--keys", self.keys, "--new-keys", self.folder / "new")
        self.assertTrue((self.folder / "new" / "packages-2.asc").exists())
        self.failed("--finish", "package", "rotate", self.repo, "--keys", self.keys)
        self.failed("name the folder that has it", "package", "publish", self.repo, "--keys", self.keys)
        self.done("package", "rotate", self.repo, "--keys", self.folder / "new", "--finish")
        self.done("package", "publish", self.repo, "--keys", self.folder / "new")

    def test_an_expired_key_can_still_be_replaced(self):
        with self.at(-40 * DAY):
            self.init("--key-lifetime", "30d")
            self.add(deb(self.folder), rpm(self.folder))
            self.publish()
        self.failed("package rotate", "package", "publish", self.repo, "--keys", self.keys)
        self.done("package", "rotate", self.repo, "--keys", self.keys)
        self.done("package", "rotate", self.repo, "--keys", self.keys, "--finish")

    def test_nothing_stays_behind(self):
        memory = self.folder / "memory"
        memory.mkdir()
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(memory)}):
            self.publish_tiny()
        self.assertEqual(list(memory.iterdir()), [])
        self.assertFalse((self.repo / ".staged").exists())
        # gpg-agent has been told to end, and does so in its own time.
        deadline = time.monotonic() + 30
        while (left := [words for words in running() if str(memory) in words]) and time.monotonic() < deadline:
            time.sleep(.05)
        self.assertEqual(left, [])


def running():
    """The command lines of all processes."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                yield file.read().decode(errors="replace")
        except OSError:
            pass


class Publishing(Packages):
    def test_the_same_packages_at_the_same_time_are_the_same_files(self):
        self.init()
        other = self.folder / "other"
        self.init(repo=other)
        paths = [make(self.folder, version) for make in (deb, rpm) for version in ("1.0-1", "1.1-1")]
        moment = moments.after(moments.now(), 60)
        self.add(*paths)
        self.add(*reversed(paths), repo=other)
        with mock.patch.dict(os.environ, {"SOURCE_DATE_EPOCH": str(int(moment.timestamp()))}):
            self.publish()
        self.done("package", "publish", other, "--keys", self.keys, "--date", moments.text(moment))
        for part in ("dists", "pool", "rpm"):
            found = [str(path.relative_to(self.repo)) for path in (self.repo / part).rglob("*")
                     if path.is_file() and path.name != "mirrorlist"]
            self.assertGreater(len(found), 1)
            _, differ, missing = filecmp.cmpfiles(self.repo, other, found, shallow=False)
            self.assertEqual((differ, missing), ([], []))

    def test_a_downloaded_package_is_verified_without_the_index(self):
        made = deb(self.folder)
        with self.at(-DAY):
            self.init()
            self.add(made, deb(self.folder, "1.1-1"))
            self.publish()
        package = self.repo / "pool/tiny/tiny_1.0-1_amd64.deb"
        signature = package.with_name(f"{package.name}.asc")

        def verified(path):
            return run(installed("gpgv"), "--keyring", self.repo / "ledge.gpg", signature, path).returncode == 0

        self.assertTrue(verified(package))
        self.assertTrue(verified(made))
        self.assertFalse(verified(self.repo / "pool/tiny/tiny_1.1-1_amd64.deb"))
        before = signature.read_bytes()
        self.publish()
        self.assertEqual(signature.read_bytes(), before)
        self.done("package", "rotate", self.repo, "--keys", self.keys)
        self.assertTrue(verified(package))
        with_both = signature.read_bytes()
        self.done("package", "rotate", self.repo, "--keys", self.keys, "--finish")
        self.assertTrue(verified(package))
        self.assertEqual(len({before, with_both, signature.read_bytes()}), 3)
        other = self.folder / "other"
        self.init(repo=other, keys=self.folder / "other-keys")
        self.assertNotEqual(run(installed("gpgv"), "--keyring", other / "ledge.gpg", signature, package).returncode, 0)

    def test_a_package_that_changed_since_it_was_signed_is_not_published(self):
        self.publish_tiny()
        package = self.repo / "pool/tiny/tiny_1.0-1_amd64.deb"
        package.write_bytes(package.read_bytes() + b"!")
        self.failed("has changed since it was signed", "package", "publish", self.repo, "--keys", self.keys)

    def test_a_date_that_clients_would_not_take_is_refused(self):
        self.publish_tiny()
        words = "package", "publish", self.repo, "--keys", self.keys
        self.failed("was made on", *words, "--date", "2020-01-01T00:00:00Z")
        with self.at(-DAY):
            self.init(repo=self.folder / "other", keys=self.folder / "old")
        self.add(deb(self.folder, "2.0-1"), repo=self.folder / "other")
        self.done("package", "publish", self.folder / "other", "--keys", self.folder / "old")
        before = moments.text(moments.after(moments.now(), -3_600))
        self.failed("leave out --date",
                    "package", "publish", self.folder / "other", "--keys", self.folder / "old", "--date", before)
        with mock.patch.dict(os.environ, {"SOURCE_DATE_EPOCH": "today"}):
            self.failed("no number of seconds", *words)

    def test_a_reader_of_the_index_before_finds_its_files_for_a_week(self):
        with self.at(-30 * DAY):
            self.publish_tiny()

        def files_of_index():
            return {path for kind in ("by-hash/SHA256/*", "repomd.xml*", "*.gz") for path in self.repo.rglob(kind)
                    if path.is_file() and "repodata" in str(path.resolve()) or "by-hash" in str(path)}

        before = files_of_index()
        self.add(deb(self.folder, "1.1-1"), rpm(self.folder, "1.1-1"))
        self.publish()
        self.publish()
        self.assertLessEqual(before, files_of_index())
        with self.at(8 * DAY):
            self.publish()
            after = files_of_index()
        self.assertFalse({path for path in before if "by-hash" in str(path)} & after)
        self.assertEqual(len(list((self.repo / "rpm").glob("x86_64.*"))), 2)

    def test_a_removed_package_is_gone_from_the_next_index(self):
        self.publish_tiny()
        for path in (*self.repo.rglob("*.deb"), *self.repo.rglob("*.rpm")):
            path.unlink()
        self.assertIn("0 deb and 0 rpm", self.publish())
        self.assertEqual(list(self.repo.rglob("*.deb.asc")), [])


if __name__ == "__main__":
    unittest.main()
