"""One job of a real Prometheus reads the metrics of three boxes that joined, with the alert rules of packaging/monitoring."""
import http.client
import json
import re
import secrets
import signal
import socket
import ssl
import subprocess
import unittest
import urllib.parse
import urllib.request

from real import DAY, Boxes, end
from sites import LIMIT_S, free_port, until
from support import REPOSITORY, installed

RULES = REPOSITORY / "packaging/monitoring/ledge.rules.yml"
NAMES = ("shop-1", "shop-2", "shop-3")


class Prometheus:
    """The server with the job that `init` wrote, which scrapes each second."""

    def __init__(self, test):
        folder, self.port = test.folder / "prometheus", free_port()
        folder.mkdir()
        job = (test.layout.prometheus / "prometheus.yml").read_text()
        (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 2s", RULES.read_text()))
        (folder / "prometheus.yml").write_text(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [rules.yml]\n" + job)
        subprocess.run([installed("promtool"), "check", "config", folder / "prometheus.yml"], check=True, capture_output=True)
        words = (installed("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn")
        self.log = folder / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        test.addCleanup(end, self.process)
        until(self.is_ready, "prometheus does not start", self.process, self.log)

    def is_ready(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=LIMIT_S).close()
            return True
        except OSError:
            return False

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return json.load(answer)["data"]

    def up(self):
        """{instance: 1 or 0} of the job."""
        found = self.get("query", query='up{job="ledge"}')["result"]
        return {series["metric"]["instance"]: int(series["value"][1]) for series in found}

    def firing(self):
        return {(alert["labels"]["alertname"], alert["labels"]["instance"]) for alert in self.get("alerts")["alerts"]
                if alert["state"] == "firing" and alert["labels"]["alertname"] == "LedgeDown"}

    def errors(self):
        return [target["lastError"] for target in self.get("targets", state="active")["activeTargets"]]


class OneJob(Boxes):
    def setUp(self):
        super().setUp()
        self.clock = self.folder / "clock"
        self.clock.write_text("+0d\n")
        self.places = {name: (f"127.0.1.{number}", free_port()) for number, name in enumerate(NAMES, 1)}
        table = self.folder / "boxes.csv"
        table.write_text("name,fleet,metrics\n" + "".join(
            f"{name},shops,{host}:{port}\n" for name, (host, port) in self.places.items()))
        out = self.folder / "join files"
        self.box("add", "--csv", table, "--out", out)
        self.boxes = {}
        for name, (host, port) in self.places.items():
            settings = "[access]\nloopback = []\n"
            if name == "shop-2":  # its private key is encrypted
                key = self.folder / "membership.key"
                key.write_bytes(secrets.token_bytes(32))
                key.chmod(0o600)
                settings += f'[membership]\nkey_file = "{key}"\n'
            box = self.new_box(name, settings, self.clock if name == "shop-1" else None)
            said = box.join(out / f"{name}.join", self.fingerprint)
            self.assertIn(f"metrics      port {port}, to the platform's Prometheus", said)
            # The boxes of a test have a list of their own, without the default port 8000, which is one for the machine.
            self.assertRegex(said, rf'http.listen is set in \S+ledge.toml:2, .* add "https://0.0.0.0:{port}" to http.listen')
            config = box.root / "ledge.toml"
            config.write_text(config.read_text().replace('"unix:ledge.sock"', f'"unix:ledge.sock", "https://{host}:{port}"'))
            self.boxes[name] = box

    def served(self, name):
        """The certificate that a box shows; None while it shows none."""
        try:
            return ssl.get_server_certificate(self.places[name], timeout=LIMIT_S)
        except OSError:
            return None

    def asked(self, name, identity=None, path="/metrics", method="GET"):
        """The status that a box answers, as its certificate names its host; or the error of the connection."""
        host, port = self.places[name]
        connection = http.client.HTTPSConnection(host, port, timeout=LIMIT_S, context=self.context(identity))
        try:
            connection.request(method, path)
            return connection.getresponse().status
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()

    def all_join(self):
        for name, box in self.boxes.items():
            box.start()
            self.assertIsNone(self.served(name), "https:// waits for the certificate")
        until(lambda: len(self.requests()) == len(NAMES), "the requests do not come")
        self.assertIn("joined: ", self.box("answer"))
        for name, box in self.boxes.items():
            box.says("with a certificate until")
            until(lambda: self.served(name), f"{name} does not take its certificate for https://", box.daemon, box.log_file)

    def test_prometheus_reads_the_members_and_those_alone(self):
        self.all_join()
        self.assertTrue((self.boxes["shop-2"].root / "membership/identity.pem").read_bytes()[:5] != b"-----", "is encrypted")
        server = Prometheus(self)
        until(lambda: server.up() == dict.fromkeys(NAMES, 1), "not all are up", server.process, server.log)
        found = server.get("query", query="ledge_ready")["result"]
        self.assertEqual({(series["metric"]["box"], series["metric"]["fleet"]) for series in found},
                         {(name, "shops") for name in NAMES})
        self.assertEqual(server.firing(), set())

        # A revoked box leaves, and no alert is left behind.
        self.box("revoke", "shop-3")
        until(lambda: server.up() == dict.fromkeys(NAMES[:2], 1), "the revoked box stays", server.process, server.log)

        # A box that cannot be reached is down, and no other.
        self.boxes["shop-2"].daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.boxes["shop-2"].stop, signal.SIGKILL)
        until(lambda: server.firing() == {("LedgeDown", "shop-2")}, "LedgeDown does not fire for it alone", server.process,
              server.log)
        self.assertEqual(server.up(), {"shop-1": 1, "shop-2": 0})
        self.boxes["shop-2"].daemon.send_signal(signal.SIGCONT)
        until(lambda: server.up() == {"shop-1": 1, "shop-2": 1}, "the box does not come back", server.process, server.log)

    def test_only_prometheus_reads_them_and_it_may_do_nothing_else(self):
        self.all_join()
        scraper = self.layout.scraper_certificate, self.layout.scraper_key
        self.assertEqual(self.asked("shop-1", scraper), 200)
        for path, method in (("/keys", "GET"), ("/updates/check", "POST"), ("/v2/models/x/infer", "POST"),
                             ("/audit/logs/1/checkpoint", "GET")):
            self.assertEqual(self.asked("shop-1", scraper, path, method), 403, path)
        self.assertEqual(self.ask("/metadata/timestamp.json", scraper)[0], 403, "the platform's own servers refuse it")

        other = self.boxes["shop-3"].root / "membership/identity.pem"
        self.assertEqual(self.asked("shop-1", (other, other)), 403, "a box reads no other box")
        self.assertEqual(self.asked("shop-1", self.issue("platform")), 403, "nor does the platform")
        self.assertEqual(self.asked("shop-1"), 401)
        words = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=prometheus")
        foreign = self.folder / "foreign.pem", self.folder / "foreign.key"
        subprocess.run([installed("openssl"), "req", *words, "-out", foreign[0], "-keyout", foreign[1]], check=True,
                       capture_output=True)
        self.assertIn(self.asked("shop-1", foreign), ("SSLError", "ConnectionResetError", "BrokenPipeError"))

    def test_a_renewed_certificate_is_served_without_a_restart(self):
        self.all_join()
        box, before = self.boxes["shop-1"], self.served("shop-1")
        self.clock.write_text("+61d\n")
        with self.at(61 * DAY):
            box.start_again()  # a task that waits for 60 days does not see the clock jump
            daemon = box.daemon.pid
            until(self.requests, "it does not renew", box.daemon, box.log_file)
            self.box("answer")
        until(lambda: self.served("shop-1") not in (None, before), "it shows the old certificate", box.daemon, box.log_file)
        self.assertEqual(box.daemon.pid, daemon)

    def test_doctor_and_join_say_what_hides_the_metrics(self):
        box = self.boxes["shop-1"]
        self.assertIn("serves metrics to the platform's Prometheus", box.doctor())
        config = box.root / "ledge.toml"
        text = config.read_text()
        config.write_text(re.sub(r', "https://[^"]*"', "", text))
        self.assertRegex(box.doctor(), r"http.listen is set in \S+ledge.toml:2")
        config.write_text(text + "[http.tls]\nself_signed = true\n")
        self.assertRegex(box.doctor(), r"http.tls.self_signed is set in \S+ledge.toml")
        box.run("config", "check")
        out = self.folder / "join files"
        self.box("add", "shop-9", "--metrics", "127.0.1.9", "--out", out)
        said = box.join(out / "shop-9.join", self.fingerprint, "--replace")
        self.assertIn("the platform's Prometheus cannot read the metrics of this box: http.tls.self_signed is set in", said)

    def test_a_port_that_another_program_has_is_refused_before_the_box_joins(self):
        with socket.create_server(("0.0.0.0", 0)) as other:
            port, out = other.getsockname()[1], self.folder / "join files"
            self.box("add", "shop-9", "--metrics", f"127.0.1.9:{port}", "--out", out)
            box = self.new_box("shop-9")
            (box.root / "ledge.toml").write_text("")
            before = box.tree()
            said = box.join(out / "shop-9.join", self.fingerprint, ends=1)
            self.assertIn(f"https://0.0.0.0:{port}, where the platform's Prometheus reads metrics, cannot be opened", said)
            self.assertEqual(box.tree(), before)
        box.join(out / "shop-9.join", self.fingerprint)
        self.assertIn("serves metrics to the platform's Prometheus", box.doctor())


if __name__ == "__main__":
    unittest.main()
