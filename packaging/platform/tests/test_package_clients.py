"""Package repositories as apt and dnf see them: taken when right, and refused when somebody changed something."""
import os
import shutil
import threading
import unittest
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

from packages import DAY, Apt, Dnf, Packages, deb, must, rpm


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Clients(Packages):
    def apt(self, sources=None):
        self.count = getattr(self, "count", 0) + 1
        return Apt(self.folder / f"apt-{self.count}", sources or self.repo / "ledge.sources")

    def dnf(self, repo=None):
        self.count = getattr(self, "count", 0) + 1
        return Dnf(self.folder / f"dnf-{self.count}", repo or self.repo / "ledge.repo")

    def refused(self, says, done):
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(says, done.stdout + done.stderr)

    def change(self, path, old=None, new=b"!"):
        content = path.read_bytes()
        if old is not None:
            self.assertIn(old, content)
        path.write_bytes(content.replace(old, new, 1) if old else content + new)

    # --- accepted ---

    def test_both_install_what_was_added(self):
        with mock.patch("ledge_platform.packages.openpgp.ALGORITHM", "rsa4096"):
            self.publish_tiny()
        apt, dnf = self.apt(), self.dnf()
        self.assertEqual((apt.version(), dnf.version()), ("1.0-1", "1.0-1"))
        self.assertEqual((dnf.folder / "root/usr/share/tiny/content").read_text(), "content\n")
        self.add(deb(self.folder, "1.1-1"), rpm(self.folder, "1.1-1"))
        self.assertEqual((apt.version(), dnf.version()), ("1.0-1", "1.0-1"))
        self.publish()
        self.assertEqual((apt.version(), dnf.version()), ("1.1-1", "1.1-1"))

    def test_both_install_over_http(self):
        self.init()
        self.add(deb(self.folder), rpm(self.folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(self.folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.publish("--address", f"http://127.0.0.1:{server.server_port}/repo/")
        self.assertEqual((self.apt().version(), self.dnf().version()), ("1.0-1", "1.0-1"))

    def test_dnf_needs_no_mirror_list(self):
        self.publish_tiny()
        dnf = self.dnf()
        dnf.edit("mirrorlist=", "baseurl=")
        dnf.edit("/mirrorlist", "")
        self.assertEqual(dnf.version(), "1.0-1")

    # --- changed ---

    def test_a_changed_package_is_refused(self):
        self.publish_tiny()
        apt, dnf = self.apt(), self.dnf()
        self.change(next(self.repo.rglob("*.deb")))
        self.assertEqual(apt.update().returncode, 0)
        self.refused("size", apt.get("download", "tiny"))
        self.change(next(self.repo.rglob("*.rpm")), b"tiny", b"tinY")
        self.refused("checksum doesn't match", dnf.install())

    def test_a_changed_index_is_refused(self):
        self.publish_tiny()
        for path in self.repo.rglob("by-hash/SHA256/*"):
            self.change(path)
        self.refused("Hash Sum mismatch", self.apt().update())
        self.change(self.repo / "dists/stable/InRelease", b"Label: Ledge", b"Label: Lodge")
        self.refused("BADSIG", self.apt().update())
        dnf = self.dnf()
        dnf.edit("gpgcheck=1\nrepo", "gpgcheck=0\nrepo")
        self.change(next(self.repo.rglob("repomd.xml")), b"<revision>", b"<revision>1")
        self.refused("repomd.xml GPG signature verification error", dnf.install())

    def test_an_unsigned_rpm_is_refused_whatever_the_index_says(self):
        self.publish_tiny()
        shutil.copyfile(rpm(self.folder, content="other"), next(self.repo.rglob("*.rpm")))
        repodata = (self.repo / "rpm/x86_64/repodata").resolve()
        shutil.rmtree(repodata)
        must("createrepo_c", "--quiet", "--location-prefix", f"../x86_64/{self.key_id()}/", "--outputdir", repodata.parent,
             self.repo / "rpm/x86_64" / self.key_id())
        dnf = self.dnf()
        dnf.edit("repo_gpgcheck=1", "repo_gpgcheck=0")
        self.refused("is not signed", dnf.install())

    def key_id(self):
        return next(self.repo.rglob("*.rpm")).parent.name

    # --- expired, foreign, replaced ---

    def test_an_expired_index_is_refused_by_apt_until_it_is_published_again(self):
        with self.at(-40 * DAY):
            self.publish_tiny()
        apt = self.apt()
        self.refused("expired", apt.update())
        self.publish()
        self.assertEqual(apt.version(), "1.0-1")

    def test_an_expired_key_is_refused(self):
        with self.at(-40 * DAY):
            self.init("--key-lifetime", "30d", "--lifetime", "90d")
            self.add(deb(self.folder), rpm(self.folder))
            self.publish()
        self.refused("EXPKEYSIG", self.apt().update())
        self.refused("repomd.xml GPG signature verification error", self.dnf().install())
        self.failed("has expired on", "package", "publish", self.repo, "--keys", self.keys)

    def test_a_foreign_key_is_refused(self):
        self.publish_tiny()
        other = self.folder / "other"
        self.init(repo=other, keys=self.folder / "other-keys")
        text = (other / "ledge.sources").read_text().replace(f"file://{other}", f"file://{self.repo}")
        (other / "ledge.sources").write_text(text)
        self.refused("NO_PUBKEY", self.apt(other / "ledge.sources").update())
        dnf = self.dnf()
        dnf.install_key(other / "ledge.asc")
        self.refused("repomd.xml GPG signature verification error", dnf.install())
        dnf.edit("repo_gpgcheck=1", "repo_gpgcheck=0")
        self.refused("wrong key(s)", dnf.install())

    def test_two_keys_are_accepted_until_the_rotation_is_finished(self):
        self.publish_tiny()
        first, first_dnf = self.apt(), self.dnf()
        self.assertEqual((first.version(), first_dnf.version()), ("1.0-1", "1.0-1"))

        self.done("package", "rotate", self.repo, "--keys", self.keys)
        self.assertEqual((first.version(), first_dnf.version()), ("1.0-1", "1.0-1"))
        second = self.apt()
        self.assertEqual((second.version(), self.dnf().version()), ("1.0-1", "1.0-1"))

        self.add(deb(self.folder, "1.1-1"), rpm(self.folder, "1.1-1"))
        self.done("package", "rotate", self.repo, "--keys", self.keys, "--finish")
        os.unlink(self.keys / "packages.asc")
        self.publish()
        self.refused("NO_PUBKEY", first.update())
        self.assertIn("repomd.xml GPG signature verification error", first_dnf.run("upgrade").stderr)
        self.assertEqual(first_dnf.installed(), "1.0-1")
        self.assertEqual((second.version(), self.apt().version(), self.dnf().version()), ("1.1-1", "1.1-1", "1.1-1"))
        first_dnf.install_key(self.repo / "ledge.asc")
        self.assertEqual(first_dnf.version(), "1.1-1")


if __name__ == "__main__":
    unittest.main()
