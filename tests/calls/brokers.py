"""Mosquitto on a free loopback port, and a client of it for MQTT 5 and 3.1.1."""
import os
import queue
import shutil
import socket
import subprocess
import sys
import time

from box import COMMAND_TIMEOUT_S, Failure, setup_root

START_ATTEMPTS = 5

# Answers take far less.
ANSWER_TIMEOUT_S = 30


def paho():
    """The client library of the set-up of the tests."""
    packages = str(setup_root() / "tools" / "python-test")
    if packages not in sys.path:
        sys.path.insert(0, packages)
    import paho.mqtt.client
    import paho.mqtt.packettypes
    import paho.mqtt.properties
    import paho.mqtt.subscribeoptions
    return paho.mqtt


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Broker:
    """A broker without persistence. A `with` block stops it at its end."""

    def __init__(self, folder):
        paths = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        self.program, self.folder = shutil.which("mosquitto", path=paths), folder
        if not self.program:
            raise Failure("mosquitto is not installed: tests/peers/setup installs it")

    def __enter__(self):
        for _ in range(START_ATTEMPTS):  # another process may take the port before the broker does
            self.port = free_port()
            self.process = self._start()
            if self._listens():
                return self
            self.__exit__()
        raise Failure("the broker did not start:\n" + (self.folder / "mosquitto.log").read_text())

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _start(self):
        lines = [
            f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence false", "set_tcp_nodelay true",
            "max_queued_messages 100000", "max_inflight_messages 1000"]
        if os.geteuid() == 0:
            lines.append("user root")  # else it becomes the user `mosquitto`, who may not read the folder
        settings = self.folder / "mosquitto.conf"
        settings.write_text("\n".join(lines) + "\n")
        with open(self.folder / "mosquitto.log", "w") as log:
            return subprocess.Popen(
                [self.program, "-c", settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _listens(self):
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if " running" in (self.folder / "mosquitto.log").read_text():
                return True
            time.sleep(0.01)
        return False


class Message:
    """A received message: its topic, its properties in their order, and its payload."""

    def __init__(self, message):
        self.topic, self.payload, self.qos, self.retain = message.topic, message.payload, message.qos, message.retain
        found = message.properties.json() if getattr(message, "properties", None) else {}
        user = found.pop("UserProperty", [])
        self.properties = sorted((name, str(value)) for name, value in found.items())
        self.user = [tuple(pair) for pair in user]


class Client:
    """A client of the broker. A `with` block disconnects it at its end."""

    def __init__(self, port, name, version=5):
        self.mqtt, self.version = paho(), version
        client = self.mqtt.client
        protocol = client.MQTTv5 if version == 5 else client.MQTTv311
        self.messages, self.connected, self.granted = queue.Queue(), queue.Queue(), queue.Queue()
        self.client = client.Client(client.CallbackAPIVersion.VERSION2, client_id=name, protocol=protocol)
        self.client.on_connect = lambda *_: self.connected.put(True)
        self.client.on_subscribe = lambda *_: self.granted.put(True)
        self.client.on_message = lambda _client, _data, message: self.messages.put(Message(message))
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.connected.get(timeout=COMMAND_TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic):
        self.client.subscribe(topic, qos=1)
        self.granted.get(timeout=COMMAND_TIMEOUT_S)

    def publish(self, topic, payload, qos=1, retain=False, user=(), **properties):
        """Publishes; PROPERTIES are named as in paho, such as ResponseTopic."""
        if self.version != 5:
            self.client.publish(topic, payload, qos=qos, retain=retain)
            return
        made = self.mqtt.properties.Properties(self.mqtt.packettypes.PacketTypes.PUBLISH)
        for name, value in properties.items():
            setattr(made, name, value)
        if user:
            made.UserProperty = list(user)
        self.client.publish(topic, payload, qos=qos, retain=retain, properties=made)

    def receive(self):
        """The next message."""
        try:
            return self.messages.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise Failure(f"no message arrived over MQTT within {ANSWER_TIMEOUT_S} s") from None
