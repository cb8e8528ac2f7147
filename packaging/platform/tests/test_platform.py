"""The whole platform with the servers as `init` configures them: nginx with the repository, mosquitto with reports and hints, by mTLS."""
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as mqtt
from certificates import Authority
from logs import Log, Signer
from support import Kit, daemon_environment, document, installed, ledge, reported
from unittest import mock

from ledge_platform.site import configuration, machine
from ledge_platform.site.layout import Layout


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Platform(Kit):
    def setUp(self):
        super().setUp()
        self.tls = self.folder / "tls"
        self.tls.mkdir()
        self.authority = Authority(self.tls)
        self.authority.issue("server")
        self.contexts = {}
        self.port = free_port()

    def configured(self, write):
        """The configuration that WRITE makes of the folders of this test."""
        layout = Layout(self.folder / "site")
        layout.take({"name": "example", "domain": "localhost", "https_port": self.port, "mqtt_port": self.port})
        layout.tls, layout.ca = self.tls, self.authority.authority.folder
        (self.tls / "clients.pem").write_bytes(self.authority.file.read_bytes())
        for folder in (layout.etc, layout.run, layout.join, layout.box_files, layout.broker_state):
            folder.mkdir(parents=True)
        layout.repository.symlink_to(self.repo)
        self.boxes = layout.box_files
        path = self.folder / "server.conf"
        path.write_text(write(layout, machine.Users(layout)))
        layout.acl.write_text(configuration.acl())
        layout.acl.chmod(0o600)
        return path

    def serve(self, *command):
        program = installed(command[0])
        log = open(self.folder / f"{command[0]}.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([program, *map(str, command[1:])], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(process.wait, 10)
        self.addCleanup(process.terminate)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return process
            except OSError:
                self.assertIsNone(process.poll(), (self.folder / f"{command[0]}.log").read_text())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)

    def context(self, name):
        if name not in self.contexts:
            context = ssl.create_default_context(cafile=self.authority.file)
            if name:
                context.load_cert_chain(*self.authority.issue(name))
            self.contexts[name] = context
        return self.contexts[name]


