"""The server, the models and their figures over HTTP; loads and unloads."""
from calls_http import check_routes
from calls_infer import sums

OPENMETRICS = ("accept", "application/openmetrics-text")


def looks(calls):
    """Calls that only read, for everything that exists."""
    calls.get("metrics", "/metrics")
    check_routes(calls.get("GET /openapi.json", "/openapi.json").body)
    for path in ("/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/health", "/health/", "/updates"):
        calls.get(f"GET {path}", path)
    names = (
        "add_sub", "versions", "wine_mlp", "wine", "efficientnet_lite0", "quantized_colours", "batched", "cached",
        "limited", "scalar_out", "fixed_shape", "dynamic_sum", "ir_add", "broken_png", "nobody", "a%20b")
    for name in names:
        calls.get(f"model {name}", f"/v2/models/{name}")
        calls.get(f"model {name} ready", f"/v2/models/{name}/ready")
        calls.get(f"model {name} config", f"/v2/models/{name}/config")
    for version in ("1", "2", "3", "0", "first"):
        for what in ("", "/ready", "/config"):
            calls.get(f"version {version}{what}", f"/v2/models/versions/versions/{version}{what}")
    calls.get("metadata with a slash at the end", "/v2/models/add_sub/")
    for name, body in {
            "empty": b"",
            "all": {},
            "ready": {"ready": True},
            "not ready": {"ready": False},
            "wrong": {"ready": "yes"},
            "unknown key": {"x": 1},
            "no JSON": b"{",
            "a list": b"[]",
    }.items():
        calls.post(f"index: {name}", "/v2/repository/index", body)


def changes(calls):
    """Loads and unloads, by a key that may."""
    def change(name, path, body=b"", key="operator"):
        calls.post(name, f"/v2/repository/models/{path}", body, key=key)

    change("load without the role", "spare/load", key="viewer")
    change("unload", "spare/unload")
    calls.get("unloaded: ready", "/v2/models/spare/ready")
    calls.get("unloaded: metadata", "/v2/models/spare")
    calls.infer("unloaded: infer", "spare", sums())
    change("unload again", "spare/unload")
    calls.post("unloaded: index", "/v2/repository/index", {"ready": False})
    change("load", "spare/load")
    calls.get("loaded: ready", "/v2/models/spare/ready")
    calls.infer("loaded: infer", "spare", sums())
    change("load of what is loaded", "spare/load", {})
    change("load of a broken model", "broken_png/load")
    change("load of an unknown model", "nobody/load")
    change("unload of an unknown model", "nobody/unload")
    change("load with a config", "spare/load", {"parameters": {"config": "{}"}})
    change("load with a file", "spare/load", {"parameters": {"file:1/model.onnx": "AAAA"}})
    change("load with a wrong body", "spare/load", b"[")
    change("unload with dependents", "spare/unload", {"parameters": {"unload_dependents": True}})
    change("unload with a wrong body", "spare/unload", b"[")
    change("load at last", "spare/load")
    change("unload of what has missed deadlines", "late/unload")  # whether a call ran before its deadline is chance
    calls.post("index at last", "/v2/repository/index", {})


def figures(calls):
    """Statistics and metrics after all the other calls."""
    for name in ("add_sub", "cached", "limited", "bad_at_runtime", "versions", "batched", "nobody"):
        calls.get(f"stats of {name}", f"/v2/models/{name}/stats")
    calls.get("stats of a version", "/v2/models/versions/versions/1/stats")
    calls.get("stats of an unknown version", "/v2/models/versions/versions/7/stats")
    calls.get("stats of all", "/v2/models/stats")
    calls.get("stats of all for one model", "/v2/models/stats", key="one-model")
    calls.get("metrics as OpenMetrics", "/metrics", headers=[OPENMETRICS])
    calls.get("metrics for one model", "/metrics", key="one-model")
