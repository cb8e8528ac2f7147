"""Inference over HTTP: datatypes, encodings, shapes, parameters, photographs, the cache, and refused requests."""
import gzip
import json
import zlib

from box import CHECKOUT, model_folder
from tensors import binary, count, document, packed, tensor

PHOTOS = CHECKOUT / "tests" / "data" / "photos"

# Elements of each datatype, the extremes among them; six each.
VALUES = {
    "BOOL": [True, False, True, True, False, False],
    "UINT8": [0, 1, 127, 128, 254, 255],
    "UINT16": [0, 1, 256, 32768, 65534, 65535],
    "UINT32": [0, 1, 65536, 2147483648, 4294967294, 4294967295],
    "UINT64": [0, 1, 4294967296, 9007199254740993, 18446744073709551614, 18446744073709551615],
    "INT8": [-128, -127, -1, 0, 1, 127],
    "INT16": [-32768, -1, 0, 1, 256, 32767],
    "INT32": [-2147483648, -1, 0, 1, 65536, 2147483647],
    "INT64": [-9223372036854775808, -1, 0, 1, 9007199254740993, 9223372036854775807],
    "FP16": [0.0, -0.0, 1.5, -65504.0, 0.0999755859375, 6.103515625e-05],
    "BF16": [0.0, -0.0, 1.5, -256.0, 0.10009765625, 1e30],
    "FP32": [0.0, -0.0, 0.1, -1.5, 3.4028234663852886e38, 1e-40],
    "FP64": [0.0, -0.0, 0.1, -1.5, 1.7976931348623157e308, 5e-324],
    "BYTES": ["", "a", "žluťoučký", "line\nbreak \"quoted\" \\", "\u0000", "\U0001f377"],
}
MODELS = {datatype: f"identity_{'string' if datatype == 'BYTES' else datatype.lower()}" for datatype in VALUES}
OCTETS = ("content-type", "application/octet-stream")
JSON_BODY = ("content-type", "application/json")
BINARY_OUTPUT = {"parameters": {"binary_data_output": True}}
FLOATS = [0.5 * number for number in range(16)]


def header_length(length):
    return ("inference-header-content-length", str(length))


def sums(rows=1, **more):
    """A request for add_sub."""
    return document([tensor(name, "FP32", [rows, 16], FLOATS * rows) for name in ("INPUT0", "INPUT1")], **more)


def one(shape=(1, 4), data=(1.0, 2.0, 3.0, 4.0), datatype="FP32", name="IN", **more):
    """A request with one input."""
    return document([tensor(name, datatype, list(shape), list(data))], **more)


def in_binary(calls, name, model, inputs, **more):
    body, length = binary(inputs, **more)
    calls.infer(name, model, body, headers=[OCTETS, header_length(length)])


def datatypes(calls):
    for datatype, values in VALUES.items():
        model, word = MODELS[datatype], f"infer {datatype}"
        row = tensor("IN", datatype, [1, 6], values)
        matrix = tensor("IN", datatype, [2, 3], [values[:3], values[3:]])
        calls.get(f"metadata of {model}", f"/v2/models/{model}")
        calls.infer(f"{word} JSON", model, document([row]))
        calls.infer(f"{word} JSON nested, with an id", model, document([matrix], id=f"id {datatype}"))
        calls.infer(f"{word} JSON to binary", model, document([row], **BINARY_OUTPUT))
        in_binary(calls, f"{word} binary to JSON", model, [tensor("IN", datatype, [3, 2], values)])
        in_binary(calls, f"{word} binary to binary", model, [row], **BINARY_OUTPUT)
        in_binary(calls, f"{word} empty", model, [tensor("IN", datatype, [1, 0], [])])
        calls.infer(f"{word} with elements of another type", model, document([{**row, "data": [[]] * 6}]))
        beyond = document([{**row, "data": [0] * 6}]).replace(b"[0,", b"[1e400,")
        calls.infer(f"{word} with an element beyond its range", model, beyond)
        other = "INT8" if datatype == "FP32" else "FP32"
        calls.infer(f"{word} declared as {other}", model, document([tensor("IN", other, [1, 6], [1] * 6)]))
        cut, length = binary([row])
        calls.infer(f"{word} binary cut", model, cut[:-1], headers=[OCTETS, header_length(length)])


