"""Throughput with every core busy: the served network against the best that the runtime does in-process."""
import os

from .. import processes, stage
from ..figures import Row, Spread, digits, percentile
from ..inprocess import open_reference
from ..ledge import Ledge, pipeline_config
from ..load import closed_loop, throughput
from ..wire import binary_call, request


class SaturatedLane:
    """A server asked by many callers at once."""

    def __init__(self, name, server, data, callers):
        self.name, self.server, self.data, self.callers = name, server, data, callers
        self.throughputs, self.rounds = [], []

    def measure(self, seconds):
        pids = processes.tree(self.server.pid)
        server, client = processes.cpu_ns(pids), processes.cpu_ns([os.getpid()])
        samples = closed_loop(self.server.port, self.data, self.callers, seconds)
        server, client = processes.cpu_ns(pids) - server, processes.cpu_ns([os.getpid()]) - client
        wrong = [sample.status for sample in samples if sample.status != 200]
        if wrong:
            raise RuntimeError(f"{self.name}: {len(wrong)} of {len(samples)} answered otherwise, such as {wrong[0]}")
        self.throughputs.append(throughput(samples))
        return {"per_second": self.throughputs[-1], "cpu_us": server / len(samples) / 1e3,
                "client_cpu_us": client / len(samples) / 1e3,
                "p99_ms": percentile([sample.latency_ms for sample in samples], 0.99)}


def saturation(options):
    """For each runtime: one instance a core, against in-process with either an instance a core or one on all cores."""
    cores = len(os.sched_getaffinity(0))
    daemon = Ledge("saturation")
    for runtime in stage.RUNTIMES:
        daemon.add(f"network_{runtime}", "models/efficientnet_lite0", pipeline_config(runtime, instances=cores))
    with daemon:
        for runtime in stage.RUNTIMES:
            yield from one_runtime(daemon, runtime, cores, options)


def one_runtime(daemon, runtime, cores, options):
    path = f"/v2/models/network_{runtime}"
    photo = request(f"{path}/infer", stage.photo(), [("Content-Type", "image/jpeg")])
    where = (runtime, stage.NETWORK, stage.picture_file(), stage.NETWORK_SHAPE)
    references = {f"{cores} instances of one thread": open_reference(*where, threads=1, instances=cores),
                  f"one instance of {cores} threads": open_reference(*where, threads=cores, instances=1)}
    tensors = SaturatedLane("602 KB over the socket", daemon, binary_call(f"network_{runtime}", stage.picture()), 2 * cores)
    photos = SaturatedLane("JPEG in", daemon, photo, 2 * cores)
    try:
        lanes = [*references.values(), tensors, photos]
        for lane in lanes:
            lane.measure(0.5)
            lane.throughputs.clear()
        for _ in range(options.rounds):
            for lane in lanes:
                lane.rounds.append(lane.measure(options.saturation_seconds))
    finally:
        for lane in references.values():
            lane.worker.stop()
    best_name, best = max(references.items(), key=lambda item: Spread.of(item[1].throughputs).median)
    options.keep_raw(f"saturation, {runtime}", {
        **{name: lane.throughputs for name, lane in references.items()}, "tensors": tensors.rounds, "photos": photos.rounds})
    inprocess = f"in-process {Spread.of(best.throughputs).show()}/s ({best_name}, the better of two)"
    for lane in (tensors, photos):
        share = Spread.of(100 * ours / theirs for ours, theirs in zip(lane.throughputs, best.throughputs))
        last = lane.rounds[-1]
        yield Row(f"at saturation, {lane.name}, {runtime}", "% of in-process", None, share, verdict="no budget", beside=[
            f"{Spread.of(lane.throughputs).show()}/s, {inprocess}; {lane.callers} callers, p99 {digits(last['p99_ms'])} ms",
            f"the client on the same cores takes {digits(last['client_cpu_us'])} us of CPU a call, "
            f"the daemon {digits(last['cpu_us'] / 1e3)} ms"])
