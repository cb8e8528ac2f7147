"""Requests as prebuilt bytes, and a blocking HTTP/1.1 client on a raw, kept-alive socket.

The client does as little as it can, because on a small machine its work is part of every wall time: about 15 us a call.
"""
import array
import itertools
import json
import socket


def request(path, body=b"", headers=(), method="POST"):
    """The bytes of one request."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def json_call(model, tensor, timeout_us=None):
    """An Open Inference Protocol call with the tensor as JSON numbers."""
    inputs = [{"name": tensor.name, "datatype": "FP32", "shape": tensor.shape, "data": tensor.numbers}]
    body = {"inputs": inputs, **({"parameters": {"timeout": timeout_us}} if timeout_us else {})}
    text = json.dumps(body, separators=(",", ":")).encode()
    return request(f"/v2/models/{model}/infer", text)


def binary_call(model, tensor, timeout_us=None):
    """The same with the tensor, and the answer's, as raw little-endian bytes behind the JSON."""
    parameters = {"binary_data_output": True, **({"timeout": timeout_us} if timeout_us else {})}
    inputs = [{"name": tensor.name, "datatype": "FP32", "shape": tensor.shape,
               "parameters": {"binary_data_size": len(tensor.bytes)}}]
    # Every output by its name: MLServer asks for that.
    outputs = [{"name": tensor.output, "parameters": {"binary_data": True}}]
    head = json.dumps({"parameters": parameters, "inputs": inputs, "outputs": outputs}, separators=(",", ":")).encode()
    headers = [("Inference-Header-Content-Length", len(head)), ("Content-Type", "application/octet-stream")]
    return request(f"/v2/models/{model}/infer", head + tensor.bytes, headers)


class Tensor:
    """An input: its numbers, their bytes as float32, and the names that the model has for input and output."""

    def __init__(self, name, output, shape, numbers):
        self.name, self.output, self.shape, self.numbers = name, output, shape, numbers
        self.bytes = array.array("f", numbers).tobytes()


def in_turn(data):
    """The one request again and again, or those of a list in turns."""
    return itertools.cycle([data] if isinstance(data, bytes) else data)


class Closed(ConnectionError):
    """The server closed the connection before its answer was complete."""


class Connection:
    """One kept-alive connection; one call at a time."""

    def __init__(self, port, timeout=60.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(1 << 20)
        self.view = memoryview(self.buffer)
        self.head_end = self.end = 0

    def call(self, data):
        """Sends a request and receives its whole answer. Returns the status; `head` and `body` have the rest."""
        self.socket.sendall(data)
        filled, end = 0, None
        while end is None or filled < end:
            count = self.socket.recv_into(self.view[filled:])
            if not count:
                raise Closed("connection closed by the server")
            filled += count
            if end is None:
                end = self.parse_head(filled)
                if end is not None and end > len(self.buffer):
                    raise ValueError(f"an answer of {end} bytes is larger than the client's buffer")
        self.end = end
        return int(self.buffer[9:12])

    def parse_head(self, filled):
        """The end of the answer, once its head is complete."""
        head_end = self.buffer.find(b"\r\n\r\n", 0, filled)
        if head_end < 0:
            return None
        self.head_end = head_end
        return head_end + 4 + content_length(self.head)

    @property
    def head(self):
        return bytes(self.buffer[:self.head_end]).lower()

    @property
    def body(self):
        return bytes(self.buffer[self.head_end + 4:self.end])

    def close(self):
        self.socket.close()


def content_length(head):
    """The length of the body, from a head in lower case."""
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        raise ValueError(f"an answer without Content-Length: {head[:200]!r}")
    stop = head.find(b"\r\n", at + 2)
    return int(head[at + 17:stop if stop > 0 else len(head)])