def special_floats(calls):
    for datatype in ("FP16", "BF16", "FP32", "FP64"):
        row = tensor("IN", datatype, [1, 3], [float("nan"), float("inf"), float("-inf")])
        in_binary(calls, f"infer {datatype} NaN binary to JSON", MODELS[datatype], [row])
        in_binary(calls, f"infer {datatype} NaN binary to binary", MODELS[datatype], [row], **BINARY_OUTPUT)
    calls.infer("infer NaN in JSON", "identity_fp32", one((1, 1), [float("nan")]))
    calls.infer("infer logarithms", "log_nan", one())
    calls.infer("infer logarithms that JSON cannot carry", "log_nan", one(data=[-1.0, 0.0, 1.0, 2.0]))
    calls.infer("infer logarithms that binary carries", "log_nan", one(data=[-1.0, 0.0, 1.0, 2.0], **BINARY_OUTPUT))
    texts = [tensor("IN", "BYTES", [1, 2], [b"\xff\xfe", b"ok"])]
    in_binary(calls, "infer BYTES that are no text to JSON", "identity_string", texts)
    in_binary(calls, "infer BYTES that are no text to binary", "identity_string", texts, **BINARY_OUTPUT)


def shapes(calls):
    for rows in (1, 2, 7, 64, 65):
        calls.infer(f"infer add_sub with {rows} rows", "add_sub", sums(rows))
    for rows in (1, 4, 5):
        calls.infer(f"infer batched with {rows} rows", "batched", sums(rows))
    calls.infer("infer no rows", "dynamic_sum", one((0, 4), ()))
    for shape in ([1, 1], [1, 5], [3, 2], [4, 0]):
        calls.infer(f"infer dynamic_sum {shape}", "dynamic_sum", one(shape, FLOATS[:count(shape)]))
    calls.infer("infer fixed_shape", "fixed_shape", one((3, 4), FLOATS[:12]))
    calls.infer("infer fixed_shape with another", "fixed_shape", one((2, 4), FLOATS[:8]))
    calls.infer("infer scalar_out", "scalar_out", one((2, 4), FLOATS[:8]))
    calls.infer("infer scalar_out binary", "scalar_out", one((2, 4), FLOATS[:8], **BINARY_OUTPUT))
    calls.infer("infer ir_add", "ir_add", one())
    calls.infer("infer ml_scaler", "ml_scaler", one())
    calls.infer("infer external_data", "external_data", one())
    calls.infer("infer qoperator", "qoperator", one((1, 2, 4, 4), [0.125 * number for number in range(32)]))
    calls.infer("infer slow", "slow", one((1, 16), FLOATS))
    for name, shape in {
            "of rank 1": [16],
            "of rank 3": [1, 1, 16],
            "negative": [-1, 16],
            "of floats": [1.5, 16],
            "text": "1",
            "missing": None,
            "huge": [2**62, 2**62],
            "wide": [1, 17],
            "no dimension": [],
    }.items():
        port = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": FLOATS}
        if shape is None:
            del port["shape"]
        body = document([port, tensor("INPUT1", "FP32", [1, 16], FLOATS)])
        calls.infer(f"refused shape: {name}", "add_sub", body)
    wrong = document([tensor("INPUT0", "FP32", [2, 16], FLOATS * 2), tensor("INPUT1", "FP32", [1, 16], FLOATS)])
    calls.infer("refused shape: batches that differ", "add_sub", wrong)


