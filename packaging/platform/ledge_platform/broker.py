"""The MQTT broker: what boxes report, and the hint that makes them look for news at once."""
import json
import os
import ssl
import threading
import time
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt

from . import names, reports
from .errors import Failure

QUIET_S = 1.0  # no retained message for so long: all of them have come


class Broker:
    """A connection, and every box that was heard of."""

    def __init__(self, url, ca=None, certificate=None, key=None, user=None, clock=time.monotonic):
        address = urlsplit(url)
        if address.scheme not in ("mqtt", "mqtts") or not address.hostname or address.path not in ("", "/"):
            raise Failure(f"{url!r} is no broker: write mqtts://HOST[:PORT], or mqtt:// within this machine")
        tls = address.scheme == "mqtts"
        if not tls and address.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise Failure(f"{url}: without TLS only within this machine; use mqtts://")
        self.host, self.port = address.hostname, address.port or (8883 if tls else 1883)
        self.devices, self.complaints, self.clock = {}, {}, clock
        self.lock, self.changed, self.heard_at = threading.Lock(), threading.Event(), None
        self.connected, self.error, self.granted = threading.Event(), None, threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        if tls:
            self.set_tls(client, ca, certificate, key)
        if user:
            client.username_pw_set(user, os.environ.get("LEDGE_PLATFORM_MQTT_PASSWORD"))
        client.on_connect, client.on_connect_fail = self.on_connect, self.on_connect_fail
        client.on_message, client.on_subscribe = self.on_message, self.on_subscribe
        self.client = client

    def set_tls(self, client, ca, certificate, key):
        try:
            context = ssl.create_default_context(cafile=ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if certificate:
                context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise Failure(f"the certificates for the broker cannot be used: {error}") from None
        client.tls_set_context(context)

    def __enter__(self):
        try:
            self.client.connect(self.host, self.port, keepalive=30)
        except (OSError, ValueError) as error:
            raise Failure(f"{self.host}:{self.port} cannot be reached: {error}") from None
        self.client.loop_start()
        if not self.connected.wait(15) or self.error:
            self.__exit__()
            raise Failure(f"{self.host}:{self.port}: {self.error or 'no answer within 15 s'}")
        if not self.granted.wait(15) or self.error:
            self.__exit__()
            raise Failure(f"{self.host}:{self.port}: {self.error or 'no answer to the subscription within 15 s'}")
        return self

    def __exit__(self, *_):
        self.client.disconnect()
        self.client.loop_stop()

    def on_connect(self, client, _data, _flags, reason, _properties):
        if reason.is_failure:
            self.error = f"the broker refuses the connection: {reason}"
        else:
            client.subscribe([("ledge/v1/+/reported", 1), ("ledge/v1/+/online", 1)])
        self.connected.set()

    def on_connect_fail(self, _client, _data):
        self.error = "the connection failed"
        self.connected.set()

    def on_subscribe(self, _client, _data, _mid, reasons, _properties):
        if any(reason.is_failure for reason in reasons):
            self.error = (
                "the broker does not let this client read ledge/v1/+/reported and ledge/v1/+/online: see its ACL"
            )
        self.heard_at = time.monotonic()
        self.granted.set()

    def on_message(self, _client, _data, message):
        _, _, device, kind = message.topic.split("/")
        with self.lock:
            self.heard_at = time.monotonic()
            self.take(device, kind, message.payload)
        self.changed.set()

    def take(self, device, kind, payload):
        if not payload:  # somebody removed what was retained
            if kind == "reported":
                self.devices.pop(device, None)
            return
        known = self.devices.setdefault(device, reports.Device(device))
        if kind == "online":
            known.set_online(payload == b"online", self.clock())
            return
        try:
            known.apply(reports.parse(payload))
            self.complaints.pop(device, None)
        except Failure as failure:
            self.complaints[device] = str(failure)

    def gather(self, longest_s=15.0):
        """Waits until the retained messages have come."""
        end = time.monotonic() + longest_s
        while (now := time.monotonic()) < min(end, self.heard_at + QUIET_S):
            time.sleep(max(0.0, min(end, self.heard_at + QUIET_S) - now))
        with self.lock:
            return list(self.devices.values())

    def snapshot(self):
        with self.lock:
            return list(self.devices.values())

    def hint(self, devices, timestamp_version):
        """Notifies boxes of news. Retained: a box that is away gets it when it comes back."""
        payload = json.dumps({"ts_version": timestamp_version}).encode()
        sent = [self.client.publish(f"ledge/v1/{names.name(device, 'device')}/desired", payload, qos=1, retain=True)
                for device in sorted(devices)]
        end = time.monotonic() + 30
        while any(not message.is_published() for message in sent):
            if time.monotonic() > end:
                raise Failure(
                    "the broker did not take the hints within 30 s; boxes will see the news "
                    "when they look by themselves"
                )
            time.sleep(0.02)
        return len(sent)
