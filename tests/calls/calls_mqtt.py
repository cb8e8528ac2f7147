"""Calls over MQTT 5 and 3.1.1, bindings, and the messages of the box about itself."""
import itertools
import json

from box import model_folder
from brokers import Client
from calls_infer import PHOTOS, one, sums
from recording import shortened
from tensors import binary, tensor

ASK, ONLINE, REPORTED = "ledge/v1/box/infer/", "ledge/v1/box/online", "ledge/v1/box/reported"


class Messages:
    """Messages to the box, each recorded with its answer."""

    def __init__(self, calls, client, topic):
        self.calls, self.client, self.topic, self.number = calls, client, topic, 0
        client.subscribe(topic)

    def __call__(self, name, topic, payload, answer_topic=None, user=(), qos=1, retain=False, **properties):
        """Publishes and waits for the answer: the one with the correlation data of the request, else the next message."""
        payload = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        if answer_topic:
            self.client.subscribe(answer_topic)
        told = [f"{key}: {value}" for key, value in [*sorted(properties.items()), *user]]
        self.client.publish(topic, payload, qos=qos, retain=retain, user=user, **properties)
        secret = [word if "ledge_" not in word else "authorization: ..." for word in told]
        words = [f"MQTT {topic}", f"QoS {qos}", "retained" if retain else "", *secret, shortened(payload)]
        told, correlation = " | ".join(filter(None, words)), properties.get("CorrelationData")
        for number in itertools.count(1):
            message = self.client.receive()
            if correlation is None or ("CorrelationData", correlation.hex()) in message.properties:
                break
            self.record(f"{name}: message {number} before the answer", told, message)
        self.record(name, told, message)

    def ask(self, name, model, payload, **more):
        """A request with a response topic and correlation data."""
        self.number += 1
        correlation = b"call %d" % self.number
        return self(name, ASK + model, payload, ResponseTopic=self.topic, CorrelationData=correlation, **more)

    def record(self, name, told, message):
        normalizer, user = self.calls.normalizer, dict(message.user)
        body = normalizer.body(told, message.payload)
        headers = [["topic", message.topic], ["qos", str(message.qos)], ["retain", str(message.retain)]]
        headers += normalizer.headers(told, [*message.properties, *message.user])
        status = int(user["status"]) if "status" in user else status_of(message.payload)
        self.calls.recording.add(f"{self.calls.box.name}: {name}", told, status, headers, body)


def status_of(payload):
    """The status in the body of an error, for clients of 3.1.1."""
    try:
        document = json.loads(payload)
    except ValueError:
        return None
    return document.get("status") if isinstance(document, dict) else None


def requests(messages):
    ask = messages.ask
    ask("MQTT: JSON", "add_sub", sums(id="1"), ContentType="application/json")
    ask("MQTT: QoS 0", "add_sub", sums(), qos=0)
    ask("MQTT: retained", "add_sub", sums(), retain=True)
    ask("MQTT: a version", "versions/versions/1", sums())
    ask("MQTT: an expiry", "add_sub", sums(), MessageExpiryInterval=60)
    ask("MQTT: a cache", "cached", sums(3))
    ask("MQTT: the cache again", "cached", sums(3))
    ask("MQTT: entities", "wine", {"entities": {"wine_id": ["barolo"]}})
    for priority in ("interactive", "batch", "5", "soon"):
        ask(f"MQTT: priority {priority}", "add_sub", sums(), user=[("priority", priority)])
    body, length = binary([tensor("IN", "FP32", [1, 2], [0.1, 2.0])], parameters={"binary_data_output": True})
    ask("MQTT: binary", "identity_fp32", body, user=[("inference-header-content-length", str(length))])
    for name, wrong in (("beyond it", "9999"), ("that is none", "x")):
        user = [("inference-header-content-length", wrong)]
        ask(f"MQTT: binary with a length {name}", "identity_fp32", body, user=user)
    chelsea = (PHOTOS / "chelsea.jpg").read_bytes()
    ask("MQTT: a photograph", "efficientnet_lite0", chelsea, ContentType="image/jpeg")
    ask("MQTT: a photograph without a type", "efficientnet_lite0", chelsea)
    ask("MQTT: a photograph for a model without pictures", "add_sub", chelsea)
    ask("MQTT: a photograph of JSON's type", "efficientnet_lite0", chelsea, ContentType="application/json")
    shop = "ledge/v1/shop/"
    messages("MQTT: a group", f"{shop}infer/add_sub", sums(id="shop"), answer_topic=f"{shop}result/add_sub")
    messages("MQTT: no response topic", f"{ASK}add_sub", sums(id="result"), answer_topic="ledge/v1/box/result/add_sub")


