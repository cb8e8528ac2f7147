"""HTTP itself: methods, unknown routes, hosts, lengths, heads that are too large, several calls on a connection."""
import json
import re

from box import Failure
from calls_infer import JSON_BODY, sums
from web import request

ROUTES = """
GET /v2
GET /v2/health/live
GET /v2/health/ready
GET /v2/models/stats
GET /v2/models/{model}
GET /v2/models/{model}/ready
GET /v2/models/{model}/config
GET /v2/models/{model}/stats
GET /v2/models/{model}/drift
POST /v2/models/{model}/drift/accept
POST /v2/models/{model}/infer
GET /v2/models/{model}/versions/{version}
GET /v2/models/{model}/versions/{version}/ready
GET /v2/models/{model}/versions/{version}/config
GET /v2/models/{model}/versions/{version}/stats
POST /v2/models/{model}/versions/{version}/infer
POST /v2/repository/index
POST /v2/repository/models/{model}/load
POST /v2/repository/models/{model}/unload
POST /get-online-features
POST /push
POST /write-to-online-store
POST /materialize
POST /materialize-incremental
GET /v1/status/ping
POST /v1/vision/detection
POST /v1/vision/face
POST /v1/vision/scene
POST /v1/vision/custom/list
POST /v1/vision/custom/{model}
POST /v1/embeddings
GET /v1/models
GET /v1/models/{model}
GET /health
GET /feature-views
GET /feature-views/{feature_view}
GET /feature-services
GET /feature-services/{feature_service}
GET /entities
GET /features/status
GET /features/unusual
POST /features/unusual/normal
GET /features/forecast
GET /features/backup
POST /features/restore
POST /features/erase
POST /features/disclose
POST /features/snapshot
POST /features/compact
GET /updates
POST /updates/check
POST /updates/trust/reset
POST /updates/{kind}/{name}/{order}
GET /catalogue
POST /catalogue/refresh
POST /catalogue/models/{name}/add
POST /catalogue/models/{name}/remove
POST /catalogue/models/{name}/upload
GET /audit/status
GET /audit/logs/{generation}/checkpoint
GET /audit/erasures/{statement}
GET /report
GET /audit/logs/{generation}/tile/{path}
GET /
GET /console/{file}
GET /access
GET /roles
GET /keys
POST /keys
POST /keys/{key}/revoke
POST /session
POST /session/end
POST /session/codes
GET /sessions
POST /sessions/{session}/end
GET /models
GET /capacity
GET /figures
GET /figures/live
GET /findings
GET /unusual
POST /unusual/{series}/{column}/normal
GET /cameras
GET /cameras/events
GET /cameras/{camera}/picture
GET /egress
GET /alerts
GET /inboxes
GET /accounts
GET /objectives
GET /jobs
POST /jobs
GET /jobs/{id}
GET /jobs/{id}/result
POST /jobs/{id}/remove
POST /alerts/{alert}/test
GET /metrics
GET /openapi.json
"""

PARTS = {
    "model": "add_sub", "version": "1", "feature_view": "lab", "feature_service": "activity", "kind": "models",
    "name": "add_sub", "order": "pin", "generation": "1", "path": "0/000", "file": "icon.svg",
    "camera": "yard", "alert": "shop",
    "key": "nobody", "series": "box", "column": "nothing",
}


def routes():
    """[(method, path)] of every route, with a value for each part of a path."""
    filled = re.sub(r"\{(\w+)\}", lambda part: PARTS[part[1]], ROUTES)
    # Without a number of events the answer does not end.
    filled = filled.replace("/figures/live", "/figures/live?events=0")
    return [tuple(line.split()) for line in filled.split("\n") if line]


def check_routes(document):
    """Fails when /openapi.json has a route that is not in the table."""
    listed = {f"{method.upper()} {path}" for path, about in json.loads(document)["paths"].items() for method in about}
    missing = {line.replace("{*path}", "{path}") for line in listed} - set(ROUTES.split("\n"))
    if missing:
        raise Failure(f"routes without calls, which tests/calls/calls_http.py should list: {sorted(missing)}")


