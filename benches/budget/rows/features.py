"""The feature store: in-process compared with plain sled and with redb, and over HTTP compared with Feast's own server."""
import json
import random
import shutil
import subprocess
from datetime import datetime, timezone

from peers import contenders, fetch

from .. import processes, stage
from ..figures import NOT_MEASURED, Row, Spread, percentile
from ..lanes import ServedLane, interleave
from ..ledge import CHECKOUT, ONE_THREAD, WORK, Ledge
from ..load import closed_loop, throughput
from ..servers import NotReady
from ..wire import json_call, request
from .requests import beside, ratios

NAMES = [f"f{at}" for at in range(20)]
VIEWS = """
[[entity]]
name = "user"
join_key = "user_id"
value_type = "Int64"

[[feature_view]]
name = "profile"
entities = ["user"]
ttl = "24h"
source = { name = "users" }
schema = [%s]
""" % ", ".join(f'{{ name = "{name}", dtype = "Float32" }}' for name in NAMES)
JSON = [("Content-Type", "application/json")]
WINE_VIEW = """
[[entity]]
name = "wine"
join_key = "wine_id"

[[feature_view]]
name = "lab"
entities = ["wine"]
schema = [{ name = "analysis", dtype = "Array(Float32)" }]
"""
WINE_INPUT = """
[[input]]
name = "features"
features = ["lab:analysis"]
"""
FEAST_ENTITIES = 20_000  # its store takes some 2,000 rows a second here
CALLERS = 100


def feature_store(_, options):
    """Runs the benchmark program, which cargo builds."""
    kept = WORK / "feature_store.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    command = ["cargo", "bench", "--locked", "--quiet", "--bench", "feature_store", "--", "--brief", "--entities", str(options.entities),
               "--rounds", str(options.rounds), "--seconds", str(options.seconds), "--folder", str(WORK / "stores"), "--json", str(kept)]
    what = f"feature store, {options.entities:,} entities: point read of 20 features"
    if shutil.which("cargo") is None:
        yield Row(what, "us", 10, verdict=f"{NOT_MEASURED}: cargo is not on the PATH")
        return
    result = subprocess.run(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"the benchmark program ended with {result.returncode}: {result.stderr.strip()[-300:]}")
    report = json.loads(kept.read_text())
    options.keep_raw("feature store", report)
    found = {row["what"]: row["rounds"] for row in report["rows"]}

    def spread(row, store, value):
        return Spread.of(each[value] for each in found[row][store])

    def line(row, store):
        each = {value: spread(row, store, value).show() for value in ("p50_us", "p99_us", "cpu_us")}
        rate = Spread.of(round_["operations"] / round_["seconds"] for round_ in found[row][store])
        return f"{store}: {rate.show()}/s, p50 {each['p50_us']} us, p99 {each['p99_us']} us, CPU {each['cpu_us']} us"

    one, many = "point read, 1 caller", "durable write of a row, 100 callers"
    yield Row(what, "us", 10, spread(one, "ledge", "p50_us"), beside=[line(one, store) for store in found[one]])
    rates = Spread.of(each["operations"] / each["seconds"] for each in found[many]["ledge"])
    yield Row("feature store: durable writes acknowledged, 100 callers in-process", "/s", 10_000, rates, at_least=True,
              beside=[line(many, store) for store in found[many]])
    sizes = {store: rounds[-1]["sizes"] for store, rounds in found["after reads and writes"].items()}
    yield Row("feature store: memory of the process", "MB", 150, Spread.of([sizes["ledge"]["rss_mb"]]),
              beside=[f"{store}: {size['rss_mb']:.0f} MB, at most {size['peak_mb']:.0f}; disk {size['disk_mb']:.0f} MB"
                      for store, size in sizes.items()])


class Store(Ledge):
    """The daemon with an empty feature store, and no model unless one is added."""

    def __init__(self, folder="features", declared=VIEWS):
        super().__init__(folder, settings=["quota.max_rate_per_principal=0", "quota.max_concurrent_per_principal=0"])
        shutil.rmtree(self.folder / "features", ignore_errors=True)
        views = self.folder / "feature_views.d"
        views.mkdir(exist_ok=True)
        (views / "views.toml").write_text(declared)

    def holds(self):
        return f"with {self.entities} entities"

    def fill(self, entities):
        """Pushes every entity once."""
        self.entities = entities
        for first in range(0, entities, 500):
            status, body = self.get("/push", "POST", push_body(range(first, min(first + 500, entities))))
            if status != 200:
                raise RuntimeError(f"status {status}: {body[:300]!r}")


def push_body(users):
    df = {"user_id": list(users), **{name: [random.randrange(1 << 24) / 1e3 for _ in users] for name in NAMES}}
    df["event_timestamp"] = [datetime.now(timezone.utc).isoformat()] * len(users)
    return json.dumps({"push_source_name": "users", "df": df, "to": "online"}, separators=(",", ":")).encode()


def pushes(entities, count=2000):
    """Rows of random entities, one for each request."""
    return [request("/push", push_body([random.randrange(entities)]), JSON) for _ in range(count)]


def reads(entities, count=5000):
    """All features of random entities, one for each request."""
    bodies = ({"features": [f"profile:{name}" for name in NAMES], "entities": {"user_id": [random.randrange(entities)]}}
              for _ in range(count))
    return [request("/get-online-features", json.dumps(body, separators=(",", ":")).encode(), JSON) for body in bodies]


