"""Permissions: every route by every role, invalid keys, and the ways in."""
from calls_http import routes
from calls_infer import sums
from web import Connection, request

ROLES = ("viewer", "infer", "feature-writer", "operator", "auditor", "admin", "camera-viewer")


def keys(calls):
    """Invalid keys, and the places of a key in a request."""
    bearer = calls.box.keys["admin"]
    unknown = "_".join(["ledge", "00000000", *bearer.split("_")[2:]])
    for name, value in (
            ("none that is known", f"Bearer {unknown}"),
            ("malformed", "Bearer x"),
            ("empty", "Bearer"),
            ("of another scheme", "Basic dTpw"),
            ("revoked", f"Bearer {calls.box.keys['revoked']}"),
    ):
        secret(calls, f"key: {name}", [("authorization", value)])
    secret(calls, "key: in its own header", [("x-api-key", bearer)])
    secret(calls, "key: in both headers", [("x-api-key", bearer), ("authorization", f"bearer {bearer}")])
    secret(calls, "key: two different ones", [("x-api-key", bearer), ("authorization", "Bearer x")])
    secret(calls, "key: twice", [("x-api-key", bearer), ("x-api-key", bearer)])


def secret(calls, name, headers):
    """A call whose headers are not recorded."""
    with_names = [f"{header}: ..." for header, _ in headers]
    calls(name, "GET", "/v2", headers=headers, told=" | ".join(["GET /v2", *with_names]))


def parts(calls):
    """Keys for some models or feature views only."""
    for model in ("add_sub", "wine_mlp", "nobody"):
        calls.get(f"key of one model: {model}", f"/v2/models/{model}", key="one-model")
        calls.infer(f"key of one model: infer {model}", model, sums(), key="one-model")
    calls.post("key of one model: index", "/v2/repository/index", {}, key="one-model")
    calls.post("key of one model: unload of another", "/v2/repository/models/spare/unload", b"", key="one-model")
    calls.post("key of one model: check for updates", "/updates/check", b"", key="one-model")
    calls.get("key with a rate: the first call", "/v2", key="slow-key")
    calls.get("key with a rate: one too many", "/v2", key="slow-key")


def socket(calls):
    """The Unix socket, where the daemon's own user is admin."""
    calls.get("socket: metadata", "/v2", over="socket")
    calls.get("socket: audit status", "/audit/status", over="socket")
    calls.post("socket: trust reset", "/updates/trust/reset", b"", over="socket")


def orders(calls):
    for order in ("pin", "unpin", "rollback", "cancel", "x"):
        calls.post(f"order {order}", f"/updates/models/add_sub/{order}", b"", key="operator")
    for kind in ("runtimes/onnxruntime", "configuration/x", "x/y"):
        calls.post(f"order pin for {kind}", f"/updates/{kind}/pin", b"", key="operator")
    for name, body in {
            "empty": b"",
            "nothing": {},
            "a folder": {"from": "file:///nowhere/else"},
            "no address": {"from": "usb"},
            "plain HTTP": {"from": "http://far.example/"},
            "an unknown server": {"from": "https://far.example/"},
            "another key": {"form": "x"},
            "no JSON": b"{",
    }.items():
        calls.post(f"check: {name}", "/updates/check", body, key="operator")
    calls.get("updates", "/updates", key="viewer")
    calls.get("updates for one model", "/updates", key="one-model")
    calls.post("trust reset", "/updates/trust/reset", b"", key="admin")


def audit(calls):
    calls.get("audit status", "/audit/status", key="auditor")
    checkpoint = calls.get("audit checkpoint", "/audit/logs/1/checkpoint", key="auditor")
    size = int(checkpoint.body.split(b"\n")[1])
    part = f".p/{size}" if size < 256 else ""
    for kind in ("0", "entries"):
        path = f"/audit/logs/1/tile/{kind}/000"
        calls.get(f"audit tile {kind}", path + part, key="auditor", told=f"GET {path} with all records")
    for path in (
            "1/tile/0/001", "1/tile/0/x", "1/tile/7", "1/tile/../key", "2/checkpoint", "0/checkpoint", "x/checkpoint",
            "01/checkpoint"):
        calls.get(f"audit {path}", f"/audit/logs/{path}", key="auditor")


def matrix(calls):
    """Every route without a key and by every role. The bodies are invalid, so that nothing is changed."""
    for method, path in routes():
        for role in (None, *ROLES):
            body = None if method == "GET" else b"["
            calls(f"{role or 'nobody'}: {method} {path}", method, path, body=body, key=role)


def open_calls(calls):
    for group in (keys, parts, socket, orders, audit):
        group(calls)


def closed_calls(calls):
    for group in (matrix, keys, orders, audit):
        group(calls)
    wrong_keys(calls)


def wrong_keys(calls):
    """Invalid keys until the address is refused. Their number depends on the time. A valid key is still accepted."""
    asked = request("GET", "/v2", [("x-api-key", "ledge_x")])
    for _ in range(100):
        with Connection(calls.box.port) as connection:
            connection.send(asked)
            answer = connection.receive()
        if answer.status == 429:
            break
    calls.record("after wrong keys", "GET /v2 | wrong keys", answer)
    calls.get("a right key after wrong keys", "/v2", key="viewer")
