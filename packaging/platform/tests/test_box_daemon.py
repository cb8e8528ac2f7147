"""A daemon joins a platform as `init` makes it, through its nginx, and leaves it."""
import json
import os
import subprocess
import sys
import time
import unittest

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from sites import LIMIT_S, Site, until
from support import ledge

from ledge_platform import files, moments
from ledge_platform.boxes import asking, dsse, inviting
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

    def serve(self, *more):
        log = open(self.folder / "daemon.log", "a")
        daemon = subprocess.Popen([self.program, "serve", *map(str, [*self.settings, *more])], stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, env=self.environment)
        log.close()
        self.addCleanup(daemon.wait, LIMIT_S)
        self.addCleanup(daemon.terminate)
        return daemon

    def joined(self):
        """A daemon that is a member."""
        fingerprint = self.box("add", "shop-7", "--out", self.folder).split()[-1]
        self.ledge("join", "--fingerprint", fingerprint, "--wait", 0, self.folder / "shop-7.join")
        daemon, log = self.serve(), self.folder / "daemon.log"
        until(lambda: list(self.layout.requests.rglob("*.json")), "no request came", daemon, log)
        self.box("answer")
        until(lambda: "member of example, with" in log.read_text(), "it took no certificate", daemon, log)
        return daemon

    def refused(self, count):
        """The causes of refused questions in the audit log, once there are so many."""
        def causes():
            text = self.ledge("audit", "show", "--action", "question_refused", "--json")
            return [record["event"]["cause"] for record in map(json.loads, text.splitlines())]

        until(lambda: len(causes()) >= count, f"it refused less than {count}", None, self.folder / "daemon.log")
        return causes()

    def sealed(self, payload, identity):
        """A question signed by another certificate."""
        chain, key = (path.read_bytes() for path in identity)
        key = load_pem_private_key(key, None)
        return dsse.seal(dsse.QUESTION, json.dumps(payload).encode(),
                         lambda signed: key.sign(signed, ec.ECDSA(hashes.SHA256())),
                         keyid="platform", certificate=chain.decode())

    def test_a_daemon_answers_the_questions_that_its_owner_allows(self):
        daemon, log = self.joined(), self.folder / "daemon.log"
        status, text = self.run_verb("box", "ask", "--root", self.root, "shop-7", "doctor", "--wait", "5s")
        self.assertEqual(status, 2, text)
        self.assertIn("or its owner does not allow it", text)
        self.assertEqual(list(self.layout.requests.rglob("*.json")), [])
        path = next(self.layout.questions.glob("*.json"))
        earlier = path.read_bytes()
        daemon.terminate()
        daemon.wait(LIMIT_S)
        report = json.loads(self.ledge("audit", "egress", "--json"))
        self.assertEqual(sum(to["sent"].get("diagnoses", 0) for to in report["destinations"]), 0, report)

        path.unlink()
        daemon = self.serve("--set", 'membership.questions=["doctor"]')
        began = time.monotonic()
        text = self.box("ask", "shop-7", "doctor", "--wait", "100s", "--json")
        print(f"\nthe first answer came after {time.monotonic() - began:.1f} s", file=sys.stderr)
        answer = json.loads(text)
        self.assertEqual((answer["box"], answer["question"]), ("shop-7", "doctor"))
        checks = {check["check"]: check for check in answer["checks"]}
        self.assertIn("free_bytes", checks["state"])
        self.assertGreater(checks["membership"]["seconds_left"], 80 * 86_400)
        self.assertNotIn("other", checks)
        records = self.ledge("audit", "show", "--action", "question_answered", "--json")
        record = json.loads(records)["event"]
        self.assertEqual((record["question"], record["id"]), ("doctor", answer["id"]))

        asked = json.loads(dsse.take_apart(earlier, dsse.QUESTION)[0])
        now = moments.now()
        fresh = {**asked, "id": "ab" * 32, "made": moments.text(now), "expires": moments.text(moments.after(now, 600))}
        signer = inviting.Signer(self.layout, now, now)
        attacks = {
            "repeated": earlier,
            "other_box": signer.sealed({**fresh, "box": "shop-8"}, dsse.QUESTION),
            "not_signed": self.sealed(fresh, self.issue("shop-8")),
        }
        for count, content in enumerate(attacks.values(), 1):
            files.write(path, content)
            asking.hint(self.layout, "shop-7")
            self.refused(count)
        self.assertEqual(self.refused(3), list(attacks))
        self.assertEqual(list(self.layout.requests.rglob("*.json")), [])

        # After a restart, too.
        files.write(path, earlier)
        daemon.terminate()
        daemon.wait(LIMIT_S)
        self.serve("--set", 'membership.questions=["doctor"]')
        self.assertEqual(self.refused(4)[3], "repeated")
        self.assertEqual(self.ledge("audit", "show", "--action", "question_answered", "--json"), records)

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
