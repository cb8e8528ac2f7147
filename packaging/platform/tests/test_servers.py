"""nginx and mosquitto as `init` configures them: who reaches what, and what ends when a box is revoked."""
import http.client
import json
import socket
import ssl
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sites import LIMIT_S, Client, Site, until
from support import installed, reported

from ledge_platform.certificates import authority

INBOX, ID = "a1" * 16, "0f" * 32


class Web(Site):
    def setUp(self):
        super().setUp()
        self.box = self.issue("box-1")
        self.start("nginx")

    def put(self, path, body=b"{}", identity=None):
        return self.ask(path, identity, "PUT", body)[0]

    def test_strangers_reach_the_way_to_a_certificate_alone(self):
        for path in ("/metadata/timestamp.json", "/audit/box-1/1/checkpoint", "/", "/join/", "/join/requests", "/root.json",
                     "/join/answers/../../metadata/timestamp.json", "/join//answers", "/.unfinished", "/join/requestsX/"):
            status, body, headers = self.ask(path)
            self.assertEqual((status, body, headers["Content-Type"]), (400, b"NONE", "text/plain"), path)
        self.assertEqual(self.ask("/metadata/timestamp.json", self.box)[0], 200)
        self.assertEqual(self.ask("/join/", self.box)[0], 404)

    def test_a_certificate_that_is_refused_opens_nothing_and_says_why(self):
        self.done("ca", "revoke", self.layout.ca, "box-1")
        self.reload()
        for path in ("/metadata/timestamp.json", f"/join/answers/{ID}.json"):
            status, body, headers = self.ask(path, self.box)
            self.assertEqual((status, body, headers["Content-Type"]), (400, b"FAILED:certificate revoked", "text/plain"), path)
        other = authority.init(self.folder / "other", self.folder / "other-offline", "other", {}, encrypt=False)
        for file, content in zip(self.box, other.issue("box-1")):
            file.write_bytes(content)
        # nginx names the last error that OpenSSL met, and there is no list of that authority.
        self.assertEqual(self.ask("/metadata/timestamp.json", self.box)[:2], (400, b"FAILED:unable to get certificate CRL"))

    def reload(self):
        subprocess.run([installed("nginx"), "-e", "stderr", "-c", self.layout.nginx_conf, "-s", "reload"], check=True, capture_output=True)
        until(lambda: self.ask("/metadata/timestamp.json", self.box)[0] == 400, "the new configuration does not serve")

    def test_a_request_is_put_into_an_inbox_that_exists_and_nobody_reads_it(self):
        inbox, path = self.layout.requests / INBOX, f"/join/requests/{INBOX}/{ID}.json"
        self.assertEqual(self.put(path), 404)
        self.assertEqual(list(self.layout.requests.iterdir()), [])
        inbox.mkdir()
        self.assertEqual((self.put(path, b"first"), self.put(path, b"second")), (201, 204))
        self.assertEqual((inbox / f"{ID}.json").read_bytes(), b"second")
        self.assertEqual(self.put(path, identity=self.box), 204)
        for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PROPFIND", "MKCOL", "MOVE", "COPY"):
            for identity in (None, self.box):
                self.assertEqual(self.ask(path, identity, method)[0], 405, method)
        for folder in (f"/join/requests/{INBOX}/", f"/join/requests/{INBOX}", "/join/requests/", "/join/incoming/"):
            for identity in (None, self.box):
                self.assertIn(self.ask(folder, identity)[0], (404, 400), folder)
        self.assertEqual([entry.name for entry in inbox.iterdir()], [f"{ID}.json"])

    def test_only_exact_names_are_taken(self):
        (self.layout.requests / INBOX).mkdir()
        (self.layout.requests / INBOX.upper()).mkdir()
        for path in (f"{INBOX}/{ID}", f"{INBOX}/{ID}.json/", f"{INBOX}/{ID[1:]}.json", f"{INBOX}/{ID}0.json", f"{INBOX}/{ID.upper()}.json",
                     f"{INBOX.upper()}/{ID}.json", f"{INBOX}/x/{ID}.json", f"{INBOX[1:]}/{ID}.json", f"{INBOX}/..%2F{ID}.json",
                     f"../answers/{ID}.json", f"{INBOX}/{ID}.json%00", f"{INBOX}/{ID}.json%0a"):
            self.assertIn(self.put(f"/join/requests/{path}"), (400, 404, 405), path)
        self.assertEqual([path for path in self.layout.join.rglob("*.json*")], [])

    def test_a_large_request_is_refused(self):
        inbox = self.layout.requests / INBOX
        inbox.mkdir()
        path = f"/join/requests/{INBOX}/{ID}.json"
        self.assertEqual(self.put(path, b"x" * 16_385), 413)
        self.assertEqual(list(inbox.iterdir()), [])
        self.assertEqual(self.put(path, b"x" * 16_384), 201)

    def test_an_answer_is_read_by_its_exact_name(self):
        path = f"/join/answers/{ID}.json"
        status, _, headers = self.ask(path)
        self.assertEqual((status, headers["Cache-Control"]), (404, "no-store"))
        (self.layout.answers / f"{ID}.json").write_text(json.dumps({"state": "waiting"}))
        status, body, headers = self.ask(path)
        self.assertEqual((status, json.loads(body), headers["Cache-Control"]), (200, {"state": "waiting"}, "no-store"))
        self.assertEqual((self.put(path), self.ask("/join/answers/")[0]), (405, 404))

    def test_a_question_is_read_by_who_knows_the_inbox(self):
        path = f"/join/questions/{INBOX}.json"
        status, _, headers = self.ask(path)
        self.assertEqual((status, headers["Cache-Control"]), (404, "no-store"))
        (self.layout.questions / f"{INBOX}.json").write_text("{}")
        self.assertEqual(self.ask(path)[:2], (200, b"{}"))
        self.assertEqual(self.ask(path, self.issue("box-1"))[0], 200)
        for other in ("/join/questions/", "/join/questions", f"/join/questions/{INBOX}", f"/join/questions/{INBOX}.json%0a"):
            self.assertIn(self.ask(other)[0], (400, 404), other)
        self.assertEqual(self.put(path), 405)

    def test_whoever_asks_too_often_is_told_so(self):
        """Also for inboxes that do not exist: otherwise they could be guessed at any speed."""
        with ThreadPoolExecutor(60) as pool:
            found = list(pool.map(lambda _: self.put(f"/join/requests/{INBOX}/{ID}.json"), range(60)))
        self.assertEqual(set(found), {404, 429}, found)
        until(lambda: self.put(f"/join/requests/{INBOX}/{ID}.json") == 404, "the limit does not end")
        with ThreadPoolExecutor(100) as pool:
            found = list(pool.map(lambda _: self.ask(f"/join/answers/{ID}.json")[0], range(100)))
        self.assertEqual(set(found), {404, 429}, found)


