"""One contender doing one thing, and the interleaving of several: A B C A B C ...

What disturbs the machine for a second then disturbs each of them alike, and a ratio is taken within a round.
"""
import collections
import time
from dataclasses import dataclass
from typing import Dict, List, Tuple

from . import processes
from .figures import Spread, digits, percentile
from .load import closed_loop
from .wire import Connection, in_turn


@dataclass(frozen=True)
class Round:
    """The figures of one contender in one round."""

    calls: int
    cpu_us: float  # of the server's whole process tree, for each call, without the client
    p50_us: float
    p99_us: float
    threads_us: Dict[int, Tuple[str, float]]  # CPU of each thread, with its name, for each call; empty if not known


class Lane:
    """A contender; subclasses define a round."""

    def __init__(self, name):
        self.name = name
        self.rounds: List[Round] = []

    def measure(self, seconds):
        raise NotImplementedError

    def cpu_us(self):
        return Spread.of(each.cpu_us for each in self.rounds)

    def p50_us(self):
        return Spread.of(each.p50_us for each in self.rounds)

    def p99_us(self):
        return Spread.of(each.p99_us for each in self.rounds)

    def rate(self, seconds):
        """Calls a second, of rounds that took SECONDS each."""
        return Spread.of(each.calls / seconds for each in self.rounds)

    def show(self):
        """`p50 83 [80-91] us, p99 ..., CPU 61 [60-64] us`."""
        return f"p50 {self.p50_us().show()} us, p99 {self.p99_us().show()} us, CPU {self.cpu_us().show()} us"

    def by_thread(self, least_us=1.0):
        """`infer-x 4231 us, control 120 us`: where the CPU time of a call went, mean over the rounds."""
        spent = collections.Counter()
        for each in self.rounds:
            for name, us in each.threads_us.values():
                spent[name] += us / len(self.rounds)
        return ", ".join(f"{name} {digits(us)} us" for name, us in spent.most_common() if us >= least_us)

    def as_json(self):
        return {"name": self.name, "rounds": [vars(each) for each in self.rounds]}


class ServedLane(Lane):
    """A server on one kept-alive connection. The next request is sent after the last answer."""

    def __init__(self, name, server, data, inspect=None):
        """DATA is a request, or a list of requests that are sent in turns.

        INSPECT, if given, gets the connection after each answer, outside of the measured time.
        """
        super().__init__(name)
        self.server, self.requests, self.inspect = server, in_turn(data), inspect
        self.connection = Connection(server.port)
        self.ask()  # a request that the server refuses ends here, not in the middle of the rounds

    def ask(self):
        """One call. A refusal of the server is raised with its message."""
        status = self.connection.call(next(self.requests))
        if status != 200:
            raise RuntimeError(f"{self.name}: status {status}: {self.connection.body[:300]!r}")

    def measure(self, seconds):
        # A worker that started or ended within the round would be missing in one of the two sums: repeat that round.
        for _ in range(3):
            pids = processes.tree(self.server.pid)
            threads, before = processes.thread_cpu_ns(pids), processes.cpu_ns(pids)
            latencies = self.drive(seconds)
            if processes.tree(self.server.pid) == pids:
                spent = processes.cpu_ns(pids) - before
                each = {thread: (name, (ns - threads.get(thread, ("", 0))[1]) / len(latencies) / 1e3)
                        for thread, (name, ns) in processes.thread_cpu_ns(pids).items()}
                return Round(len(latencies), spent / len(latencies) / 1e3,
                             percentile(latencies, 0.5) / 1e3, percentile(latencies, 0.99) / 1e3, each)
        raise RuntimeError(f"{self.name}: its processes started or ended in every round")

    def drive(self, seconds):
        latencies, clock, call, requests = [], time.perf_counter_ns, self.connection.call, self.requests
        now = clock()
        end = now + int(seconds * 1e9)
        while now < end:
            data = next(requests)
            start = clock()
            status = call(data)
            now = clock()
            if status != 200:
                raise RuntimeError(f"{self.name}: status {status}: {self.connection.body[:300]!r}")
            latencies.append(now - start)
            if self.inspect:
                self.inspect(self.connection)
        return latencies


class LoadedLane(Lane):
    """A server and many callers at a time, each of which sends its next request after its last answer."""

    def __init__(self, name, server, data, clients=16):
        super().__init__(name)
        self.server, self.data, self.clients = server, data, clients

    def measure(self, seconds):
        pids = processes.tree(self.server.pid)
        before = processes.cpu_ns(pids)
        samples = closed_loop(self.server.port, self.data, self.clients, seconds)
        if processes.tree(self.server.pid) != pids:
            raise RuntimeError(f"{self.name}: its processes started or ended under load")
        spent = processes.cpu_ns(pids) - before
        refused = [sample.status for sample in samples if sample.status != 200]
        if refused:
            raise RuntimeError(f"{self.name}: {len(refused)} of {len(samples)} calls failed, one with status {refused[0]}")
        us = [sample.latency_ms * 1e3 for sample in samples]
        return Round(len(samples), spent / len(samples) / 1e3, percentile(us, 0.5), percentile(us, 0.99), {})


def interleave(lanes, rounds, seconds, warm_up=0.3):
    """Runs all lanes ROUNDS times in turns, SECONDS each, after a warm-up that is not counted."""
    for lane in lanes:
        lane.measure(warm_up)
    for _ in range(rounds):
        for lane in lanes:
            lane.rounds.append(lane.measure(seconds))


def ratio(one, other, value="cpu_us", less=0.0):
    """ONE's figure divided by OTHER's, round by round; LESS is subtracted from ONE's first."""
    return Spread.of((getattr(a, value) - less) / getattr(b, value) for a, b in zip(one.rounds, other.rounds))
