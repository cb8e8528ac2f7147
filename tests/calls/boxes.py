"""The boxes that receive the calls. `open` has models, features, keys and a broker; `closed` admits no caller without a
key; `strict` has TLS, quotas, batch windows, an encrypted feature store and a broker with MQTT 3.1.1."""
import datetime

import calls_features
import calls_http
import calls_infer
import calls_models
import calls_mqtt
import calls_roles
import calls_strict
from box import Box
from recording import Calls

DATATYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "fp16", "bf16", "fp32", "fp64",
    "string")

MODELS = (
    "add_sub", "wine_mlp", "dynamic_sum", "scalar_out", "fixed_shape", "log_nan", "bad_at_runtime", "slow",
    "uint8_scores", "quantized_colours", "ir_add", "ml_scaler", "qoperator", "external_data", "external_escape",
    "broken_empty", "broken_png", "broken_ir", "broken_no_bin", "broken_versions", "efficientnet_lite0",
    *(f"identity_{datatype}" for datatype in DATATYPES))

# One thread, so that answers do not depend on the number of cores. One runtime, so that none is measured.
SETTINGS = """
[http]
listen = [LISTEN]
max_body_bytes = 1048576
[runtimes]
threads = 1
measure = false
[log]
format = "json"
[device]
id = "box"
group = "shop"
"""
PLAIN = SETTINGS.replace("LISTEN", '"127.0.0.1:0", "unix:ledge.sock"')
WITH_TLS = SETTINGS.replace("LISTEN", '"127.0.0.1:0", "https://127.0.0.1:0"')

WINE = """
max_batch_size = 8
[[input]]
name = "features"
features = [
  "lab:analysis",
  { feature = "lab:proline", null_value = { default = 750 }, not_found = "nan" },
]
[[output]]
name = "probabilities"
labels = "labels.txt"
"""

STRICT = """
[http.tls]
self_signed = true
[access]
loopback = ["admin"]
[access.mqtt]
roles = ["infer"]
models = ["add_sub"]
[serving]
batch_windows = ["{hour:02}:00-{hour:02}:01"]
[quota]
max_rate_per_principal = 0.001
burst = 4
[encryption]
master_key_file = "master.key"
[mqtt]
broker = "mqtt://127.0.0.1:{port}"
protocol = "3.1.1"
report_interval_s = 5
"""

LIMITED = "[limits]\nmax_rate = 0.001\nburst = 1\n"

MQTT = """
[mqtt]
broker = "mqtt://127.0.0.1:{port}"
max_payload_bytes = 65536
report_interval_s = 5
[[mqtt.bindings]]
topic = "cellar/+/analysis"
model = "wine_mlp"
publish = "cellar/{{1}}/probabilities"
select = "$.outputs[0].data"
publish_errors = true
[mqtt.bindings.inputs]
features = ["$.alcohol", "$.acids.malic", "$.rest"]
[[mqtt.bindings]]
topic = "cameras/+/snapshot"
model = "quantized_colours"
publish = "vision/{{1}}/label"
select = "$.labels[0].label"
publish_errors = true
[[mqtt.bindings]]
topic = "lab/+/rows"
feature_view = "lab"
entities = {{ wine_id = "{{1}}" }}
model = "wine"
publish = "lab/{{1}}/answer"
publish_errors = true
"""


def add_models(box):
    for name in MODELS:
        box.model(name)
    box.model("add_sub", "cached", "[response_cache]\nenable = true\n")
    box.model("add_sub", "limited", LIMITED)
    box.model("add_sub", "batched", "max_batch_size = 4\n[dynamic_batching]\nmax_queue_delay_us = 0\n")
    box.model("add_sub", "wrong_config", "max_batchsize = 4\n")
    box.model("add_sub", "versions", 'version_policy = "all"\n')
    box.model("add_sub", "versions", version="2")
    box.model("add_sub", "spare")
    box.model("slow", "late")
    box.model("wine_mlp", "wine", WINE)


def add_keys(box):
    for role in ("viewer", "infer", "feature-writer", "operator", "auditor", "admin", "camera-viewer"):
        box.key(role, "--role", role)
    box.key("one-model", "--role", "infer", "--role", "viewer", "--role", "operator", "--model", "add_sub")
    box.key("one-view", "--role", "infer", "--role", "feature-writer", "--feature-view", "lab")
    box.key("slow-key", "--role", "infer", "--max-rate", "0.001")
    box.key("revoked", "--role", "admin")
    box.run("keys", "revoke", "revoked")


def open_box(ledge, folder, broker, recording):
    with Box(ledge, folder, "open") as box:
        add_models(box)
        add_keys(box)
        box.file("ledge.toml", PLAIN + MQTT.format(port=broker.port))
        box.file("feature_views.d/views.toml", calls_features.VIEWS)
        box.start()
        calls = Calls(recording, box)
        calls_mqtt.presence(calls, broker)
        calls_models.looks(calls)
        calls_infer.all_calls(calls)
        calls_features.all_calls(calls)
        calls_mqtt.all_calls(calls, broker)
        calls_http.all_calls(calls)
        calls_roles.open_calls(calls)
        calls_models.changes(calls)
        calls_models.figures(calls)
    calls_mqtt.absence(calls, broker)


def strict_box(ledge, folder, broker, recording):
    with Box(ledge, folder, "strict") as box:
        box.model("add_sub")
        box.model("wine_mlp")
        box.run("encryption", "make-key", str(box.root / "master.key"))
        hour = (datetime.datetime.now(datetime.timezone.utc).hour + 12) % 24
        box.file("ledge.toml", WITH_TLS + STRICT.format(port=broker.port, hour=hour))
        box.file("feature_views.d/views.toml", calls_features.VIEWS)
        box.start()
        calls = Calls(recording, box)
        calls_mqtt.presence(calls, broker)
        calls_strict.all_calls(calls, broker)


def closed_box(ledge, folder, recording):
    with Box(ledge, folder, "closed") as box:
        box.model("add_sub")
        add_keys(box)
        updates = '[updates]\nrepository = "file:///nowhere/at/all"\n'
        box.file("ledge.toml", PLAIN + "[access]\nloopback = []\n" + updates)
        box.start()
        calls_roles.closed_calls(Calls(recording, box))
