"""`ledge-platform backup` and `restore`."""
import io
import shutil
import tarfile
import unittest

from sites import Site

from ledge_platform.boxes.store import Store
from ledge_platform.site.layout import Layout


class Backup(Site):
    def setUp(self):
        super().setUp()
        self.file, self.second = self.folder / "platform.tar", self.folder / "second"

    def backup(self, *more):
        return self.done("backup", self.file, "--root", self.root, *more)

    def names(self):
        with tarfile.open(self.file) as archive:
            return archive.getnames()

    def test_a_platform_comes_back_on_an_empty_machine(self):
        self.done("box", "add", "box-1", "--root", self.root, "--out", self.folder)
        self.issue("box-1")
        self.done("ca", "revoke", self.layout.ca, "box-1")
        said = self.backup()
        self.assertIn("not in it: the offline keys", said)
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)
        with tarfile.open(self.file) as archive:
            held = b"".join(archive.extractfile(member).read() for member in archive if member.isfile())
        for name in ("root1.pem", "models.pem", "ca-root.key"):
            self.assertNotIn((self.layout.offline / name).read_bytes(), held)
        self.assertIn((self.layout.keys / "fleet.pem").read_bytes(), held)

        fingerprint = self.init().split("fingerprint of the root certificate: ")[1].splitlines()[0]
        invited = Store(self.layout.boxes).load().invitations
        first = self.layout
        shutil.rmtree(self.root)
        self.done("restore", self.file, "--root", self.second)
        self.root = self.second
        self.assertIn(fingerprint, self.init())
        self.layout = Layout.open(self.second)
        self.assertEqual(Store(self.layout.boxes).load().invitations, invited)
        self.assertEqual(self.layout.settings(), first.settings())
        self.assertEqual(self.layout.requests.stat().st_mode & 0o7777, 0o2750)
        self.assertEqual((self.layout.keys / "fleet.pem").stat().st_mode & 0o777, 0o600)
        self.start("nginx")
        self.start("mosquitto")
        text = self.done("doctor", "--root", self.second)
        self.assertIn("nothing is wrong", text)
        # It goes on where the first one stopped.
        self.done("refresh", self.layout.repository, "--keys", self.layout.keys)
        self.done("verify", self.layout.repository)
        self.assertIn("revoked", self.done("ca", "list", self.layout.ca))

    def test_audit_logs_can_be_left_out(self):
        log = self.layout.box_audit / "box-1" / "1" / "checkpoint"
        log.parent.mkdir(parents=True)
        log.write_text("head")
        self.assertIn("nor the boxes' audit logs", self.backup("--without-logs"))
        self.assertNotIn("srv/ledge-boxes/audit/box-1/1/checkpoint", self.names())
        self.file.unlink()
        self.backup()
        self.assertIn("srv/ledge-boxes/audit/box-1/1/checkpoint", self.names())

    def test_nothing_is_overwritten(self):
        self.backup()
        self.failed("is there already", "backup", self.file, "--root", self.root)
        self.failed("restore onto an empty machine", "restore", self.file, "--root", self.root)
        (self.second / "srv/ledge/metadata").mkdir(parents=True)
        self.failed("srv/ledge: restore onto an empty machine", "restore", self.file, "--root", self.second)

    def test_a_file_that_is_no_backup_restores_nothing(self):
        hostile = {
            "outside": tarfile.TarInfo("../outside"), "elsewhere": tarfile.TarInfo("etc/passwd"), "up": tarfile.TarInfo("srv/ledge/../../x"),
            "absolute": tarfile.TarInfo("/etc/ledge-platform/x"),
        }
        link = tarfile.TarInfo("srv/ledge/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        hard = tarfile.TarInfo("srv/ledge/hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "etc/shadow"
        for name, member in {**hostile, "link": link, "hard": hard}.items():
            file = self.folder / f"{name}.tar"
            with tarfile.open(file, "w") as archive:
                good = tarfile.TarInfo("srv/ledge/root.json")
                archive.addfile(good, io.BytesIO())
                archive.addfile(member)
            self.failed("does not belong into a backup: nothing was restored", "restore", file, "--root", self.second)
        nonsense = self.folder / "nonsense.tar"
        nonsense.write_bytes(b"nonsense" * 200)
        self.failed("is no backup of a platform", "restore", nonsense, "--root", self.second)
        self.assertFalse(self.second.exists())


if __name__ == "__main__":
    unittest.main()
