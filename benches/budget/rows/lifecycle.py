"""Reloads under load, and the time from start to ready."""
import shutil
import threading
import time

from .. import stage
from ..figures import Row, Spread, digits, percentile
from ..ledge import HOME, Ledge, pipeline_config
from ..load import closed_loop
from ..wire import binary_call

CALLERS = 2


class Reloads(threading.Thread):
    """Reloads a model COUNT times, each GAP seconds after the last. Yields the begin and the end of each."""

    def __init__(self, server, model, count, gap):
        super().__init__(daemon=True)
        self.server, self.model, self.count, self.gap = server, model, count, gap
        self.windows, self.refusals, self.done = [], [], False

    def run(self):
        try:
            for _ in range(self.count):
                time.sleep(self.gap)
                self.server.touch(self.model)
                began = time.perf_counter_ns()
                status, body = self.server.get(f"/v2/repository/models/{self.model}/load", "POST")
                self.windows.append((began, time.perf_counter_ns()))
                if status != 200:
                    self.refusals.append(body[:200])
            time.sleep(self.gap)
        finally:
            self.done = True


def reload_under_load(server, model, data, seconds, count, gap=0.5):
    """Callers send requests for SECONDS undisturbed, then while the model reloads COUNT times."""
    usual = closed_loop(server.port, data, CALLERS, seconds)
    reloads = Reloads(server, model, count, gap)
    reloads.start()
    during = closed_loop(server.port, data, CALLERS, until=lambda: reloads.done)
    reloads.join()
    if reloads.refusals or len(reloads.windows) < count:
        raise RuntimeError(f"{server.name} did not reload {model}: {reloads.refusals}")
    usual_ms = [sample.latency_ms for sample in usual]
    # A request belongs to a reload when the two overlap.
    worst = [max((sample.latency_ms for sample in during if sample.answered >= began and sample.sent <= ended), default=0)
             for began, ended in reloads.windows]
    return {
        "asked": len(during), "lost": sum(sample.status != 200 for sample in during),
        "p50_ms": percentile(usual_ms, 0.5), "p99_ms": percentile(usual_ms, 0.99), "usual_worst_ms": max(usual_ms),
        "worst_ms": worst, "reload_ms": [(ended - began) / 1e6 for began, ended in reloads.windows]}


def hot_reload(servers, options):
    """Two callers use the MobileNet-class model, which is reloaded again and again."""
    data = {"ledge": ("network_onnxruntime", binary_call("network_onnxruntime", stage.picture())),
            "triton": ("network", binary_call("network", stage.picture()))}
    seen = {key: reload_under_load(servers[key], *call, 6 * options.seconds, options.reloads)
            for key, call in data.items() if key in servers}
    options.keep_raw("hot reload", seen)
    ours = seen["ledge"]
    lines = [f"{servers[key].name}: {told(figures)}" for key, figures in seen.items()]
    yield Row("hot reload under load: requests lost", "lost", 0, Spread.of([ours["lost"]]), beside=lines[:1])
    yield Row("hot reload under load: worst request to the usual p99", "x", 2,
              worst_of([worst / ours["p99_ms"] for worst in ours["worst_ms"]]), beside=lines[1:])


def worst_of(values):
    """Judged by the worst one; the spread covers all."""
    return Spread(max(values), min(values), max(values))


def told(figures):
    worst, took = Spread.of(figures["worst_ms"]), Spread.of(figures["reload_ms"])
    return (f"{figures['asked']} requests, {figures['lost']} lost; p50 {digits(figures['p50_ms'])} ms, p99 "
            f"{digits(figures['p99_ms'])} ms, worst without a reload {digits(figures['usual_worst_ms'])} ms; worst of each "
            f"reload {worst.show()} ms; a reload took {took.show()} ms")


def ready_after_start(servers, options):
    """From spawning the daemon until it is ready and no model loads; with files in the page cache."""
    shipped = Ledge("start")
    for model in ("wine_mlp", "efficientnet_lite0"):
        shutil.copytree(HOME / "models" / model, shipped.models / model)
    compiled = Ledge("start-openvino").add("network", "models/efficientnet_lite0", pipeline_config("openvino"))
    empty = Ledge("start-empty")
    without, cold, warm, bare = [], [], [], []
    shipped.start(), shipped.stop()  # measures which runtime is faster, like the first start of a box
    for _ in range(options.starts):  # interleaved, too
        compiled.forget_compiled()
        for daemon, into in ((shipped, without), (compiled, cold), (compiled, warm), (empty, bare)):
            into.append(daemon.start())
            daemon.stop()
    options.keep_raw("ready after start", {"shipped": without, "cold": cold, "cached": warm, "no models": bare})
    yield Row("ready after start, the shipped models", "s", 0.3, Spread.of(without),
              beside=[f"without models {Spread.of(bare).show()} s"])
    yield Row("ready after start, OpenVINO with compiled-model cache", "s", 0.3, Spread.of(warm),
              beside=[f"without the cache {Spread.of(cold).show()} s"])
    yield from ready_beside_peers(servers, options)


def ready_beside_peers(servers, options):
    """The same models in ONNX Runtime on both sides, none of them compiled before; all servers start in turns."""
    models = stage.peer_models()
    one = [model for model in models if model.name == "network"]
    for what, held, keys in ((f"{len(models)} models", models, ("triton", "mlserver")), ("the int8 network alone", one, ("mosec network",))):
        ours = stage.ledge_with(f"start-{len(held)}", held)
        theirs = [servers[key] for key in keys if key in servers]
        seconds = {server.name: [] for server in (ours, *theirs)}
        for number in range(options.starts + 1):
            for server in (ours, *theirs):
                server.stop()
                ready_after = server.start()
                if number:  # the first one warms up
                    seconds[server.name].append(ready_after)
        ours.stop()
        options.keep_raw(f"ready after start, {what} in ONNX Runtime", seconds)
        mine = seconds.pop(ours.name)
        ratios = {name: Spread.of(each / own for each, own in zip(starts, mine)) for name, starts in seconds.items()}
        yield Row(f"ready after start, {what} in ONNX Runtime", "s", measured=Spread.of(mine), verdict="no budget", ratios=ratios,
                  beside=[f"{name} {ratios[name].show()} x ours: {Spread.of(starts).show()} s" for name, starts in seconds.items()])
