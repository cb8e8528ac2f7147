"""Features over HTTP: declarations, pushes, reads, models that read them, and the administration of the store."""
import json
import time

from calls_infer import JSON_BODY, wine

VIEWS = """
[[entity]]
name = "driver"
join_key = "driver_id"
value_type = "Int64"
description = "Who drives"

[[entity]]
name = "line"

[[entity]]
name = "wine"
join_key = "wine_id"

[[feature_view]]
name = "drivers"
description = "Drivers, hour by hour"
entities = ["driver"]
source = { name = "driver_push" }
schema = [
  { name = "rate", dtype = "Float64" },
  { name = "trips", dtype = "Int64", optional = true, description = "a day" },
]

[[feature_view]]
name = "short_lived"
entities = ["driver"]
ttl = "1h"
source = { name = "driver_push" }
schema = [{ name = "rate", dtype = "Float64" }]

[[feature_view]]
name = "pairs"
entities = ["driver", "line"]
source = { name = "pairs_push", timestamp_field = "happened" }
schema = [{ name = "rate", dtype = "Float64" }]

[[feature_view]]
name = "recent"
entities = ["line"]
lateness = "30m"
schema = [{ name = "rms", dtype = "Float32" }, { name = "program", dtype = "String", optional = true }]
AGGREGATIONS
[[feature_view]]
name = "kinds"
entities = ["line"]
schema = [
KINDS]

[[feature_view]]
name = "lab"
entities = ["wine"]
schema = [{ name = "analysis", dtype = "Array(Float32)" }, { name = "proline", dtype = "Int64", optional = true }]

[[feature_service]]
name = "activity"
description = "What the dispatcher needs"
features = ["drivers:trips", "short_lived:rate"]

[[feature_service]]
name = "machines"
features = ["recent"]
"""

TYPES = {
    "Bytes": ["AP8=", ""],
    "String": ["Zürich \"\\\u0000", ""],
    "Int32": [-2**31, 2**31 - 1],
    "Int64": [-2**63, 2**63 - 1],
    "Float32": [0.1, -1.5],
    "Float64": [0.1, 1e300],
    "Bool": [True, False],
    "UnixTimestamp": [1700000000, 0],
}
FUNCTIONS = {
    "count": "rms", "sum": "rms", "mean": "rms", "min": "rms", "max": "rms", "std": "rms", "last": "program",
    "count_distinct": "program",
}

VIEWS = VIEWS.replace("AGGREGATIONS\n", "".join(
    f'[[feature_view.aggregation]]\ncolumn = "{column}"\nfunction = "{function}"\ntime_window = "2h"\n'
    for function, column in FUNCTIONS.items()))
VIEWS = VIEWS.replace("KINDS", "".join(
    f'  {{ name = "{name}{suffix}", dtype = "{dtype}", optional = true }},\n'
    for name in TYPES for suffix, dtype in (("", name), ("_list", f"Array({name})"))))

LONG_AGO, LATER = "2001-02-03T04:05:06.250Z", "2001-02-03T04:05:07Z"


def push(calls, name, source, df, **more):
    calls.post(f"push: {name}", "/push", {"push_source_name": source, "df": df, **more})


def read(calls, name, entities, features=None, service=None, key=None, headers=(JSON_BODY,), **more):
    wanted = {"feature_service": service} if service else {"features": features}
    body = {**wanted, "entities": entities, **more}
    calls.post(f"read: {name}", "/get-online-features", body, key=key, headers=headers)


def declared(calls):
    for path in ("/feature-views", "/feature-services", "/entities", "/features/status"):
        calls.get(f"GET {path}", path)
    for name in ("drivers", "short_lived", "pairs", "recent", "kinds", "lab", "nothing", "%ff"):
        calls.get(f"feature view {name}", f"/feature-views/{name}")
    for name in ("activity", "machines", "nothing"):
        calls.get(f"feature service {name}", f"/feature-services/{name}")


