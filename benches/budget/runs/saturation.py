"""Throughput with every core busy: the served network against the best that the runtime does in-process."""
import os

from .. import processes, stage
from ..figures import Row, Spread, percentile
from ..inprocess import open_reference
from ..ledge import Ledge, pipeline_config
from ..lanes import Lane, Round
from ..load import closed_loop, throughput
from ..rows.served import prepare_cpu
from ..wire import binary_call, request


class SaturatedLane(Lane):
    """A server asked by many callers at once."""

    def __init__(self, name, server, data, callers, model=None):
        """MODEL, of photographs, has the CPU time of decoding noted for each round, too."""
        super().__init__(name)
        self.server, self.data, self.callers, self.model = server, data, callers, model
        self.throughputs, self.client_us, self.decode_cpu_us = [], [], []

    def measure(self, seconds):
        pids = processes.tree(self.server.pid)
        client = processes.cpu_ns([os.getpid()])
        decoding = prepare_cpu(self.server, self.model) if self.model else 0
        threads, server = processes.thread_cpu_ns(pids), processes.cpu_ns(pids)
        samples = closed_loop(self.server.port, self.data, self.callers, seconds)
        server, after = processes.cpu_ns(pids) - server, processes.thread_cpu_ns(pids)
        wrong = [sample.status for sample in samples if sample.status != 200]
        if wrong:
            raise RuntimeError(f"{self.name}: {len(wrong)} of {len(samples)} answered otherwise, such as {wrong[0]}")
        per_call = 1e3 * len(samples)
        if self.model:
            self.decode_cpu_us.append((prepare_cpu(self.server, self.model) - decoding) / len(samples) * 1e6)
        self.throughputs.append(throughput(samples))
        self.client_us.append((processes.cpu_ns([os.getpid()]) - client) / per_call)
        each = {thread: (name, (ns - threads.get(thread, ("", 0))[1]) / per_call) for thread, (name, ns) in after.items()}
        latencies = [sample.latency_ms * 1e3 for sample in samples]
        return Round(len(samples), server / per_call, percentile(latencies, 0.5), percentile(latencies, 0.99), each)


def saturation(options):
    """For each runtime: one instance a core, against in-process with an instance a core, or one on all cores."""
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
                  f"one instance of {cores} threads": open_reference(*where, threads=cores)}
    if runtime == "onnxruntime":
        references[f"one instance of {cores} spinning threads"] = open_reference(*where, threads=cores, spin=True)
    tensors = SaturatedLane("602 KB over the socket", daemon, binary_call(f"network_{runtime}", stage.picture()), 2 * cores)
    photos = SaturatedLane("JPEG in", daemon, photo, 2 * cores, f"network_{runtime}")
    try:
        lanes = [*references.values(), tensors, photos]
        for lane in lanes:
            lane.measure(0.5)
            lane.throughputs.clear()  # a warm-up
        tensors.client_us.clear(), photos.client_us.clear()
        for _ in range(min(options.rounds, options.saturation_rounds)):
            for lane in lanes:
                lane.rounds.append(lane.measure(options.saturation_seconds))
    finally:
        for lane in references.values():
            lane.worker.stop()
    options.keep(f"saturation, {runtime}", lanes)
    options.keep_raw(f"saturation, {runtime}, answers a second", {
        **{name: lane.throughputs for name, lane in references.items()}, "tensors": tensors.throughputs,
        "photographs": photos.throughputs})
    best_name, best = max(references.items(), key=lambda item: Spread.of(item[1].throughputs).median)
    inprocess = f"in-process {Spread.of(best.throughputs).show()}/s ({best_name}, the best of {len(references)})"
    yield row(f"at saturation, 602 KB over the socket, {runtime}", tensors, best.throughputs, inprocess)
    # In-process and decoding too: each run takes so much more of the cores' time.
    decode = photos.decode_cpu_us[-len(photos.rounds):]
    with_decoding = [each * one.cpu_us / (one.cpu_us + us) for each, one, us in zip(best.throughputs, best.rounds, decode)]
    yield row(f"at saturation, JPEG in, {runtime}", photos, with_decoding,
              f"{inprocess}, reckoned with {Spread.of(decode).show(1e-3)} ms of decoding {Spread.of(with_decoding).show()}/s")


def row(what, lane, reference, told):
    share = Spread.of(100 * ours / theirs for ours, theirs in zip(lane.throughputs, reference))
    return Row(what, "% of in-process", None, share, verdict="no budget", beside=[
        f"{Spread.of(lane.throughputs).show()}/s; {told}",
        f"{lane.callers} callers, p99 {lane.p99_us().show(1e-3)} ms; CPU a call: the daemon {lane.cpu_us().show(1e-3)} ms, "
        f"the client on the same cores {Spread.of(lane.client_us).show(1e-3)} ms"])