class WebServer(Platform):
    def setUp(self):
        super().setUp()
        conf = self.configured(configuration.nginx)
        checked = subprocess.run([installed("nginx"), "-e", "stderr", "-t", "-q", "-c", conf], capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        self.nginx = self.serve("nginx", "-e", "stderr", "-c", conf)

    def get(self, path, name="box-1"):
        return urllib.request.urlopen(f"https://127.0.0.1:{self.port}/{path}", context=self.context(name), timeout=10)

    def test_boxes_get_what_is_signed_and_nobody_else_gets_anything(self):
        self.add(1)
        with self.get("metadata/timestamp.json") as answer:
            self.assertEqual(answer.headers["Cache-Control"], "no-cache")
            self.assertEqual(answer.read(), (self.repo / "metadata" / "timestamp.json").read_bytes())
        target = self.targets()["models/wine/1/model.onnx"]
        path = str(self.repository.place(target).relative_to(self.repo))
        with self.get(path) as answer:
            self.assertIn("immutable", answer.headers["Cache-Control"])
            self.assertEqual(answer.read(), b"weights 1")
        for hidden in ("staged/2.root.json", ".lock", "", "targets/"):
            with self.assertRaises(urllib.error.HTTPError, msg=hidden) as raised:
                self.get(hidden)
            self.assertIn(raised.exception.code, (403, 404))
            raised.exception.close()
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.get("metadata/timestamp.json", None)
        self.assertEqual(raised.exception.code, 400)
        raised.exception.close()

    def test_a_box_takes_updates_with_its_certificate_until_it_is_revoked(self):
        box = self.folder / "box"
        (box / "models").mkdir(parents=True)
        certificate, key = self.authority.issue("box-1")
        host = f"127.0.0.1:{self.port}"
        (box / "ledge.toml").write_text(
            f'[device]\nid = "box-1"\n[http]\nlisten = ["unix:{box}/ledge.sock"]\n'
            f'[updates]\nrepository = "https://{host}"\nroot_file = "{self.repo}/root.json"\n'
            f'[updates.tls]\nca_file = "{self.authority.file}"\ncertificate_file = "{certificate}"\nkey_file = "{key}"\n'
            f'[[egress.allow]]\nhost = "{host}"\nregion = "eu"\nsend = ["requests"]\n'
        )
        with open(self.folder / "ledge.log", "w") as log:
            daemon = subprocess.Popen([ledge(), "serve", "--root", box], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      env=daemon_environment())
        self.addCleanup(daemon.wait, 30)
        self.addCleanup(daemon.terminate)

        def checks(success):
            """Waits until the box finds the repository good, or not."""
            deadline = time.monotonic() + 60
            while True:
                done = subprocess.run([ledge(), "update", "check", "--root", box], capture_output=True, text=True,
                                      env=daemon_environment())
                if (done.returncode == 0) == success and (box / "ledge.sock").exists():
                    return done.stdout + done.stderr
                self.assertIsNone(daemon.poll(), (self.folder / "ledge.log").read_text())
                self.assertLess(time.monotonic(), deadline, done.stdout + done.stderr)
                time.sleep(0.1)

        checks(True)
        self.authority.revoke("box-1")
        self.nginx.send_signal(signal.SIGHUP)
        self.assertIn("the certificate of this box is revoked", checks(False))

    def test_a_revoked_box_gets_nothing_once_nginx_reads_the_list(self):
        for name in ("box-1", "box-2"):
            self.get("metadata/timestamp.json", name).close()
        self.authority.revoke("box-1")
        self.nginx.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.get("metadata/timestamp.json").close()
            except urllib.error.HTTPError as error:
                with error:
                    self.assertEqual((error.code, error.read()), (400, b"FAILED:certificate revoked"))
                break
            self.assertLess(time.monotonic(), deadline, "nginx still admits a revoked box")
            time.sleep(0.05)
        self.get("metadata/timestamp.json", "box-2").close()

    def ask(self, method, path, body=None, name="box-1"):
        """(status, body) of a request for something below /audit/, as one of the boxes makes it."""
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}/audit/{path}", data=body, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context(name), timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def test_a_box_writes_each_tile_of_its_own_log_once_and_its_checkpoint_again_and_again(self):
        for path in ("tile/0/000.p/7", "tile/0/000", "tile/entries/x001/x234/067", "tile/entries/000.p/255"):
            self.assertEqual(self.ask("GET", f"box-1/1/{path}")[0], 404, path)
            self.assertEqual(self.ask("PUT", f"box-1/1/{path}", b"first")[0], 201, path)
            self.assertEqual(self.ask("PUT", f"box-1/1/{path}", b"other")[0], 412, path)
            self.assertEqual(self.ask("GET", f"box-1/1/{path}"), (200, b"first"), path)
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"first")[0], 201)
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"other")[0], 204)
        self.assertEqual(self.ask("GET", "box-1/1/checkpoint"), (200, b"other"))
        self.assertEqual((self.boxes / "audit/box-1/1/checkpoint").read_bytes(), b"other")
        for method in ("DELETE", "MOVE", "COPY", "MKCOL", "POST", "PROPFIND"):
            self.assertIn(self.ask(method, "box-1/1/checkpoint")[0], (403, 405), method)
        self.assertEqual(self.ask("GET", "box-1/1/checkpoint"), (200, b"other"))

    def test_a_box_reaches_no_log_but_its_own_and_the_platform_reads_all(self):
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"mine")[0], 201)
        for path in ("box-1/1/checkpoint", "box-2/../box-1/1/checkpoint", "box%2d1/1/checkpoint"):
            for method, body in (("GET", None), ("HEAD", None), ("PUT", b"x"), ("DELETE", None)):
                self.assertEqual(self.ask(method, path, body, "box-2")[0], 403, (method, path))
        # The names of others hidden in parts of a name, or that begin alike.
        for name in ("box", "box-11", "xbox-1", "x,CN=box-1", "CN=box-1", "x\\,CN=box-1", "x+CN=box-1", "BOX-1"):
            self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"x", name)[0], 403, name)
        self.assertEqual(self.ask("GET", "box-1/1/checkpoint", None, "platform"), (200, b"mine"))
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"x", "platform")[0], 403)
        self.assertEqual(self.ask("GET", "box-1/1/checkpoint", None, None)[0], 400)
        self.assertEqual(self.ask("GET", "box-1/1/checkpoint"), (200, b"mine"))

    def test_the_platform_verifies_what_boxes_put_in_the_folder_and_over_https(self):
        state, certificate = self.folder / "audit", self.authority.issue("platform")
        logs = {device: Log(Signer(device)).grow(300) for device in ("box-1", "box-2")}
        for device, log in logs.items():
            for path, content in log.files().items():
                self.assertEqual(self.ask("PUT", f"{device}/1/{path}", content, device)[0], 201)
            self.done("audit", "enroll", device, log.signer.verifier_key, "--state", state)
        url = f"https://127.0.0.1:{self.port}/audit"
        https = ("audit", "verify", url, "--state", state, "--ca", self.authority.file)
        platform = ("--certificate", certificate[0], "--key", certificate[1])
        self.assertIn("2 boxes: 2 whole; 600 new records", self.done(*https, *platform))
        self.assertIn("2 boxes: 2 whole; 0 new", self.done("audit", "verify", self.boxes / "audit", "--state", state))
        for path, content in logs["box-1"].grow(400).files(300).items():
            self.ask("PUT", f"box-1/1/{path}", content)
        self.assertIn("100 new", self.done(*https, *platform, "--full"))
        (self.boxes / "audit/box-1/1/tile/entries/000").unlink()
        status, text = self.run_verb(*https, *platform, "--full")
        self.assertEqual(status, 3, text)
        self.assertIn("records 0 to 255 are not there", text)
        # What cannot be looked at is neither whole nor damaged.
        other = self.authority.issue("box-2")
        status, text = self.run_verb(*https, "--certificate", other[0], "--key", other[1], "--device", "box-1")
        self.assertEqual(status, 2, text)
        self.assertIn("HTTP status 403", text)

    def test_nothing_but_the_files_of_a_log_is_taken(self):
        for path in ("box-1/checkpoint", "box-1/0/checkpoint", "box-1/1/checkpoint2", "box-1/1/tile/0/0", "box-1/1/x",
                     "box-1/1/tile/entries/000.p/", "box-1/1/tile/0/../../../x", "box-1/1/", ".x/1/checkpoint"):
            self.assertIn(self.ask("PUT", path, b"x")[0], (403, 404, 405), path)
        self.assertEqual(self.ask("PUT", "box-1/1/tile/entries/000", bytes(18 << 20))[0], 413)
        self.assertEqual([path for path in self.boxes.rglob("*") if path.is_file()], [])

    def test_a_box_cannot_begin_logs_without_end(self):
        self.assertEqual(self.ask("PUT", "box-1/999/checkpoint", b"x")[0], 201)
        for path in ("box-1/1000/checkpoint", "box-1/9999999999/checkpoint", "box-1/1/tile/entries/x001/x001/x001/x001/000"):
            self.assertEqual(self.ask("PUT", path, b"x")[0], 404, path)

    def test_a_box_that_sends_file_after_file_is_slowed_down_and_one_that_floods_is_refused(self):
        began = time.monotonic()
        for number in range(12):
            self.assertEqual(self.ask("PUT", f"box-1/1/tile/0/{number:03}", b"x")[0], 201)
        self.assertGreater(time.monotonic() - began, 1.5)
        self.context("box-2")
        with ThreadPoolExecutor(60) as pool:
            answers = list(pool.map(lambda number: self.ask("PUT", f"box-2/1/tile/0/{number:03}", b"x", "box-2")[0], range(60)))
        self.assertGreater(answers.count(429), 5, answers)
        self.assertGreaterEqual(answers.count(201), 10, answers)
        self.assertEqual(set(answers), {201, 429})
        # What it reads is not counted, and other boxes go on.
        self.assertEqual({self.ask("GET", "box-2/1/tile/0/400", None, "box-2")[0] for _ in range(30)}, {404})
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"x")[0], 201)

    def test_a_box_over_its_quota_puts_nothing_until_there_is_room(self):
        quota = ("audit", "quota", self.boxes / "audit", "--most-gb", "0.0001", "--quiet")
        self.assertEqual(self.ask("PUT", "box-1/1/tile/entries/000", bytes(100_000))[0], 201)
        self.assertEqual(self.ask("PUT", "box-2/1/checkpoint", b"x", "box-2")[0], 201)
        status, text = self.run_verb(*quota)
        self.assertEqual((status, text), (1, "box-1: 0.000119 GB of 0.0001 GB: uploads are refused\n"))
        self.assertEqual(self.ask("PUT", "box-1/2/checkpoint", b"x")[0], 507)
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"x")[0], 507)
        self.assertEqual(self.ask("GET", "box-1/1/tile/entries/000")[0], 200)
        self.assertEqual(self.ask("PUT", "box-2/1/tile/0/000", b"x", "box-2")[0], 201)
        self.assertEqual(self.run_verb(*quota), (1, ""), "a timer says a thing once")
        (self.boxes / "audit/box-1/1/tile/entries/000").unlink()
        self.assertIn("box-1: 1.64e-05 GB of 0.0001 GB: uploads are taken again", self.done(*quota))
        self.assertEqual(self.ask("PUT", "box-1/1/checkpoint", b"x")[0], 201)