def pushes(calls):
    rows = {"driver_id": [1, 2, 3], "rate": [0.5, None, 0.25], "trips": [7, None, 9], "event_timestamp": [LONG_AGO] * 3}
    push(calls, "three drivers", "driver_push", rows)
    push(calls, "the same again", "driver_push", rows, to="online")
    push(calls, "later", "driver_push", {"driver_id": [1], "rate": [0.75], "event_timestamp": [LATER]})
    push(calls, "outdated", "driver_push", {"driver_id": [1], "rate": [1.0], "event_timestamp": [LONG_AGO]})
    push(calls, "of now", "driver_push", {"driver_id": [100000], "rate": [5.5]})
    push(calls, "unknown columns", "driver_push", {**rows, "ra te": [1] * 3, "ž": [2] * 3})
    push(calls, "also offline", "driver_push", rows, to="online_and_offline")
    pairs = {"driver_id": [1, 1], "line": ["a", "b"], "rate": [1.5, 2.5]}
    for word, happened in (
            ("seconds", 981173106),
            ("milliseconds", 981173107000),
            ("text", LATER),
            ("text with a zone", "2001-02-03T05:05:08+01:00"),
    ):
        push(calls, f"times in {word}", "pairs_push", {**pairs, "happened": [happened] * 2})
    for name, values in TYPES.items():
        both = {name: values, f"{name}_list": [values, []]}
        push(calls, f"{name}", "kinds", {"line": [name, f"{name} 2"], **both, "event_timestamp": [LONG_AGO] * 2})
    chemistry = [13.2, 1.78, 2.14, 11.2, 100, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4]
    names, analyses, prolines = ["barolo", "dolcetto", "short"], [chemistry, chemistry, [1.0]], [1050, None, 5]
    wines = {"wine_id": names, "analysis": analyses, "proline": prolines, "event_timestamp": [LONG_AGO] * 3}
    push(calls, "wines", "lab", wines)
    frame = {**pairs, "event_timestamp": ["2019-01-01T00:00:00"] * 2, "created": [None] * 2}
    written = {"feature_view_name": "pairs", "df": frame}
    calls.post("write to the online store", "/write-to-online-store", written)
    calls.post("write to an unknown view", "/write-to-online-store", {**written, "feature_view_name": "x"})


def aggregates(calls):
    """Events of the last half hour, so that they are in the windows; their times are normalized."""
    now = int(time.time())
    events = {"line": ["press"] * 4, "rms": [2.5, 3.5, None, 1.0], "program": ["a", "b", "a", None]}
    times = [now - 1500, now - 1200, now - 900, now - 600]
    one = {"line": ["press"], "rms": [9.0]}
    for name, df in (
            ("events", {**events, "event_timestamp": times}),
            ("events again", {**events, "event_timestamp": times}),
            ("an event too late", {**one, "event_timestamp": [now - 7000]}),
            ("an event too early", {**one, "event_timestamp": [now + 7000]}),
    ):
        calls.post(f"push: {name}", "/push", {"push_source_name": "recent", "df": df}, told=f"POST /push | {name}")
    read(calls, "aggregates", {"line": ["press", "none"]}, service="machines")


