"""paho-mqtt with MQTT 5 against a running box: JSON, binary tensors, a photograph, deadlines, priorities, many at once.

usage: paho_calls.py PORT PHOTO      (the models add_sub and efficientnet_lite0 of the box `box`; the broker on PORT)"""

import json
import queue
import sys

import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

LIMIT = 60


class Caller:
    """Calls models and waits for their answers, which it knows by their correlation data."""

    def __init__(self, port):
        self.answers, self.granted, self.sent = queue.Queue(), queue.Queue(), 0
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="paho", protocol=mqtt.MQTTv5)
        self.client.on_connect = lambda client, *_: client.subscribe("answers/paho", qos=1)
        self.client.on_subscribe = lambda *_: self.granted.put(True)
        self.client.on_message = lambda _client, _data, message: self.answers.put(message)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.granted.get(timeout=LIMIT)

    def send(self, model, payload, content_type=None, expiry=None, user=()):
        """Publishes a request and returns its correlation data."""
        self.sent += 1
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = "answers/paho"
        properties.CorrelationData = b"\x00call \xff%d" % self.sent
        if content_type:
            properties.ContentType = content_type
        if expiry:
            properties.MessageExpiryInterval = expiry
        properties.UserProperty = list(user)
        self.client.publish(f"ledge/v1/box/infer/{model}", payload, qos=1, properties=properties)
        return properties.CorrelationData

    def receive(self):
        message = self.answers.get(timeout=LIMIT)
        return message.properties.CorrelationData, message, dict(message.properties.UserProperty)

    def call(self, *arguments, **options):
        """One request and its answer."""
        correlation = self.send(*arguments, **options)
        got, message, user = self.receive()
        assert got == correlation, (got, correlation)
        assert user["device"] == "box", user
        return message, user

    def end(self):
        self.client.disconnect()
        self.client.loop_stop()


def request(number, **more):
    rows = {"INPUT0": [float(number)] * 16, "INPUT1": [1.0] * 16}
    inputs = [{"name": name, "datatype": "FP32", "shape": [1, 16], "data": row} for name, row in rows.items()]
    return json.dumps({"id": str(number), "inputs": inputs, **more})


def check(message, user, number):
    assert user["status"] == "200", (user, message.payload)
    answer = json.loads(message.payload)
    assert answer["id"] == str(number) and answer["outputs"][0]["data"] == [number + 1.0] * 16, answer


def binary(caller):
    values = [np.arange(16, dtype="<f4"), np.ones(16, "<f4")]
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    message, user = caller.call(
        "add_sub", header + b"".join(value.tobytes() for value in values), content_type="application/octet-stream",
        user=[("inference-header-content-length", str(len(header)))])
    assert user["status"] == "200" and message.properties.ContentType == "application/octet-stream", (user, message.payload)
    length = int(user["inference-header-content-length"])
    names = [output["name"] for output in json.loads(message.payload[:length])["outputs"]]
    tensors = np.frombuffer(message.payload[length:], "<f4").reshape(len(names), 16)
    np.testing.assert_array_equal(tensors[names.index("OUTPUT0")], values[0] + values[1])
    np.testing.assert_array_equal(tensors[names.index("OUTPUT1")], values[0] - values[1])


def main(port, photo):
    caller = Caller(int(port))
    check(*caller.call("add_sub", request(1), content_type="application/json"), 1)
    check(*caller.call("add_sub", request(2), expiry=60), 2)
    for priority in ("interactive", "batch", "1", "5"):
        check(*caller.call("add_sub", request(3), user=[("priority", priority)]), 3)
    message, user = caller.call("add_sub", request(4), user=[("priority", "soon")])
    assert user["status"] == "400" and "priority" in json.loads(message.payload)["error"], (user, message.payload)
    binary(caller)
    with open(photo, "rb") as file:
        message, user = caller.call("efficientnet_lite0", file.read(), content_type="image/jpeg")
    assert user["status"] == "200" and "cat" in json.loads(message.payload)["labels"][0]["label"], message.payload

    numbers = {caller.send("add_sub", request(number)): number for number in range(1_000)}
    while numbers:
        correlation, message, user = caller.receive()
        check(message, user, numbers.pop(correlation))
    caller.end()
    print("ok")


main(*sys.argv[1:])