class BrokerAndFleet(Platform):
    def setUp(self):
        super().setUp()
        self.mosquitto = self.serve("mosquitto", "-c", self.configured(configuration.mosquitto))
        platform = self.authority.issue("platform")
        self.broker = (
            "--broker",
            f"mqtts://127.0.0.1:{self.port}",
            "--ca",
            self.authority.file,
            "--certificate",
            platform[0],
            "--key",
            platform[1],
        )

    def box(self, name):
        """A connected box, with what it hears."""
        heard, ready = [], threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        client.tls_set_context(self.context(name))
        client.will_set(f"ledge/v1/{name}/online", b"offline", 1, True)
        client.on_connect = lambda *_: client.subscribe(f"ledge/v1/{name}/desired", 1)
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = lambda _client, _data, message: heard.append(message.payload)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        self.assertTrue(ready.wait(10))
        client.publish(f"ledge/v1/{name}/online", b"online", 1, True).wait_for_publish(10)
        return client, heard

    def report(self, box, name, *words, **fields):
        box.publish(f"ledge/v1/{name}/reported", reported(name, *words, **fields), 1, True).wait_for_publish(10)

    def test_the_platform_sees_every_box_and_a_box_only_itself(self):
        first, _ = self.box("box-1")
        self.report(first, "box-1", "r-42", cause="golden")
        self.report(first, "box-2", "r-42", version=2)  # in another's name: the broker drops it
        text = self.done("fleet", "status", *self.broker)
        self.assertRegex(text, r"box-1 +default .* rolled back +golden at staged: .* online ")
        self.assertNotIn("box-2", text)
        devices = json.loads(self.done("fleet", "status", *self.broker, "--json"))
        self.assertEqual(
            [(device["device"], device["online"], device["subjects"][0]["cause"]) for device in devices],
            [("box-1", True, "golden")],
        )

    def test_a_revoked_box_does_not_connect_again_once_the_broker_reads_the_list(self):
        def connects(name):
            client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"{name}-again", protocol=mqtt.MQTTv5)
            client.tls_set_context(self.context(name))
            try:
                client.connect("127.0.0.1", self.port)
                # With TLS 1.3 the refusal comes after the handshake.
                while not client.is_connected():
                    if client.loop(timeout=10) != mqtt.MQTT_ERR_SUCCESS:
                        return False
            except (ssl.SSLError, OSError):
                return False
            client.disconnect()
            return True

        self.assertTrue(connects("box-1") and connects("box-2"))
        self.authority.revoke("box-1")
        self.mosquitto.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while connects("box-1"):
            self.assertLess(time.monotonic(), deadline, "the broker still admits a revoked box")
            time.sleep(0.05)
        self.assertTrue(connects("box-2"))

    def test_the_keys_that_boxes_report_are_pinned(self):
        keys, boxes = {name: Signer(name).verifier_key for name in ("box-1", "box-2")}, {}
        for name, key in keys.items():
            boxes[name], _ = self.box(name)
            report = {**document(name), "audit": {"verifier_key": key}}
            boxes[name].publish(f"ledge/v1/{name}/reported", json.dumps(report), 1, True).wait_for_publish(10)
        state = ("--state", self.folder / "audit")
        self.assertEqual(self.done("audit", "enroll", "box-1", *self.broker, *state), "box-1: enrolled\n")
        self.assertIn("box-2: enrolled", self.done("audit", "enroll", *self.broker, *state))
        self.assertIn(keys["box-2"], self.done("audit", "keys", *state))
        report = {**document("box-1"), "audit": {"verifier_key": Signer("box-1").verifier_key}}
        boxes["box-1"].publish("ledge/v1/box-1/reported", json.dumps(report), 1, True).wait_for_publish(10)
        status, text = self.run_verb("audit", "enroll", *self.broker, *state)
        self.assertEqual(status, 1, text)
        self.assertIn("box-1 has another key than the one that is pinned", text)
        self.assertIn("box-2: already enrolled", text)
        self.failed("box-3 reports no key", "audit", "enroll", "box-3", *self.broker, *state)

    def test_what_is_no_report_is_left_out_and_said(self):
        first, _ = self.box("box-1")
        first.publish("ledge/v1/box-1/reported", b"nonsense", 1, True).wait_for_publish(10)
        self.assertIn("what box-1 reported is left out", self.done("fleet", "status", *self.broker))

    def test_boxes_are_told_that_there_is_news(self):
        first, heard = self.box("box-1")
        self.report(first, "box-1")
        self.assertIn("1 boxes told", self.done("hint", self.repo, *self.broker))
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([json.loads(payload) for payload in heard], [{"ts_version": 1}])

    def test_a_failing_rollout_is_paused_and_published_and_told(self):
        self.add(1)
        self.start("r-42")
        served = self.folder / "served"
        self.done("publish", self.repo, served)
        boxes = {f"box-{number}": self.box(f"box-{number}") for number in range(5)}
        watch = ("watch", self.repo, "--rollout", "r-42", "--keys", self.online, *self.broker, "--publish", served)
        names = list(boxes)
        for name in names[:2]:
            self.report(boxes[name][0], name, "r-42", cause="golden")
        self.assertIn("2 tried: 0 committed, 2 failed", self.done(*watch, "--once"))
        with mock.patch("ledge_platform.watching.LOOK_EVERY_S", 0.05):
            late = threading.Timer(0.5, self.report, (boxes[names[2]][0], names[2], "r-42"), {"cause": "latency"})
            late.start()
            status, text = self.run_verb(*watch)
            late.join()
        self.assertEqual(status, 1, text)
        self.assertIn("PAUSED rollout r-42 of fleet default: 3 of 3 boxes that tried it failed", text)
        self.assertIn("2 x golden, such as box-", text)
        self.assertTrue(self.manifest()["rollouts"][0]["paused"])
        self.assertIn("(paused)", self.done("verify", served))
        version = self.repository.load("timestamp").signed.version
        deadline = time.monotonic() + 10
        while not boxes[names[0]][1] and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(json.loads(boxes[names[0]][1][-1]), {"ts_version": version})
        shutil.rmtree(served)  # as if the publication had failed
        self.assertIn("nothing to watch", self.done(*watch))
        self.assertIn("(paused)", self.done("verify", served))

    def test_the_page_is_written_by_hand_and_by_the_watcher_until_it_pauses(self):
        self.add(1)
        self.start("r-42")
        page, state = self.folder / "page", ("--state", self.folder / "audit")
        boxes = {f"box-{number}": self.box(f"box-{number}") for number in range(3)}
        for name in boxes:
            self.report(boxes[name][0], name, "r-42", stage="canary")
        boxes["box-0"][0].publish("ledge/v1/box-0/reported", b"nonsense", 1, True).wait_for_publish(10)

        def shown():
            return json.loads((page / "fleet.json").read_text())

        text = self.done("page", self.repo, page, *self.broker, *state)
        self.assertEqual(text, f"{page / 'index.html'} shows 3 boxes\n")
        self.assertEqual(shown()["by"], "hand")
        told = {box["device"]: [finding["text"] for finding in box["findings"]] for box in shown()["boxes"]}
        self.assertIn("its last report is left out", told["box-0"][0])
        self.assertEqual(shown()["rollouts"][0]["counts"]["tried"], 2)
        self.assertEqual(self.done("page", self.repo, page, *self.broker, *state, "--quiet"), "")

        watch = ("watch", self.repo, "--rollout", "r-42", "--keys", self.online, *self.broker, "--page", page, *state)
        self.done(*watch, "--once")
        self.assertEqual((shown()["by"], shown()["rollouts"][0]["state"]), ("watch", "running"))
        for name in boxes:
            self.report(boxes[name][0], name, "r-42", cause="golden")
        status, text = self.run_verb(*watch)
        self.assertEqual(status, 1, text)
        rollout, = shown()["rollouts"]
        self.assertEqual((rollout["state"], rollout["counts"]["failed"]), ("paused", 3))
        self.assertIn("3 of 3 boxes that tried it failed", rollout["reason"])

    def test_a_page_that_cannot_be_written_keeps_no_rollout_from_being_paused(self):
        self.add(1)
        self.start("r-42")
        for number in range(3):
            client, _ = self.box(f"box-{number}")
            self.report(client, f"box-{number}", "r-42", cause="golden")
        page = self.folder / "page"
        page.write_text("a file in the place of the folder")
        status, text = self.run_verb(
            "watch", self.repo, "--rollout", "r-42", "--keys", self.online, *self.broker, "--page", page)
        self.assertEqual(status, 1, text)
        self.assertIn("the page cannot be written: FileExistsError", text)
        self.assertIn("PAUSED rollout r-42", text)

    def test_boxes_that_die_during_the_trial_pause_the_rollout(self):
        self.add(1)
        self.start("r-42")
        for number in range(3):
            name = f"box-{number}"
            client, _ = self.box(name)
            self.report(client, name, "r-42", stage="staged")
            client._sock.shutdown(socket.SHUT_RDWR)  # no orderly end: the broker tells the last will
            client.loop_stop()
        status, text = self.run_verb(
            "watch", self.repo, "--rollout", "r-42", "--keys", self.online, *self.broker, "--silent-after", "0s"
        )
        self.assertEqual(status, 1, text)
        self.assertIn("3 of 3 boxes that tried it fell silent", text)

    def test_a_broker_that_refuses_is_told(self):
        stranger = self.authority.issue("stranger")
        status, text = self.run_verb(
            "fleet", "status", *self.broker[:4], "--certificate", stranger[0], "--key", stranger[1]
        )
        self.assertEqual(
            (status, text.count("box-")), (0, 0), text
        )  # mosquitto grants the subscription, and sends nothing
        self.failed("cannot be reached", "fleet", "status", "--broker", f"mqtt://127.0.0.1:{free_port()}")
        self.failed("without TLS only within this machine", "fleet", "status", "--broker", "mqtt://broker.example.com")


if __name__ == "__main__":
    unittest.main()