def refused_pushes(calls):
    for name, source, df in (
            ("an unknown source", "x", {"driver_id": [1]}),
            ("a missing column", "driver_push", {"driver_id": [1]}),
            ("a missing key", "driver_push", {"rate": [1.0]}),
            ("lengths that differ", "driver_push", {"driver_id": [1, 2], "rate": [1.0]}),
            ("a value of another type", "driver_push", {"driver_id": [1], "rate": ["x"]}),
            ("a key of another type", "driver_push", {"driver_id": ["one"], "rate": [1.0]}),
            ("a key that is null", "driver_push", {"driver_id": [None], "rate": [1.0]}),
            ("a number out of range", "kinds", {"line": ["a"], "Int32": [2**40]}),
            ("no base64", "kinds", {"line": ["a"], "Bytes": ["%"]}),
            ("no feature", "kinds", {"line": ["a"]}),
            ("a time that is none", "kinds", {"line": ["a"], "Int32": [1], "event_timestamp": ["soon"]}),
            ("no column that is a list", "driver_push", {"driver_id": 1, "rate": 1.0}),
            ("a large row", "kinds", {"line": ["a"], "String": ["x" * 70000]}),
            ("no rows", "driver_push", {"driver_id": [], "rate": []}),
            ("no columns", "driver_push", {}),
    ):
        push(calls, name, source, df)
    row = {"driver_id": [1], "rate": [1.0], "event_timestamp": [LONG_AGO]}
    push(calls, "offline alone", "driver_push", row, to="offline")
    push(calls, "to nowhere", "driver_push", row, to="nowhere")
    for name, body in (
            ("empty", b""),
            ("no JSON", b"{"),
            ("a list", b"[]"),
            ("without its source", {"df": row}),
            ("no frame", {"push_source_name": "driver_push"}),
            ("a column twice", b'{"push_source_name":"driver_push","df":{"driver_id":[1],"rate":[1],"rate":[2]}}'),
    ):
        calls.post(f"push: body {name}", "/push", body)
    for path in ("/materialize", "/materialize-incremental"):
        calls.post(f"POST {path}", path, {"start_ts": LONG_AGO, "end_ts": LATER})


def reads(calls):
    drivers = {"driver_id": [1, 2, 3, 4, 1]}
    read(calls, "two features", drivers, ["drivers:rate", "drivers:trips"])
    read(calls, "a whole view", drivers, ["drivers"])
    read(calls, "a service", drivers, service="activity")
    read(calls, "full names", drivers, ["drivers:rate", "short_lived:rate"], full_feature_names=True)
    read(calls, "names that collide", drivers, ["drivers:rate", "short_lived:rate"])
    read(calls, "a row of now", {"driver_id": [100000]}, ["drivers:rate"])
    read(calls, "pairs", {"line": ["a", "b", "c"], "more": [1, 2, 3], "driver_id": [1, 1, 1]}, ["pairs:rate"])
    for name in TYPES:
        read(calls, f"{name}", {"line": [name, f"{name} 2", "none"]}, [f"kinds:{name}", f"kinds:{name}_list"])
    many = {"driver_id": list(range(3000))}
    read(calls, "many", many, ["drivers"])
    read(calls, "many packed", many, ["drivers"], headers=[JSON_BODY, ("accept-encoding", "gzip")])
    read(calls, "no entities", {"driver_id": []}, ["drivers"])
    for name, entities, features in (
            ("an unknown view", drivers, ["x:rate"]),
            ("an unknown feature", drivers, ["drivers:x"]),
            ("a missing key", {"x": [1]}, ["drivers"]),
            ("a key of another type", {"driver_id": ["one"]}, ["drivers"]),
            ("keys that differ in length", {"driver_id": [1], "line": ["a", "b"]}, ["pairs"]),
            ("no features", drivers, []),
            ("a reference that is none", drivers, ["drivers:rate:x"]),
            ("entities that are a list", [1], ["drivers"]),
            ("a null key", {"driver_id": [None]}, ["drivers"]),
    ):
        read(calls, name, entities, features)
    read(calls, "an unknown service", drivers, service="x")
    for name, body in (
            ("empty", b""),
            ("no JSON", b"hello"),
            ("a text", b'"a"'),
            ("no entities at all", {"features": ["drivers"]}),
    ):
        calls.post(f"read: body {name}", "/get-online-features", body)
    read(calls, "of another view than the key's", drivers, ["drivers"], key="one-view")
    read(calls, "of the key's view", {"wine_id": ["barolo"]}, ["lab"], key="one-view")
    row = {"push_source_name": "driver_push", "df": {"driver_id": [1], "rate": [1.0]}}
    calls.post("push: to another view than the key's", "/push", row, key="one-view")