class Revoked(Site):
    def test_open_connections_of_a_revoked_box_end_within_two_runs_of_the_timer(self):
        for name in ("nginx", "mosquitto"):
            self.start(name)
        self.stand_in_for_systemctl()
        self.refresh()
        revoked, other = self.issue("box-1"), self.issue("box-2")
        client = Client(self, revoked)
        self.addCleanup(client.close)
        web = self.connect(revoked)
        self.addCleanup(web.close)
        web.request("GET", "/metadata/timestamp.json")
        self.assertEqual(web.getresponse().read()[:1], b"{")
        # A download that has begun, and that the client does not go on to read.
        (self.layout.repository / "targets" / "large").write_bytes(bytes(64 << 20))
        slow = self.connect(revoked)
        self.addCleanup(slow.close)
        slow.request("GET", "/targets/large")
        slow_answer = slow.getresponse()
        self.assertTrue(client.up)

        self.said_to_systemctl()
        before = self.workers()
        self.done("ca", "revoke", self.layout.ca, "box-1")
        began = time.monotonic()
        self.refresh()
        self.assertEqual(self.said_to_systemctl(), ["reload ledge-platform-web.service", "restart ledge-platform-broker.service"])
        until(lambda: client.up is False, "the connection to the broker stays")
        self.servers.pop("mosquitto").wait(LIMIT_S)
        self.start("mosquitto")
        self.assertEqual(web.sock.recv(1), b"", "the idle connection to nginx stays")
        until(lambda: not before & self.workers(), "the workers of the old configuration go on")
        with self.assertRaises((ConnectionError, ssl.SSLError, http.client.IncompleteRead)):
            slow_answer.read()
        # Two runs of a timer that fires each minute.
        self.assertLess(time.monotonic() - began, 60)

        again = Client(self, revoked)
        self.addCleanup(again.close)
        self.assertFalse(again.up)
        self.assertEqual(self.ask("/metadata/timestamp.json", revoked)[:2], (400, b"FAILED:certificate revoked"))
        self.assertEqual(self.ask("/metadata/timestamp.json", other)[0], 200)
        well = Client(self, other)
        self.addCleanup(well.close)
        self.assertTrue(well.up)

        # Nothing has changed since.
        self.refresh()
        self.assertEqual(self.said_to_systemctl(), [])

    def workers(self):
        master = self.servers["nginx"].pid
        return set(Path(f"/proc/{master}/task/{master}/children").read_text().split())

    def refresh(self):
        return self.done("servers", "refresh", "--root", self.root)

    def serial(self, port, identity):
        context = self.context(identity)
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain, context.wrap_socket(plain, server_hostname="localhost") as stream:
            return stream.getpeercert()["serialNumber"]

    def test_a_new_certificate_is_served_without_ending_connections_to_the_broker(self):
        for name in ("nginx", "mosquitto"):
            self.start(name)
        self.stand_in_for_systemctl()
        self.refresh()
        box = self.issue("box-1")
        client = Client(self, box)
        self.addCleanup(client.close)
        before = {port: self.serial(port, box) for port in self.ports}
        with self.at(61 * 86_400):
            self.assertIn("two thirds", self.done("certificates", "refresh", "--root", self.root))
        # The certificates and lists of the future are put back to now, with the same key.
        self.layout.server_certificate.unlink()
        self.done("certificates", "refresh", "--root", self.root)
        self.said_to_systemctl()
        self.refresh()
        self.assertEqual(self.said_to_systemctl(), ["reload ledge-platform-web.service", "reload ledge-platform-broker.service"])
        for port in self.ports:
            until(lambda: self.serial(port, box) != before[port], f"port {port} serves the old certificate")
        self.assertTrue(client.up)


class Reports(Site):
    def test_verbs_know_the_broker_of_the_platform_and_leave_out_who_was_forgotten(self):
        self.start("mosquitto")
        client = Client(self, self.issue("box-1"))
        self.addCleanup(client.close)
        client.client.publish("ledge/v1/box-1/reported", reported("box-1"), 1, True).wait_for_publish(LIMIT_S)
        here = ("--root", self.root)
        self.assertIn("box-1", self.done("fleet", "status", *here))
        self.assertIn("1 boxes told", self.done("hint", self.layout.repository, *here))
        self.done("box", "add", "box-1", *here, "--out", self.folder)
        self.done("box", "forget", "box-1", *here)
        self.assertNotIn("box-1", self.done("fleet", "status", *here))
        self.failed("there is no platform at", "fleet", "status", "--root", self.folder)


if __name__ == "__main__":
    unittest.main()
