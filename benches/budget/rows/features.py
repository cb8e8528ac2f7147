"""The feature store: in-process beside sled alone and redb, and over HTTP beside Feast's own server."""
import json
import random
import shutil
import subprocess
import sys
from datetime import datetime, timezone

from peers import contenders, fetch

from .. import processes
from ..figures import NOT_MEASURED, Row, Spread, percentile
from ..lanes import ServedLane, interleave
from ..ledge import CHECKOUT, WORK, Ledge
from ..load import closed_loop, throughput
from ..servers import NotReady
from ..wire import request
from .requests import beside

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
FEAST_ENTITIES = 20_000  # its store takes some 2,000 rows a second here
CALLERS = 100


def feature_store(_, options):
    """The benchmark program's own processes; it is built by cargo."""
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
    """The daemon with a feature view and no model."""

    def __init__(self):
        super().__init__("features", settings=["quota.max_rate_per_principal=0", "quota.max_concurrent_per_principal=0"])
        shutil.rmtree(self.folder / "features", ignore_errors=True)
        views = self.folder / "feature_views.d"
        views.mkdir(exist_ok=True)
        (views / "views.toml").write_text(VIEWS)

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
    """Rows of random entities, one a request."""
    return [request("/push", push_body([random.randrange(entities)]), JSON) for _ in range(count)]


def reads(entities, count=5000):
    """All features of random entities, one a request."""
    bodies = ({"features": [f"profile:{name}" for name in NAMES], "entities": {"user_id": [random.randrange(entities)]}}
              for _ in range(count))
    return [request("/get-online-features", json.dumps(body, separators=(",", ":")).encode(), JSON) for body in bodies]


def feature_server(_, options):
    """Ledge, and Feast's server when the peers are asked for, with the same requests."""
    with Store() as ours:
        ours.fill(options.entities)
        if not options.peers:
            yield from served([ours], options)
            return
        try:
            with contenders.Feast(WORK / "feast", min(FEAST_ENTITIES, options.entities)) as feast:
                yield from served([ours, feast], options)
        except (NotReady, fetch.Missing, subprocess.CalledProcessError) as reason:
            print(f"  left out: Feast: {reason}", file=sys.stderr)
            yield from served([ours], options)


def served(servers, options):
    """What one caller gets, then a hundred."""
    memory = [f"{server.name}: {processes.rss_kib(processes.tree(server.pid)) / 1000:.0f} MB {server.holds()}" for server in servers]
    for what, limit, requests in (("20 features of one entity", 150, reads), ("push of a row, durable", None, pushes)):
        lanes = [ServedLane(server.name, server, requests(server.entities)) for server in servers]
        interleave(lanes, options.rounds, options.seconds)
        options.keep(f"feature store over HTTP: {what}", lanes)
        shown = [lanes[0].show(), *(beside(lane, lanes[0], "p50_us") for lane in lanes[1:])]
        budget = {"limit": limit} if limit else {"verdict": "no budget"}
        yield Row(f"feature store over HTTP: {what}, p50", "us", measured=lanes[0].p50_us(), beside=shown + memory, **budget)
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
    options.keep_raw("feature store over HTTP: 100 callers", rates)
    yield Row(f"feature store over HTTP: durable writes acknowledged, {CALLERS} callers", "/s", 10_000,
              Spread.of(rate for rate, *_ in rates[servers[0].name]), at_least=True, beside=shown)


def crowd(server, seconds):
    """Callers that each push again when they are answered: (acknowledged a second, p50 ms, p99 ms, CPU us of each, % lost)."""
    before = processes.cpu_ns(processes.tree(server.pid))
    samples = closed_loop(server.port, pushes(server.entities), CALLERS, max(seconds, 1))
    spent = processes.cpu_ns(processes.tree(server.pid)) - before
    lost = sum(sample.status != 200 for sample in samples)
    if lost and server.name == Store.name:
        raise RuntimeError(f"{server.name}: {lost} of {len(samples)} pushes were not acknowledged")
    latencies = [sample.latency_ms for sample in samples]
    return throughput(samples), percentile(latencies, 0.5), percentile(latencies, 0.99), spent / len(samples) / 1e3, 100 * lost / len(samples)
