"""A platform below a temporary folder, with its nginx and its broker on this machine's loopback."""
import http.client
import socket
import ssl
import subprocess
import time
from pathlib import Path
from unittest import mock

import paho.mqtt.client as mqtt
from support import Verbs, installed

from ledge_platform.certificates.authority import Authority
from ledge_platform.site import machine
from ledge_platform.site.layout import Layout

LIMIT_S = 30


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def until(true, what, process=None, log=None):
    """Waits for a state."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        if process and process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{what}: {Path(log).read_text() if log else ''}")
        time.sleep(0.02)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Site(Verbs):
    """`init` was run, and nothing started yet."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.ports = free_port(), free_port()
        self.init()
        self.layout = Layout.open(self.root)
        self.servers = {}

    def init(self, *more, ends=0):
        status, text = self.run_verb(
            "init", "example", "--domain", "localhost", "--root", self.root, "--plain", "--address", "127.0.0.1",
            "--https-port", self.ports[0], "--mqtt-port", self.ports[1], *more)
        self.assertEqual(status, ends, text)
        return text

    def start(self, name):
        words = {
            "nginx": [installed("nginx"), "-e", "stderr", "-c", self.layout.nginx_conf],
            "mosquitto": [installed("mosquitto"), "-c", self.layout.mosquitto_conf],
        }[name]
        port, path = self.ports[name == "mosquitto"], self.folder / f"{name}.log"
        with open(path, "a") as log:
            process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.servers[name] = process
        self.addCleanup(self.stop, name)
        until(lambda: answers(port), f"{name} does not answer", process, path)

    def stop(self, name):
        process = self.servers.pop(name, None)
        if process:
            process.terminate()
            process.wait(LIMIT_S)

    def stand_in_for_systemctl(self):
        """A systemctl that does with the servers of this test what systemd would do."""
        folder = self.folder / "stand-in"
        folder.mkdir(exist_ok=True)
        broker = self.servers["mosquitto"].pid
        script = folder / "systemctl"
        script.write_text(f"""#!/bin/sh
echo "$*" >> {folder}/said
case "$*" in
  "is-active --quiet "*) exit 0;;
  "reload ledge-platform-web.service") exec {installed("nginx")} -e stderr -c {self.layout.nginx_conf} -s reload;;
  "reload ledge-platform-broker.service") exec kill -HUP {broker};;
  "restart ledge-platform-broker.service") exec kill -TERM {broker};;  # the test starts it again
esac
exit 4
""")
        script.chmod(0o755)
        patched = mock.patch("ledge_platform.site.machine.PATH", f"{folder}:{machine.PATH}")
        patched.start()
        self.addCleanup(patched.stop)

    def said_to_systemctl(self):
        said = self.folder / "stand-in" / "said"
        lines = said.read_text().splitlines() if said.exists() else []
        said.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("is-active")]

    def issue(self, name):
        """The files of a client certificate of this platform."""
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain, key = Authority.open(self.layout.ca).issue(name, again=True)
        for file, content in zip(files, (chain, key)):
            file.write_bytes(content)
        return files

    def context(self, identity=None):
        context = ssl.create_default_context(cafile=self.layout.ca / "root.pem")
        if identity:
            context.load_cert_chain(*identity)
        return context

    def connect(self, identity=None):
        """A connection to nginx that stays open."""
        return http.client.HTTPSConnection("localhost", self.ports[0], timeout=LIMIT_S, context=self.context(identity))

    def ask(self, path, identity=None, method="GET", body=None):
        """(status, body, headers) of one request."""
        connection = self.connect(identity)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()


class Client:
    """A client of the broker that does not connect again by itself."""

    def __init__(self, site, identity):
        self.up, self.client = None, mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        self.client.tls_set_context(site.context(identity))
        self.client.on_connect = lambda *_: setattr(self, "up", True)
        self.client.on_disconnect = lambda *_: setattr(self, "up", False)
        try:
            self.client.connect("localhost", site.ports[1])
            self.client.loop_start()
            until(lambda: self.up is not None, "the broker does not answer")
        except (OSError, ssl.SSLError):
            self.up = False

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()
