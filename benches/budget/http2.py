"""Calls over gRPC: a raw-socket client of HTTP/2 with one call at a time on each connection, and lanes with it."""
import select
import socket
import struct
import time

from . import processes
from .figures import percentile
from .lanes import Lane, Round

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW = 2**31 - 1


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header that enters the table of the connection (RFC 7541, 6.2.1)."""
    assert len(name) < 127 and len(value) < 127
    return b"\x40" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(tag, content):
    return varint(tag << 3 | 2) + varint(len(content)) + content


def infer_request(model, tensor):
    """A ModelInferRequest with one raw tensor, behind its prefix."""
    shape = b"".join(varint(dim) for dim in tensor.shape)
    described = field(1, tensor.name.encode()) + field(2, b"FP32") + field(3, shape)
    wanted = field(6, field(1, tensor.output.encode()))
    message = field(1, model.encode()) + field(5, described) + wanted + field(7, tensor.bytes)
    return b"\x00" + struct.pack(">I", len(message)) + message


class Caller:
    """A connection."""

    def __init__(self, port, path="/inference.GRPCInferenceService/ModelInfer"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", f"127.0.0.1:{port}"),
                ("te", "trailers"), ("content-type", "application/grpc")]
        self.head = b"".join(literal(name, value) for name, value in head)
        # The entries of the table, the last one first, behind 61 that every connection has: the headers of later calls.
        self.later_head = bytes(0x80 | 61 + place for place in range(len(head), 0, -1))
        self.stream, self.received, self.answer = -1, bytearray(), 0
        self.window, self.initial, self.frame_max, self.stream_window = 65535, 65535, 16384, 0
        self.unsent, self.done, self.settled, self.consumed = b"", False, False, 0
        settings = struct.pack(">HIHI", 4, WINDOW, 5, 2**24 - 1)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65535)))
        while not self.settled:
            self.receive()

    def begin(self, message):
        self.stream += 2
        self.stream_window, self.unsent, self.done, self.answer = self.initial, memoryview(message), False, 0
        self.send(frame(HEADERS, END_HEADERS, self.stream, self.head))
        self.head = self.later_head

    def send(self, before=b""):
        """Sends what the windows let through."""
        out = [before]
        while self.unsent:
            count = min(len(self.unsent), self.frame_max, self.window, self.stream_window)
            if count <= 0:
                break
            ends = END_STREAM if count == len(self.unsent) else 0
            out.append(struct.pack(">I", count)[1:] + bytes([DATA, ends]) + struct.pack(">I", self.stream))
            out.append(self.unsent[:count])
            self.unsent = self.unsent[count:]
            self.window -= count
            self.stream_window -= count
        self.socket.sendall(b"".join(out))

    def receive(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        self.received += data
        at, replies = 0, []
        while len(self.received) - at >= 9:
            length = int.from_bytes(self.received[at:at + 3], "big")
            if len(self.received) - at < 9 + length:
                break
            kind, flags = self.received[at + 3], self.received[at + 4]
            stream = int.from_bytes(self.received[at + 5:at + 9], "big")
            payload = bytes(self.received[at + 9:at + 9 + min(length, 64)])
            at += 9 + length
            if kind == SETTINGS and not flags & ACK:
                full = bytes(self.received[at - length:at])
                for number, value in struct.iter_unpack(">HI", full):
                    if number == 4:
                        self.initial = value
                    elif number == 5:
                        self.frame_max = value
                replies.append(frame(SETTINGS, ACK, 0, b""))
                self.settled = True
            elif kind == WINDOW_UPDATE:
                more = int.from_bytes(payload, "big")
                if stream:
                    self.stream_window += more if stream == self.stream else 0
                else:
                    self.window += more
            elif kind == PING and not flags & ACK:
                replies.append(frame(PING, ACK, 0, payload))
            elif kind in (RST_STREAM, GOAWAY):
                raise RuntimeError(f"the server ended the call: frame {kind} {payload!r}")
            elif kind == DATA:
                self.answer += length
                self.consumed += length
            if kind in (DATA, HEADERS) and flags & END_STREAM and stream == self.stream:
                self.done = True
        del self.received[:at]
        if self.consumed > 1 << 29:
            replies.append(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self.consumed)))
            self.consumed = 0
        if replies or self.unsent:
            self.send(b"".join(replies))


class GrpcLane(Lane):
    """A server and callers at a time over gRPC; each sends its next call after the answer."""

    def __init__(self, name, server, port, message, callers=1):
        super().__init__(name)
        self.server, self.message = server, message
        self.callers = [Caller(port) for _ in range(callers)]
        for caller in self.callers:
            caller.begin(message)
            while not caller.done:
                caller.receive()
            if not caller.answer:
                raise RuntimeError(f"{name}: the answer has no message")

    def measure(self, seconds):
        pids = processes.tree(self.server.pid)
        before = processes.cpu_ns(pids)
        latencies = self.drive(seconds)
        if processes.tree(self.server.pid) != pids:
            raise RuntimeError(f"{self.name}: its processes started or ended under load")
        spent = processes.cpu_ns(pids) - before
        return Round(len(latencies), spent / len(latencies) / 1e3,
                     percentile(latencies, 0.5) / 1e3, percentile(latencies, 0.99) / 1e3, {})

    def drive(self, seconds):
        latencies, clock, poll = [], time.perf_counter_ns, select.epoll()
        by_file, began = {}, {}
        for caller in self.callers:
            by_file[caller.socket.fileno()] = caller
            poll.register(caller.socket, select.EPOLLIN)
            began[caller] = clock()
            caller.begin(self.message)
        end, open_calls = clock() + int(seconds * 1e9), len(self.callers)
        while open_calls:
            for file, _ in poll.poll(30):
                caller = by_file[file]
                caller.receive()
                if caller.done:
                    now = clock()
                    if not caller.answer:
                        raise RuntimeError(f"{self.name}: an answer has no message")
                    latencies.append(now - began[caller])
                    if now < end:
                        began[caller] = clock()
                        caller.begin(self.message)
                    else:
                        caller.done, open_calls = False, open_calls - 1
        poll.close()
        return latencies