def methods(calls):
    for method, path in routes():
        other = "POST" if method == "GET" else "GET"
        calls(f"{other} {path}", other, path, body=b"" if other == "POST" else None)
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "FOO"):
        calls(f"{method} /v2", method, "/v2")
        calls(f"{method} of infer", method, "/v2/models/add_sub/infer")
    for path in (
            "/v1", "/v2/models", "/v2//models", "/v2/models/add_sub/x", "/feature-views/a/b", "/v2/health",
            "/%00", "/v2?x=1"):
        calls.get(f"path {path}", path)


def hosts(calls):
    for host in (
            "localhost", "localhost:1", "[::1]", "127.0.0.1:80", "app.localhost", "evil.example", "evil.example:8000",
            "", "a b"):
        calls.get(f"host {host!r}", "/v2", host=host)
    calls.get("no host", "/v2", host=None)
    calls.get("host of a page, liveness", "/v2/health/live", host="evil.example")
    calls.get("host of a page with a key", "/v2", host="evil.example", key="viewer")
    for name, value in (("origin", "http://127.0.0.1"), ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "none")):
        calls.get(f"{name}: {value}", "/v2", headers=[(name, value)])
    calls.post("page that pushes", "/push", {}, headers=[JSON_BODY, ("origin", "http://evil.example")])


def bodies(calls):
    large = b" " * (1 << 20) + b"{}"
    calls.infer("body beyond the limit", "add_sub", large)
    calls.post("push beyond the limit", "/push", large)
    calls.post("index beyond the limit", "/v2/repository/index", large)
    calls.infer("body at the limit", "add_sub", b" " * ((1 << 20) - len(sums())) + sums())
    chunked = b"%x\r\n" % len(sums()) + sums() + b"\r\n0\r\n\r\n"
    calls.infer("body in chunks", "add_sub", chunked, headers=[JSON_BODY, ("transfer-encoding", "chunked")])
    calls.infer(
        "body in chunks that are none", "add_sub", b"zz\r\n", headers=[JSON_BODY, ("transfer-encoding", "chunked")])
    calls.infer("body without a type", "add_sub", sums(), headers=[])
    calls.infer("body of text", "add_sub", sums(), headers=[("content-type", "text/plain")])
    waiting = request("POST", "/v2/models/add_sub/infer", [("expect", "100-continue"), ("content-length", "1000000")])
    calls.raw("a body that waits to be invited", waiting, told="POST /v2/models/add_sub/infer | expect: 100-continue")
    large = [("expect", "100-continue"), ("content-length", "2000000")]
    calls.raw("a body that is too large to be invited", request("POST", "/push", large),
        told="POST /push | expect: 100-continue")


def raw_bytes(calls):
    live, close = request("GET", "/v2/health/live"), [("connection", "close")]
    calls.raw("two calls in one piece", live + request("GET", "/v2/health/ready"), answers=2)
    calls.raw("a call that closes", request("GET", "/v2/health/live", close))
    calls.raw("HTTP 1.0", b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    for name, data in (
            ("no HTTP", b"hello\r\n\r\n"),
            ("HTTP 2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
            ("a header without a name", b"GET /v2 HTTP/1.1\r\n: x\r\n\r\n"),
            ("a length that is no number", b"POST /push HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n"),
            ("two lengths", b"POST /push HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"),
            ("a large head", b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 300000 + b"\r\n\r\n"),
            ("many headers", b"GET /v2 HTTP/1.1\r\n" + b"x: a\r\n" * 120 + b"\r\n"),
            ("a long path", b"GET /" + b"a" * 66000 + b" HTTP/1.1\r\n\r\n"),
            ("a version that is none", b"GET /v2 HTTP/9.9\r\n\r\n"),
    ):
        calls.raw(f"refused: {name}", data)


def all_calls(calls):
    for group in (methods, hosts, bodies, raw_bytes):
        group(calls)