def feature_server(_, options):
    """Ledge; and with the peers, Ledge and Feast's server with the same number of entities and the same requests."""
    with Store() as ours:
        ours.fill(options.entities)
        yield from served([ours], options)
    if not options.peers:
        return
    try:
        with contenders.Feast(WORK / "feast", FEAST_ENTITIES) as feast, Store("features-beside-feast") as ours:
            ours.fill(FEAST_ENTITIES)
            yield from served([ours, feast], options)
    except (NotReady, fetch.Missing, subprocess.CalledProcessError) as reason:
        options.leave_out("Feast", reason)


def feature_inference(_, options):
    """Calls of the tiny model with its numbers, and with the key of an entity that has them as features; in turns."""
    tensor = stage.wine()
    store = Store("feature-inference", WINE_VIEW)
    store.add("wine_mlp", "models/wine_mlp", f'runtime = "onnxruntime"\n{ONE_THREAD}')
    store.add("wine_by_key", "models/wine_mlp", f'runtime = "onnxruntime"\n{ONE_THREAD}{WINE_INPUT}')
    with store:
        df = {"wine_id": ["barolo-1"], "analysis": [tensor.numbers]}
        status, body = store.get("/push", "POST", json.dumps({"push_source_name": "lab", "df": df}))
        if status != 200:
            raise RuntimeError(f"status {status}: {body[:300]!r}")
        by_key = request("/v2/models/wine_by_key/infer", b'{"entities":{"wine_id":["barolo-1"]}}', JSON)
        lanes = [ServedLane("by an entity key", store, by_key), ServedLane("by 13 numbers", store, json_call("wine_mlp", tensor))]
        answers = [json.loads(lane.connection.body)["outputs"][0]["data"] for lane in lanes]
        if answers[0] != answers[1]:
            raise RuntimeError(f"the numbers and the features of one wine have different answers: {answers}")
        interleave(lanes, options.rounds, options.seconds)
        options.keep("tiny model by an entity key", lanes)
        for lane in lanes:
            lane.connection.close()
    key, numbers = lanes
    for what, value, spread in (("p50", "p50_us", key.p50_us()), ("CPU", "cpu_us", key.cpu_us())):
        yield Row(f"tiny model over HTTP JSON, by an entity key: {what}", "us", measured=spread, verdict="no budget",
                  beside=[beside(numbers, key, value)])


def served(servers, options):
    """The figures of one caller, then of a hundred."""
    entities = f"{servers[0].entities:,} entities"
    memory = [f"{server.name}: {processes.rss_kib(processes.tree(server.pid)) / 1000:.0f} MB {server.holds()}" for server in servers]
    for what, limit, requests in (("20 features of one entity", 150, reads), ("push of a row, durable", None, pushes)):
        lanes = [ServedLane(server.name, server, requests(server.entities)) for server in servers]
        interleave(lanes, options.rounds, options.seconds)
        options.keep(f"feature store over HTTP, {entities}: {what}", lanes)
        shown = [lanes[0].show(), *(beside(lane, lanes[0], "p50_us") for lane in lanes[1:])]
        budget = {"limit": limit} if limit and len(servers) == 1 else {"verdict": "no budget"}
        yield Row(f"feature store over HTTP, {entities}: {what}, p50", "us", measured=lanes[0].p50_us(), beside=shown + memory,
                  ratios=ratios(lanes[1:], lanes[0], "p50_us"), **budget)
        yield Row(f"feature store over HTTP, {entities}: {what}, CPU", "us", measured=lanes[0].cpu_us(), verdict="no budget",
                  ratios=ratios(lanes[1:], lanes[0]))
        for lane in lanes:
            lane.connection.close()
    shown, rates = [], {}
    for _ in range(options.rounds):
        for server in servers:
            rates.setdefault(server.name, []).append(crowd(server, options.seconds))
    for name, rounds in rates.items():
        rate, p50, p99, cpu, lost = (Spread.of(each) for each in zip(*rounds))
        refused = f", {lost.show()} % not acknowledged" if lost.high else ""
        shown.append(f"{name}: {rate.show()}/s, p50 {p50.show()} ms, p99 {p99.show()} ms, CPU {cpu.show()} us{refused}")
    options.keep_raw(f"feature store over HTTP, {entities}: {CALLERS} callers", rates)
    ours = rates.pop(servers[0].name)
    # The least rate that the daemon must reach applies to the whole store, not again to the one compared with Feast's.
    budget = {"verdict": "no budget"} if rates else {"limit": 10_000, "at_least": True}
    to_ours = {name: Spread.of(each / own for (each, *_), (own, *_) in zip(rounds, ours)) for name, rounds in rates.items()}
    yield Row(f"feature store over HTTP, {entities}: durable writes acknowledged, {CALLERS} callers", "/s",
              measured=Spread.of(rate for rate, *_ in ours), beside=shown, ratios=to_ours, **budget)


def crowd(server, seconds):
    """Callers that each push again after the answer: (acknowledged a second, p50 ms, p99 ms, CPU us of each, % lost)."""
    before = processes.cpu_ns(processes.tree(server.pid))
    samples = closed_loop(server.port, pushes(server.entities), CALLERS, max(seconds, 1))
    spent = processes.cpu_ns(processes.tree(server.pid)) - before
    lost = sum(sample.status != 200 for sample in samples)
    if lost and server.name == Store.name:
        raise RuntimeError(f"{server.name}: {lost} of {len(samples)} pushes were not acknowledged")
    latencies = [sample.latency_ms for sample in samples]
    return throughput(samples), percentile(latencies, 0.5), percentile(latencies, 0.99), spent / len(samples) / 1e3, 100 * lost / len(samples)