def outputs(calls):
    for name, wanted in {
            "one": [{"name": "OUTPUT1"}],
            "both turned round": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}],
            "none": [],
            "unknown": [{"name": "OUTPUT9"}],
            "one twice": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}],
            "one binary": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}],
            "binary that is no boolean": [{"name": "OUTPUT0", "parameters": {"binary_data": 1}}],
            "two classes": [{"name": "OUTPUT0", "parameters": {"classification": 2}}],
            "two classes binary": [{"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": True}}],
            "no classes": [{"name": "OUTPUT0", "parameters": {"classification": 0}}],
            "many classes": [{"name": "OUTPUT0", "parameters": {"classification": 1000}}],
            "classes that are no number": [{"name": "OUTPUT0", "parameters": {"classification": "two"}}],
            "shared memory": [{"name": "OUTPUT0", "parameters": {"shared_memory_region": "x"}}],
            "no name": [{}],
            "no object": ["OUTPUT0"],
            "too many": [{"name": str(number)} for number in range(2000)],
    }.items():
        calls.infer(f"infer with outputs: {name}", "add_sub", sums(2, outputs=wanted))
    labelled = [{"name": "probabilities", "parameters": {"classification": 3}}]
    calls.infer("infer wine_mlp", "wine_mlp", wine())
    calls.infer("infer wine_mlp with labels", "wine_mlp", wine(outputs=labelled))
    mixed = [{"name": "OUTPUT0", "parameters": {"binary_data": False}}, {"name": "OUTPUT1"}]
    by_default = sums(outputs=mixed, **BINARY_OUTPUT)
    calls.infer("infer with one output of JSON and binary ones by default", "add_sub", by_default)


def wine(**more):
    row = [13.2, 1.78, 2.14, 11.2, 100, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4, 1050]
    return one((1, 13), row, name="features", **more)


def parameters(calls):
    for name, value in {
            "priority 0": {"priority": 0},
            "priority 2": {"priority": 2},
            "priority text": {"priority": "high"},
            "priority negative": {"priority": -1},
            "timeout": {"timeout": 20000000},
            "timeout 0": {"timeout": 0},
            "timeout text": {"timeout": "1"},
            "unknown": {"colour": "red", "x": 1.5, "y": True},
            "no sequence": {"sequence_id": 0},
            "sequence": {"sequence_id": 7},
            "sequence of text": {"sequence_id": "a"},
            "sequence start": {"sequence_start": True},
            "a list": {"colour": [1]},
            "feature values": {"feature_values": True},
            "feature values text": {"feature_values": "yes"},
            "binary text": {"binary_data_output": "yes"},
    }.items():
        calls.infer(f"infer with parameter: {name}", "add_sub", sums(parameters=value))
    calls.infer("infer with parameters that are no object", "add_sub", sums(parameters=[]))
    calls.infer("infer with a parameter twice", "add_sub", sums()[:-1] + b',"parameters":{"priority":1,"priority":2}}')
    for header in ("interactive", "batch", "Batch", "1", "5", "urgent", "-1", ""):
        calls.infer(f"infer with x-ledge-priority {header!r}", "add_sub", sums(),
            headers=[JSON_BODY, ("x-ledge-priority", header)])
    for header in ("20000", "0", "-5", "1s"):
        calls.infer(f"infer with x-ledge-timeout-ms {header!r}", "add_sub", sums(),
            headers=[JSON_BODY, ("x-ledge-timeout-ms", header)])
    twice = [JSON_BODY, ("x-ledge-priority", "batch"), ("x-ledge-priority", "batch")]
    calls.infer("infer with x-ledge-priority twice", "add_sub", sums(), headers=twice)
    calls.infer("infer beyond a deadline in a header", "late", one((1, 16), FLOATS),
        headers=[JSON_BODY, ("x-ledge-timeout-ms", "1")])
    calls.infer("infer beyond a deadline in a parameter", "late", one((1, 16), FLOATS, parameters={"timeout": 1}))


