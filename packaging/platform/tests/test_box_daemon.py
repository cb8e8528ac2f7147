"""A daemon joins a platform as `init` makes it, through its nginx, and leaves it."""
import os
import subprocess
import unittest

from sites import LIMIT_S, Site, until
from support import ledge

from ledge_platform.boxes.store import Store


class RealDaemon(Site):
    def setUp(self):
        super().setUp()
        self.program, self.box_root = ledge(), self.folder / "box"
        (self.box_root / "models").mkdir(parents=True)
        # What begins like this is a setting of the daemon.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGE_")}
        self.settings = ["--root", self.box_root, "--set", 'http.listen=["127.0.0.1:0"]']
        self.start("nginx")
        self.start("mosquitto")

    def box(self, action, *words):
        return self.done("box", action, "--root", self.root, *words)

    def ledge(self, *words, ends=0):
        command = [self.program, *map(str, [*words, *self.settings])]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env=self.environment)
        self.assertEqual(done.returncode, ends, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def serve(self):
        log = open(self.folder / "daemon.log", "a")
        daemon = subprocess.Popen([self.program, "serve", *map(str, self.settings)], stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, env=self.environment)
        log.close()
        self.addCleanup(daemon.wait, LIMIT_S)
        self.addCleanup(daemon.terminate)
        return daemon

    def test_a_daemon_joins_and_is_refused_once_it_is_revoked(self):
        text = self.box("add", "shop-7", "--fleet", "shops", "--out", self.folder)
        fingerprint = text.split()[-1]
        said = self.ledge("join", "--fingerprint", fingerprint, "--wait", 0, self.folder / "shop-7.join")
        daemon = self.serve()
        log = self.folder / "daemon.log"
        until(lambda: list(self.layout.requests.rglob("*.json")), f"no request came: {said}", daemon, log)
        self.assertIn("joined: shop-7", self.box("answer"))
        said = "member of example, with a certificate until"
        until(lambda: said in log.read_text(), "it took no certificate", daemon, log)
        member = Store(self.layout.boxes).load().members["shop-7"]
        self.assertEqual((member.fleet, member.note), ("shops", None))
        self.assertIn(member.audit_key, self.done("audit", "keys", "--state", self.layout.audit_state))
        self.assertIn("1 certificates are revoked", self.box("revoke", "shop-7"))
        self.assertIn("revoked", self.box("list"))


if __name__ == "__main__":
    unittest.main()
