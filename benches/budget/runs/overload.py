"""Overload: three times as many requests as the daemon can answer, sent without waiting for answers."""
import collections
import os
import threading

from .. import processes, stage
from ..figures import NOT_MEASURED, Row, Spread, digits, percentile
from ..ledge import Ledge, pipeline_config
from ..load import LOST, closed_loop, open_loop, throughput
from ..wire import binary_call, request

TIMES = 3
DEADLINE_MS = 3000
QUEUE = 32
ANSWERS = (200, 429, 504)
FULL_QUEUES = 2  # the limit of the p99 of accepted requests, in multiples of the time of a full queue


class MemoryWatch(threading.Thread):
    """Samples the daemon's resident memory twice a second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.seen, self.over = pid, [], threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            self.seen.append(processes.rss_kib([self.pid]) * 1024 / 1e6)

    def growth(self):
        """The median of the last quarter divided by that of the second quarter: the first fills the queue."""
        quarter = len(self.seen) // 4
        if not quarter:
            return 1.0
        return Spread.of(self.seen[-quarter:]).median / Spread.of(self.seen[quarter:2 * quarter]).median


def workload(kind):
    """A request of 602 KB, or a photograph of some 100 KB; the deadline is the model's."""
    if kind == "photo":
        return request("/v2/models/network/infer", stage.photo(), [("Content-Type", "image/jpeg")])
    return binary_call("network", stage.picture())


def overload(options, kind="tensor"):
    """Capacity by a closed loop before and after; between them an open loop at three times of it."""
    cores = len(os.sched_getaffinity(0))
    queue = f"queue = {{ max_size = {QUEUE}, default_timeout_ms = {DEADLINE_MS} }}\n"
    daemon = Ledge(f"overload-{kind}").add(
        "network", "models/efficientnet_lite0", queue + pipeline_config("onnxruntime", instances=cores))
    data, seconds = workload(kind), options.overload_seconds
    with daemon:
        closed_loop(daemon.port, data, 2 * cores, 1)
        capacity = [throughput(closed_loop(daemon.port, data, 2 * cores, seconds / 6))]
        watch = MemoryWatch(daemon.pid)
        watch.start()
        client = processes.cpu_ns([os.getpid()])
        samples = open_loop(daemon.port, data, TIMES * capacity[0], seconds, most_streams=512,
                            patience=2 * DEADLINE_MS / 1000 + 5)
        client = (processes.cpu_ns([os.getpid()]) - client) / 1e9 / seconds
        watch.over.set()
        watch.join()
        capacity.append(throughput(closed_loop(daemon.port, data, 2 * cores, seconds / 6)))
    yield from judged(samples, capacity, cores, watch, client, options, kind)


def judged(samples, capacity, cores, watch, client, options, kind):
    statuses = collections.Counter(sample.status for sample in samples)
    accepted = [sample.latency_ms for sample in samples if sample.status == 200]
    refused = [sample.latency_ms for sample in samples if sample.status == 429]
    lag = percentile([(sample.sent - sample.intended) / 1e6 for sample in samples], 0.99)
    options.keep_raw(f"overload, {kind}", {
        "capacity": capacity, "statuses": dict(statuses), "rss_mb": watch.seen, "accepted_p99_ms": percentile(accepted, 0.99)})
    goodput = throughput(samples)
    asked = f"asked {digits(len(samples) / options.overload_seconds)}/s for {options.overload_seconds:g} s"
    told = ", ".join(f"{count} x {status or 'none'}" for status, count in sorted(statuses.items()))
    what = f"overload at 3 x capacity, {kind}"
    yield Row(f"{what}: goodput to capacity", "%", 90,
              Spread.of([100 * goodput / each for each in capacity]), at_least=True, beside=[
                  f"{digits(goodput)}/s of {' and '.join(digits(each) for each in capacity)}/s before and after; {asked}: {told}",
                  f"the client on the same cores: {100 * client:.0f} % of a core; it sent p99 {digits(lag)} ms late"])
    refusals = f"refused in p50 {digits(percentile(refused, 0.5))} ms, p99 {digits(percentile(refused, 0.99))} ms" if refused else "none refused"
    # The last accepted request waits for a full queue and for the requests that are running.
    queue_ms = 1000 * (QUEUE + cores) / Spread.of(capacity).median
    limit = FULL_QUEUES * queue_ms
    # Answers after the deadline do not exist, so a limit near the deadline could not be missed.
    verdict = "" if limit < 0.8 * DEADLINE_MS else f"{NOT_MEASURED}: the deadline of {DEADLINE_MS} ms comes before the limit"
    yield Row(f"{what}: p99 of accepted", "ms", round(limit), Spread.of([percentile(accepted, 0.99)]), verdict=verdict,
              beside=[f"p50 {digits(percentile(accepted, 0.5))} ms; a full queue takes {digits(queue_ms)} ms; {refusals}"])
    unanswered = sum(count for status, count in statuses.items() if status == LOST or status not in ANSWERS)
    yield Row(f"{what}: without 200, 429 or 504", "requests", 0, Spread.of([unanswered]))
    yield Row(f"{what}: memory growth", "x", 1.1, Spread.of([watch.growth()]), beside=[
        f"resident {digits(min(watch.seen))} to {digits(max(watch.seen))} MB"] if watch.seen else [])
