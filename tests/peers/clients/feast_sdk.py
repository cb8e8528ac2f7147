"""Feast's own SDK, unmodified, with Ledge as its online store: writes, pushes and reads through a local registry.

usage: feast_sdk.py URL FOLDER      (a box at URL with the feature views of tests/peers/feast.rs; FOLDER is for the registry)"""

import base64
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
import requests
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig, ValueType
from feast.errors import FeatureServiceNotFoundException, FeatureViewNotFoundException, FeatureNameCollisionError
from feast.errors import FeastError
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.types import Array, Bool, Bytes, Float32, Float64, Int32, Int64, String, UnixTimestamp

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
NOW = datetime.now(timezone.utc).replace(microsecond=250_000)
PRESENT, NULL, MISSING = FieldStatus.PRESENT, FieldStatus.NULL_VALUE, FieldStatus.NOT_FOUND


def check(got, expected, what):
    assert got == expected, f"{what}: {got!r}, and not {expected!r}"


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind and words in str(error), f"{type(error)}: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")


def source(name):
    return FileSource(name=f"{name}_file", path=str(FOLDER / f"{name}.parquet"), timestamp_field="event_timestamp")


def apply():
    """What the box declares, declared to Feast's own registry."""
    store = FeatureStore(config=RepoConfig(
        project="ledge", provider="local", registry=str(FOLDER / "registry.db"), entity_key_serialization_version=3,
        online_store={"type": "remote", "path": URL}, offline_store={"type": "dask"}))
    driver = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64)
    line = Entity(name="line", join_keys=["line"], value_type=ValueType.STRING)
    stats = FeatureView(
        name="driver_stats", entities=[driver], ttl=timedelta(days=1),
        source=PushSource(name="driver_push", batch_source=source("driver")),
        schema=[Field(name="driver_id", dtype=Int64), Field(name="conv_rate", dtype=Float32),
                Field(name="score", dtype=Float64), Field(name="trips", dtype=Int64), Field(name="city", dtype=String)])
    kinds = FeatureView(
        name="kinds", entities=[driver], ttl=timedelta(0), source=PushSource(name="kinds_push", batch_source=source("kinds")),
        schema=[Field(name="driver_id", dtype=Int64), Field(name="raw", dtype=Bytes), Field(name="small", dtype=Int32),
                Field(name="flag", dtype=Bool), Field(name="seen", dtype=UnixTimestamp),
                Field(name="floats", dtype=Array(Float32)), Field(name="doubles", dtype=Array(Float64)),
                Field(name="ints", dtype=Array(Int64)), Field(name="texts", dtype=Array(String)),
                Field(name="flags", dtype=Array(Bool))])
    pairs = FeatureView(
        name="pairs", entities=[driver, line], ttl=timedelta(0), source=PushSource(name="pairs_push", batch_source=source("pairs")),
        schema=[Field(name="driver_id", dtype=Int64), Field(name="line", dtype=String), Field(name="score", dtype=Float64)])
    absent = FeatureView(
        name="absent", entities=[driver], ttl=timedelta(0), source=PushSource(name="absent_push", batch_source=source("absent")),
        schema=[Field(name="driver_id", dtype=Int64), Field(name="x", dtype=Int64)])
    service = FeatureService(name="driver_activity", features=[stats[["trips", "conv_rate"]]])
    unknown = FeatureService(name="nowhere", features=[stats])
    store.apply([driver, line, stats, kinds, pairs, absent, service, unknown])
    return store


def frame(**columns):
    count = len(next(iter(columns.values())))
    columns.setdefault("event_timestamp", [NOW] * count)
    return pd.DataFrame(columns)


def vectors(response):
    """name -> [(value, status)], as the SDK holds them."""
    names = response.proto.metadata.feature_names.val
    columns = response.to_dict()
    statuses = {name: list(vector.statuses) for name, vector in zip(names, response.proto.results)}
    return {name: list(zip(columns[name], statuses[name])) for name in names}


def scalars(store):
    store.push("driver_push", frame(
        driver_id=[1001, 1002], conv_rate=[0.5, 0.25], score=[0.1, -2.0], trips=[7, 8], city=["Zürich", None]))
    store.write_to_online_store("driver_stats", frame(
        driver_id=[1003], conv_rate=[1.0], score=[1e300], trips=[2**62], city=["Bern"]))
    features = ["driver_stats:conv_rate", "driver_stats:score", "driver_stats:trips", "driver_stats:city"]
    got = vectors(store.get_online_features(features, [{"driver_id": key} for key in (1001, 1002, 1003, 9999)]))
    check(list(got), ["driver_id", "conv_rate", "score", "trips", "city"], "names")
    check(got["driver_id"], [(key, PRESENT) for key in (1001, 1002, 1003, 9999)], "the join key")
    check(got["conv_rate"], [(0.5, PRESENT), (0.25, PRESENT), (1.0, PRESENT), (None, MISSING)], "Float32")
    check(got["score"], [(0.1, PRESENT), (-2.0, PRESENT), (1e300, PRESENT), (None, MISSING)], "Float64")
    check(got["trips"], [(7, PRESENT), (8, PRESENT), (2**62, PRESENT), (None, MISSING)], "Int64")
    check(got["city"], [("Zürich", PRESENT), (None, NULL), ("Bern", PRESENT), (None, MISSING)], "String")
    full = store.get_online_features(["driver_stats:trips"], [{"driver_id": 1001}], full_feature_names=True)
    check(full.to_dict(), {"driver_id": [1001], "driver_stats__trips": [7]}, "full names")
    by_column = store.get_online_features(["driver_stats:trips"], {"driver_id": [1002, 1001]})
    check(by_column.to_dict()["trips"], [8, 7], "entities by column")
    older = frame(driver_id=[1001], conv_rate=[0.0], score=[0.0], trips=[0], city=["old"],
                  event_timestamp=[NOW - timedelta(hours=1)])
    store.push("driver_push", older)
    check(store.get_online_features(["driver_stats:trips"], [{"driver_id": 1001}]).to_dict()["trips"], [7], "event time wins")


