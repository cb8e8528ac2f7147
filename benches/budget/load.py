"""Many connections from one thread: a closed loop for throughput, an open loop for overload.

A raw-socket client over epoll. In the open loop a request has an intended time to be sent, and its latency counts from
then, whether or not the client or the server was late: a server that stalls cannot hide what it made others wait.
"""
import collections
import random
import select
import socket
import time
from dataclasses import dataclass
from typing import List

from .wire import content_length, in_turn

LOST = 0  # in place of a status: the connection closed, or the time ended, without an answer


@dataclass(frozen=True)
class Sample:
    """One request: when it was to be sent, when it was, when it was answered (perf_counter_ns), and its status."""

    intended: int
    sent: int
    answered: int
    status: int

    @property
    def latency_ms(self):
        return (self.answered - self.intended) / 1e6


class Stream:
    """A kept-alive connection with at most one request under way. Edge-triggered: it reads and writes until it would block."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.buffer = bytearray(64 << 10)
        self.unsent = memoryview(b"")
        self.usable, self.busy = True, False
        self.intended = self.sent = 0

    def begin(self, data, intended, now):
        self.unsent, self.filled, self.end = memoryview(data), 0, None
        self.intended, self.sent, self.busy = intended, now, True
        self.write()

    def write(self):
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
        except (BlockingIOError, ConnectionError):
            pass  # later; or never, and then `read` finds the answer that the server still sent, or that there is none

    def read(self):
        """The status once the answer is complete, LOST when there will be none, else None."""
        try:
            while self.end is None or self.filled < self.end:
                if self.filled == len(self.buffer):
                    self.buffer.extend(bytes(len(self.buffer)))
                count = self.socket.recv_into(memoryview(self.buffer)[self.filled:])
                if not count:
                    self.usable = False
                    return LOST
                self.filled += count
                head_end = self.buffer.find(b"\r\n\r\n", 0, self.filled)
                if self.end is None and head_end >= 0:
                    head = bytes(self.buffer[:head_end]).lower()
                    self.end = head_end + 4 + content_length(head)
                    self.usable = b"\r\nconnection: close" not in head
        except BlockingIOError:
            return None
        except ConnectionError:
            self.usable = False
            return LOST
        # Refused before all of it was sent: the answer counts, the connection cannot be used again.
        self.usable = self.usable and not self.unsent
        return int(self.buffer[9:12])


class Generator:
    """Streams to one server, and their samples."""

    def __init__(self, port, data, streams):
        self.port, self.requests = port, in_turn(data)
        self.poll = select.epoll()
        self.by_file = {}
        self.idle = []
        self.samples: List[Sample] = []
        for _ in range(streams):
            self.open()

    def open(self):
        stream = Stream(self.port)
        self.by_file[stream.socket.fileno()] = stream
        self.poll.register(stream.socket, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP)
        self.idle.append(stream)

    def forget(self, stream):
        del self.by_file[stream.socket.fileno()]
        self.poll.unregister(stream.socket)
        stream.socket.close()

    def send(self, intended):
        stream = self.idle.pop()
        stream.begin(next(self.requests), intended, time.perf_counter_ns())

    def collect(self, timeout):
        """Waits up to TIMEOUT seconds for events. Returns the number of requests that ended."""
        ended = 0
        for file, event in self.poll.poll(timeout):
            stream = self.by_file.get(file)
            if stream is None:
                continue
            if not stream.busy:
                if event & (select.EPOLLRDHUP | select.EPOLLHUP):  # closed by the server while idle
                    self.idle.remove(stream)
                    self.forget(stream)
                    self.open()
                continue
            stream.write()
            status = stream.read()
            if status is None:
                continue
            ended += 1
            stream.busy = False
            self.samples.append(Sample(stream.intended, stream.sent, time.perf_counter_ns(), status))
            if stream.usable:
                self.idle.append(stream)
            else:
                self.forget(stream)
                self.open()
        return ended

    def finish(self, patience):
        """Waits for the requests in flight; those without an answer by then are lost."""
        end = time.perf_counter() + patience
        while len(self.idle) < len(self.by_file) and time.perf_counter() < end:
            self.collect(0.05)
        now = time.perf_counter_ns()
        self.samples += [Sample(stream.intended, stream.sent, now, LOST)
                         for stream in self.by_file.values() if stream.busy]
        for stream in list(self.by_file.values()):
            self.forget(stream)
        self.poll.close()


def closed_loop(port, data, streams, seconds=None, until=None):
    """STREAMS callers sending DATA, a request or a list of them; each sends its next request after the answer: [Sample].

    It ends after SECONDS, or when UNTIL() is true.
    """
    generator = Generator(port, data, streams)
    end = time.perf_counter() + (seconds or float("inf"))
    while time.perf_counter() < end and not (until and until()):
        while generator.idle:
            generator.send(time.perf_counter_ns())
        generator.collect(0.05)
    generator.finish(60)
    return generator.samples


def open_loop(port, data, rate, seconds, most_streams, patience):
    """RATE requests a second, at random times as of many independent callers: [Sample].

    When MOST_STREAMS connections are busy, a request waits for one, and the wait counts as latency.
    """
    generator, chance = Generator(port, data, 8), random.Random(3)
    waiting = collections.deque()
    start = time.perf_counter_ns()
    end, due = start + int(seconds * 1e9), start
    while True:
        now = time.perf_counter_ns()
        while due <= now and due < end:
            waiting.append(due)
            due += int(chance.expovariate(rate) * 1e9)
        while waiting and (generator.idle or len(generator.by_file) < most_streams):
            if not generator.idle:
                generator.open()
            generator.send(waiting.popleft())
        if due >= end and not waiting:
            break
        generator.collect(max(0.0, min(0.05, (due - time.perf_counter_ns()) / 1e9)))
    generator.finish(patience)
    return generator.samples


def throughput(samples):
    """Answers of status 200 a second, from the first request to the last answer."""
    answered = [sample for sample in samples if sample.status == 200]
    if not answered:
        return 0.0
    return len(answered) * 1e9 / (max(s.answered for s in answered) - min(s.sent for s in samples))