def refused_bodies(calls):
    for name, body in {
            "empty": b"",
            "no JSON": b"hello",
            "cut": sums()[:-1],
            "a list": b"[]",
            "a text": b'"a"',
            "null": b"null",
            "no inputs": b"{}",
            "inputs that are an object": b'{"inputs":{}}',
            "inputs that are empty": b'{"inputs":[]}',
            "no UTF-8": b'{"id":"\xff"}',
            "an id that is a number": sums(id=7),
            "a long id": sums(id="x" * 2000),
            "inputs twice": sums()[:-1] + b',"inputs":[]}',
            "unknown keys": sums(colour="red"),
            "text behind it": sums() + b"x",
            "a byte order mark": b"\xef\xbb\xbf" + sums(),
            "depth": b'{"inputs":' + b"[" * 300 + b"]" * 300 + b"}",
            "JPEG": b"\xff\xd8\xff\xe0" + bytes(64),
    }.items():
        calls.infer(f"refused body: {name}", "add_sub", body)
    rows = json.loads(sums())["inputs"]
    for name, inputs in {
            "one input alone": rows[:1],
            "an input twice": [rows[0], rows[0], rows[1]],
            "an unknown input": [*rows, {**rows[0], "name": "X"}],
            "no name": [{**rows[0], "name": None}, rows[1]],
            "a datatype of none": [{**rows[0], "datatype": "FP31"}, rows[1]],
            "no datatype": [{name: value for name, value in rows[0].items() if name != "datatype"}, rows[1]],
            "no data": [{name: value for name, value in rows[0].items() if name != "data"}, rows[1]],
            "less data": [{**rows[0], "data": FLOATS[1:]}, rows[1]],
            "more data": [{**rows[0], "data": [*FLOATS, 1]}, rows[1]],
            "ragged data": [{**rows[0], "data": [FLOATS[:3], FLOATS[3:]]}, rows[1]],
            "data that is text": [{**rows[0], "data": "1"}, rows[1]],
            "a text among the data": [{**rows[0], "data": ["a", *FLOATS[1:]]}, rows[1]],
            "shared memory": [{**rows[0], "parameters": {"shared_memory_region": "x"}}, rows[1]],
            "binary size and data": [{**rows[0], "parameters": {"binary_data_size": 64}}, rows[1]],
    }.items():
        calls.infer(f"refused inputs: {name}", "add_sub", document(inputs))
    many = [tensor(str(number), "FP32", [1, 1], [1.0]) for number in range(2000)]
    calls.infer("refused inputs: too many", "add_sub", document(many))


def refused_binary(calls):
    rows = json.loads(sums())["inputs"]
    body, length = binary(rows)
    for name, sent, header in (
            ("without the header", body, None),
            ("a length beyond the body", body, len(body) + 1),
            ("a length of 0", body, 0),
            ("a length that is too short", body, length - 1),
            ("a length that is no number", body, "x"),
            ("a negative length", body, -1),
            ("bytes left over", body + b"1234", length),
    ):
        headers = [OCTETS] if header is None else [OCTETS, header_length(header)]
        calls.infer(f"refused binary: {name}", "add_sub", sent, headers=headers)
    texts = packed("BYTES", ["abc"])
    port = {"name": "IN", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 7}}
    head = json.dumps({"inputs": [port]}).encode()
    for name, data in {"cut": texts[:3] + b"\xff" + texts[4:], "too long a text": b"\x09" + texts[1:]}.items():
        calls.infer(
            f"refused binary: BYTES {name}", "identity_string", head + data, headers=[OCTETS, header_length(len(head))])


def refused_models(calls):
    calls.infer("refused model: unknown", "nobody", sums())
    calls.infer("refused model: a name that is none", "..", sums())
    calls.infer("refused model: a name in percents", "%61dd_sub", sums())
    calls.infer("refused model: a name that is no UTF-8", "%ff", sums())
    calls.infer("refused model: broken", "broken_png", sums())
    calls.infer("refused model: another version", "add_sub/versions/2", sums())
    calls.infer("refused model: a version that is none", "add_sub/versions/first", sums())
    calls.infer("refused model: a version that is huge", "add_sub/versions/99999999999999999999", sums())
    calls.infer("infer version 1", "versions/versions/1", sums())
    calls.infer("infer version 2", "versions/versions/2", sums())
    calls.infer("infer the latest of two versions", "versions", sums())
    calls.post("infer at a path with a slash at the end", "/v2/models/add_sub/infer/", sums())
    calls.infer("failed run", "bad_at_runtime", one(data=[1.0, -1.0, 1.0, 1.0]))
    calls.infer("good run of a model that has failed", "bad_at_runtime", one())
    calls.infer("limited model: the first call", "limited", sums())
    calls.infer("limited model: one too many", "limited", sums())