def services(store):
    for service in (store.get_feature_service("driver_activity"), FeatureService(name="driver_activity", features=[])):
        got = store.get_online_features(service, [{"driver_id": 1001}]).to_dict()
        check(got, {"driver_id": [1001], "trips": [7], "conv_rate": [0.5]}, "the feature service")


def lists(store):
    # Feast's client cannot write bytes to a remote store: it does not put them into JSON. Its server takes base64.
    answer = requests.post(f"{URL}/push", json={"push_source_name": "kinds_push", "to": "online", "df": {
        "driver_id": [1], "raw": [base64.b64encode(b"\0\xff").decode()], "small": [-5], "flag": [True],
        "seen": [1_700_000_000], "floats": [[0.5, 1.0]], "doubles": [[0.1]], "ints": [[1, 2, 3]], "texts": [["a", "é"]],
        "flags": [[True, False]], "event_timestamp": [NOW.isoformat()]}}, timeout=60)
    check((answer.status_code, answer.json()), (200, None), "push over HTTP")
    check(answer.headers["x-ledge-pushed"], "accepted=1, outdated=0, duplicate=0, too_late=0", "the counts")
    seen = NOW - timedelta(days=1)
    store.write_to_online_store("kinds", frame(
        driver_id=[2], raw=[None], small=[7], flag=[False], seen=[seen], floats=[[0.25]], doubles=[[1.5, -0.1]],
        ints=[[2**40]], texts=[["x"]], flags=[[False]]))
    names = ["raw", "small", "flag", "seen", "floats", "doubles", "ints", "texts", "flags"]
    got = vectors(store.get_online_features([f"kinds:{name}" for name in names], [{"driver_id": 1}, {"driver_id": 2}]))
    for name, one, two in [
            ("raw", ("AP8=", PRESENT), (None, NULL)), ("small", (-5, PRESENT), (7, PRESENT)),
            ("flag", (True, PRESENT), (False, PRESENT)),
            ("seen", (1_700_000_000, PRESENT), (int(seen.timestamp()), PRESENT)),
            ("floats", ([0.5, 1.0], PRESENT), ([0.25], PRESENT)), ("doubles", ([0.1], PRESENT), ([1.5, -0.1], PRESENT)),
            ("ints", ([1, 2, 3], PRESENT), ([2**40], PRESENT)), ("texts", (["a", "é"], PRESENT), (["x"], PRESENT)),
            ("flags", ([True, False], PRESENT), ([False], PRESENT))]:
        check(got[name], [one, two], name)


def composite_keys(store):
    store.write_to_online_store("pairs", frame(driver_id=[1, 1], line=["a", "b"], score=[1.0, 2.0]))
    rows = [{"driver_id": 1, "line": "b"}, {"driver_id": 1, "line": "a"}, {"driver_id": 2, "line": "a"}]
    got = vectors(store.get_online_features(["pairs:score"], rows))
    check(got["score"], [(2.0, PRESENT), (1.0, PRESENT), (None, MISSING)], "two join keys")
    both = ["pairs:score", "driver_stats:score"]
    raises(FeatureNameCollisionError, "score", lambda: store.get_online_features(both, rows))
    check(len(store.get_online_features(both, rows, full_feature_names=True).to_dict()), 4, "both scores")


def timestamps():
    answer = requests.post(f"{URL}/get-online-features", timeout=60, json={
        "features": ["driver_stats:trips"], "entities": {"driver_id": [1001, 9999]}}).json()
    got = answer["results"][1]["event_timestamps"]
    check([datetime.fromisoformat(text.replace("Z", "+00:00")) for text in got],
          [NOW, datetime(1970, 1, 1, tzinfo=timezone.utc)], "event timestamps")
    answer = requests.post(f"{URL}/get-online-features", timeout=60, json={
        "features": ["pairs:score"], "entities": {"driver_id": [1], "line": ["a"]}}).json()
    got = answer["results"][2]["event_timestamps"][0].replace("Z", "+00:00")
    check(datetime.fromisoformat(got), NOW, "the event timestamp of a view whose column for it has another name")


def errors(store):
    key = [{"driver_id": 1}]
    raises(FeatureViewNotFoundException, "absent", lambda: store.get_online_features(["absent:x"], key))
    raises(FeatureServiceNotFoundException, "nowhere",
           lambda: store.get_online_features(store.get_feature_service("nowhere"), key))
    raises(FeatureViewNotFoundException, "absent", lambda: store.write_to_online_store("absent", frame(driver_id=[1], x=[1])))
    # A mistake in the data has no class in Feast: its client shows what came.
    raises(RuntimeError, "driver_id", lambda: store.get_online_features(["driver_stats:trips"], [{"line": "a"}]))
    answer = requests.post(f"{URL}/push", json={"push_source_name": "nobody", "df": {"a": [1]}}, timeout=60)
    error = FeastError.from_error_detail(answer.json())
    check((answer.status_code, type(error).__name__), (422, "PushSourceNotFoundException"), "an unknown push source")
    answer = requests.post(f"{URL}/materialize", json={}, timeout=60)
    error = FeastError.from_error_detail(answer.json())
    check((answer.status_code, type(error)), (501, FeastError), "materialize")


def main():
    assert requests.get(f"{URL}/health", timeout=60).status_code == 200
    store = apply()
    scalars(store)
    services(store)
    lists(store)
    composite_keys(store)
    timestamps()
    errors(store)
    print("ok")


main()
