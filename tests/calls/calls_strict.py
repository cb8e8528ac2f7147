"""A box with TLS, batch windows, quotas, an encrypted feature store, and a broker with MQTT 3.1.1."""
from brokers import Client
from calls_infer import JSON_BODY, PHOTOS, sums
from calls_features import LONG_AGO
from calls_mqtt import ASK, Messages
from web import request

BATCH = [JSON_BODY, ("x-ledge-priority", "batch")]


def tls(calls):
    calls.get("TLS: metadata", "/v2", over="tls")
    calls.get("TLS: another host", "/v2", over="tls", host="evil.example")
    calls.get("TLS: metrics", "/metrics", over="tls")
    calls.raw("TLS: a call without it", request("GET", "/v2"), port=calls.box.port_of("https"))


def sealed(calls):
    """Features that are encrypted on the disk."""
    rows = {"driver_id": [1, 2], "rate": [0.5, 0.25], "event_timestamp": [LONG_AGO] * 2}
    calls.post("sealed: push", "/push", {"push_source_name": "driver_push", "df": rows})
    asked = {"features": ["drivers:rate"], "entities": {"driver_id": [1, 2, 3]}}
    calls.post("sealed: read", "/get-online-features", asked)
    calls.get("sealed: backup without a recipient", "/features/backup")
    plain = calls.get("sealed: plain backup", "/features/backup?plain=true")
    calls.post("sealed: erase", "/features/erase", {"entity": {"driver_id": 2}})
    calls.post("sealed: read after the erasure", "/get-online-features", asked)
    calls.post(
        "sealed: restore", "/features/restore", plain.body, headers=[], told="POST /features/restore | plain backup")
    calls.post("sealed: read after the restore", "/get-online-features", asked)
    calls.get("sealed: status", "/features/status")


def messages(calls, broker):
    """The box uses MQTT 3.1.1, so its answers have no properties."""
    with Client(broker.port, "strict") as client:
        ask = Messages(calls, client, "ledge/v1/box/result/+")
        ask("MQTT 3.1.1 box: JSON", f"{ASK}add_sub", sums(id="1"))
        ask("MQTT 3.1.1 box: an error", f"{ASK}add_sub", b'{"id":"2"}')
        ask("MQTT 3.1.1 box: a model for others", f"{ASK}wine_mlp", sums(id="3"))
        ask("MQTT 3.1.1 box: a photograph", f"{ASK}add_sub", (PHOTOS / "chelsea.jpg").read_bytes())


def quotas(calls):
    """Calls that must come last, since the box does not answer after them."""
    calls.infer("batch window: closed", "add_sub", sums(), headers=BATCH)
    calls.infer("batch window: interactive", "add_sub", sums())
    for number in range(4):
        calls.infer(f"quota: call {number + 1}", "wine_mlp", sums())
    calls.infer("quota: used up", "add_sub", sums())
    calls.post("quota: not for an index", "/v2/repository/index", {})


def all_calls(calls, broker):
    tls(calls)
    sealed(calls)
    messages(calls, broker)
    quotas(calls)