def refused(messages):
    ask = messages.ask
    for name, model, payload in (
            ("no JSON", "add_sub", b"hello"),
            ("empty", "add_sub", b""),
            ("no inputs", "add_sub", b'{"id":"x"}'),
            ("a wrong shape", "add_sub", one(id="y")),
            ("an unknown model", "nobody", sums(id="7")),
            ("an unknown version", "add_sub/versions/9", sums()),
            ("a version that is none", "add_sub/versions/x", sums()),
            ("a topic that is none", "add_sub/x", sums()),
            ("a broken model", "broken_png", sums()),
            ("a failed run", "bad_at_runtime", one(data=[1.0, -1.0, 1.0, 1.0])),
            ("too large", "add_sub", b" " * 70000),
            ("limited", "limited", sums(id="again")),
    ):
        ask(f"MQTT refused: {name}", model, payload)
    keys = messages.calls.box.keys
    for name, key in (
            ("infer", keys["infer"]),
            ("viewer", keys["viewer"]),
            ("revoked", keys["revoked"]),
            ("one-model", keys["one-model"]),
            ("none", "x"),
    ):
        ask(f"MQTT key: {name}", "wine_mlp", b"{}", user=[("authorization", f"Bearer {key}")])


def unanswered(messages):
    """Messages without an answer: the next message is the answer to a valid request after them."""
    for name, more in {
            "an answer": {"user": [("status", "200")]},
            "a response topic of the box": {"ResponseTopic": ONLINE},
            "a response topic for requests": {"ResponseTopic": f"{ASK}add_sub"},
            "a response topic of the broker": {"ResponseTopic": "$SYS/x"},
    }.items():
        messages.client.publish(f"{ASK}add_sub", sums(id=name), **{"ResponseTopic": messages.topic, **more})
        messages.ask(f"MQTT without an answer: {name}, and then a good one", "add_sub", sums(id="good"))
    messages.client.publish(f"{ASK}add_sub/x", sums(id="no model"))
    messages.ask("MQTT without an answer: no model, no response topic, and then a good one", "add_sub", sums(id="good"))


def bindings(messages):
    rest = [2.14, 11.2, 100, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4, 1050]
    analysis = {"alcohol": 13.2, "acids": {"malic": 1.78}, "rest": rest}
    cellar = "cellar/1/probabilities"
    messages("binding: rows", "cellar/1/analysis", analysis, answer_topic=cellar)
    messages("binding: a missing field", "cellar/1/analysis", {"alcohol": 1})
    messages("binding: no JSON", "cellar/1/analysis", b"hello")
    messages("binding: a text among the numbers", "cellar/1/analysis", {**analysis, "alcohol": "x"})
    messages("binding: too few numbers", "cellar/1/analysis", {**analysis, "rest": []})
    red = (model_folder("quantized_colours") / "red.png").read_bytes()
    messages("binding: a photograph", "cameras/door/snapshot", red, answer_topic="vision/door/label")
    messages("binding: a photograph that is cut", "cameras/door/snapshot", red[:40])
    row = {"analysis": [13.2, 1.78, 2.14, 11.2, 100, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4], "proline": 1050}
    messages("binding: push, then score", "lab/barolo-3/rows", row, answer_topic="lab/barolo-3/answer")
    messages("binding: push of a wrong row", "lab/barolo-3/rows", {"analysis": "x"})
    messages("binding: push without a column", "lab/barolo-3/rows", {"proline": 7})


def older(calls, broker):
    """Clients of 3.1.1: no properties."""
    with Client(broker.port, "older", version=3) as client:
        messages = Messages(calls, client, "ledge/v1/box/result/+")
        messages("MQTT 3.1.1: JSON", f"{ASK}add_sub", sums(id="old"))
        messages("MQTT 3.1.1: an error", f"{ASK}add_sub", b'{"id":"old error"}')
        messages("MQTT 3.1.1: an unknown model", f"{ASK}nobody", sums(id="old unknown"))
        messages("MQTT 3.1.1: a photograph", f"{ASK}efficientnet_lite0", (PHOTOS / "chelsea.jpg").read_bytes())


def presence(calls, broker):
    """The retained messages while the box is connected. Before any call, so that the report counts none."""
    with Client(broker.port, "watcher") as client:
        messages = Messages(calls, client, ONLINE)
        while (message := client.receive()).payload != b"online":
            pass  # a message of an earlier box
        message.retain = "either"  # it may have been published before or after this client connected
        messages.record("presence", f"MQTT subscription to {ONLINE}", message)
        client.subscribe(REPORTED)
        while b'"checkpoint":null' in (report := client.receive()).payload:
            pass  # the audit log has not begun yet, so another report follows
        report.retain = "either"
        messages.record("report", f"MQTT subscription to {REPORTED}", report)


def absence(calls, broker):
    """The retained messages after the box has stopped."""
    with Client(broker.port, "watcher") as client:
        messages = Messages(calls, client, ONLINE)
        messages.record("absence", f"MQTT subscription to {ONLINE}", client.receive())


def all_calls(calls, broker):
    with Client(broker.port, "caller") as client:
        messages = Messages(calls, client, "answers/caller")
        for group in (requests, refused, unanswered, bindings):
            group(messages)
    older(calls, broker)