def cache(calls):
    calls.infer("cache: the first call", "cached", sums())
    calls.infer("cache: the same again", "cached", sums(id="again"))
    calls.infer("cache: the same in binary", "cached", sums(**BINARY_OUTPUT))
    calls.infer("cache: another call", "cached", sums(2))
    calls.infer("cache: a wrong call", "cached", b"{}")


def photographs(calls):
    for name, kind in (
            ("chelsea.jpg", "jpeg"),
            ("coffee.png", "png"),
            ("camera.webp", "webp"),
            ("camera_orientation6.jpg", "jpeg"),
    ):
        data = (PHOTOS / name).read_bytes()
        calls.infer(f"photograph {name}", "efficientnet_lite0", data, headers=[("content-type", f"image/{kind}")])
    chelsea = (PHOTOS / "chelsea.jpg").read_bytes()
    for name, data, kind in (
            ("of another type", chelsea, "image/png"),
            ("of any type", chelsea, "image/*"),
            ("of JSON's type", chelsea, "application/json"),
            ("without a type", chelsea, None),
            ("as a form", chelsea, "multipart/form-data; boundary=x"),
            ("cut", chelsea[:2000], "image/jpeg"),
            ("without its end marker", chelsea[:-2], "image/jpeg"),
            ("that is none", b"hello", "image/jpeg"),
            ("that is empty", b"", "image/jpeg"),
            ("that is a GIF", b"GIF89a" + bytes(20), "image/gif"),
    ):
        calls.infer(f"photograph {name}", "efficientnet_lite0", data, headers=[("content-type", kind)] if kind else [])
    calls.infer("photograph for a model without pictures", "add_sub", chelsea, headers=[("content-type", "image/jpeg")])
    for colour in ("red", "green", "blue", "grey"):
        data = (model_folder("quantized_colours") / f"{colour}.png").read_bytes()
        calls.infer(f"photograph {colour}", "quantized_colours", data, headers=[("content-type", "image/png")])
    pixels = tensor("pixels", "UINT8", [1, 4, 4, 3], [255, 0, 0] * 16)
    classes = [{"name": "scores", "parameters": {"classification": 2}}]
    calls.infer("pixels", "quantized_colours", document([pixels]))
    calls.infer("pixels to classes", "quantized_colours", document([pixels], outputs=classes))
    calls.infer("pixels for a model that does not load", "uint8_scores", document([pixels]))


def packed_bodies(calls):
    """Compressed bodies and answers."""
    raw = zlib.compressobj(wbits=-15)
    bare = raw.compress(sums()) + raw.flush()
    for name, body, encoding in (
            ("gzip", gzip.compress(sums(), mtime=0), "gzip"),
            ("x-gzip", gzip.compress(sums(), mtime=0), "X-GZip"),
            ("deflate", zlib.compress(sums()), "deflate"),
            ("bare deflate", bare, "deflate"),
            ("identity", sums(), "identity"),
            ("gzip that is none", sums(), "gzip"),
            ("gzip that is cut", gzip.compress(sums(), mtime=0)[:-9], "gzip"),
            ("br", sums(), "br"),
            ("gzip beyond the limit", gzip.compress(bytes(2 << 20), mtime=0), "gzip"),
    ):
        calls.infer(f"packed body: {name}", "add_sub", body, headers=[JSON_BODY, ("content-encoding", encoding)])
    for accepted in ("gzip", "deflate", "br", "gzip;q=0", "deflate, gzip", "*", "identity;q=0"):
        calls.infer(
            f"packed answer: {accepted}", "add_sub", sums(64), headers=[JSON_BODY, ("accept-encoding", accepted)])
    calls.infer("packed answer: too small to pack", "add_sub", sums(), headers=[JSON_BODY, ("accept-encoding", "gzip")])


def all_calls(calls):
    for group in (
            datatypes, special_floats, shapes, outputs, parameters, refused_bodies, refused_binary, refused_models,
            cache, photographs, packed_bodies):
        group(calls)