def models(calls):
    """A model whose inputs are the features of entity keys."""
    told = {"parameters": {"feature_values": True}}
    for name, request in {
            "a key": {"entities": {"wine_id": ["barolo"]}},
            "three keys": {"entities": {"wine_id": ["barolo", "dolcetto", "unknown"]}, **told},
            "a row that is too short": {"entities": {"wine_id": ["short"]}},
            "values given": {"entities": {"wine_id": ["barolo"]}, "features": {"lab:proline": [500]}, **told},
            "an unknown feature given": {"entities": {"wine_id": ["barolo"]}, "features": {"lab:x": [500]}},
            "no entities": {"inputs": []},
            "a missing key": {"entities": {"x": ["barolo"]}},
            "a key of another type": {"entities": {"wine_id": [1]}},
            "entities that are no lists": {"entities": {"wine_id": "barolo"}},
            "features that differ in length": {"entities": {"wine_id": ["barolo"]}, "features": {"lab:proline": [1, 2]}},
            "keys as a tensor": {"inputs": [{"name": "wine_id", "datatype": "BYTES", "shape": [1], "data": ["barolo"]}]},
    }.items():
        calls.infer(f"infer by features: {name}", "wine", json.dumps(request).encode())
    calls.infer("infer by features: the input whole", "wine", wine())
    barolo = json.dumps({"entities": {"wine_id": ["barolo"]}}).encode()
    calls.infer("infer by features: entities for a model without", "wine_mlp", barolo)
    shown = json.dumps({"entities": {"wine_id": ["barolo"]}, **told}).encode()
    calls.infer("infer by features: values for another key", "wine", shown, key="one-view")
    calls.infer("infer by features: values without the role", "wine", shown, key="viewer")


def administration(calls):
    for path in ("snapshot", "compact"):
        calls.post(f"POST /features/{path} as a viewer", f"/features/{path}", b"", key="viewer")
        calls.post(f"POST /features/{path}", f"/features/{path}", b"", key="operator")
    backup = calls.get("backup", "/features/backup", key="admin")
    calls.get("backup of a view", "/features/backup?feature_view=lab", key="admin")
    calls.get("backup of an unknown view", "/features/backup?feature_view=x", key="admin")
    calls.get("backup with an unknown query", "/features/backup?x=1", key="admin")
    calls.get("backup for a wrong recipient", "/features/backup?recipient=age1x", key="admin")
    calls.get("backup without the role", "/features/backup", key="operator")
    for name, body in {
            "one": {"entity": {"driver_id": 3}},
            "several": {"entities": [{"driver_id": 1}, {"wine_id": "short"}]},
            "unknown": {"entity": {"driver_id": 77}},
            "an unknown key": {"entity": {"x": 1}},
            "none": {"entities": []},
            "a key of another type": {"entity": {"driver_id": "x"}},
            "no JSON": b"{",
            "without the form": {"who": 1},
    }.items():
        calls.post(f"erase: {name}", "/features/erase", body, key="admin")
    read(calls, "after the erasure", {"driver_id": [1, 2, 3]}, ["drivers"])
    octets = [("content-type", "application/octet-stream")]
    calls.post("restore: no backup", "/features/restore", b"hello", headers=octets, key="admin")
    calls.post("restore: empty", "/features/restore", b"", headers=octets, key="admin")
    calls.post("restore: packed", "/features/restore", b"x", headers=[("content-encoding", "gzip")], key="admin")
    for name, body in (("restore: cut", backup.body[:1000]), ("restore", backup.body)):
        calls.post(
            name, "/features/restore", body, headers=octets, key="admin", told=f"POST /features/restore | {name}")
    read(calls, "after the restore", {"driver_id": [1, 2, 3]}, ["drivers"])
    calls.get("features status at last", "/features/status")


def all_calls(calls):
    for group in (declared, pushes, aggregates, refused_pushes, reads, models, administration):
        group(calls)
