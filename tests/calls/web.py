"""HTTP calls over plain sockets: the bytes are sent exactly as written here, and headers are kept in their order."""
import socket
import ssl

SOCKET_TIMEOUT_S = 60


class Answer:
    """The status, the headers in their order, and the body without its framing."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        return next((value for known, value in self.headers if known.lower() == name), None)


def request(method, path, headers=(), body=None, host="127.0.0.1"):
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1"]
    if host is not None:
        lines.append(f"host: {host}")
    lines += [f"{name}: {value}" for name, value in headers]
    names = {name.lower() for name, _ in headers}
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def unverified():
    """TLS without verification: the box has a self-signed certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Connection:
    """A connection to a TCP port of this machine (a number), with TLS or not, or to a Unix socket (a path)."""

    def __init__(self, place, tls=False):
        if isinstance(place, int):
            self.socket = socket.create_connection(("127.0.0.1", place), timeout=SOCKET_TIMEOUT_S)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(SOCKET_TIMEOUT_S)
            self.socket.connect(str(place))
        if tls:
            self.socket = unverified().wrap_socket(self.socket)
        self.stream = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, method="GET"):
        """The next answer."""
        line = self.stream.readline()
        if not line.startswith(b"HTTP/1."):
            raise OSError(f"expected an answer of HTTP, got {line!r}")
        status, headers = int(line.split()[1]), []
        while (line := self.stream.readline().rstrip(b"\r\n")):
            name, value = line.split(b":", 1)
            headers.append((name.decode("latin-1"), value.strip().decode("latin-1")))
        answer = Answer(status, headers, b"")
        if method != "HEAD" and status not in (204, 304) and status >= 200:
            answer.body = self._body(answer)
        return answer

    def _body(self, answer):
        if (answer.header("transfer-encoding") or "").lower() == "chunked":
            return self._chunks()
        length = answer.header("content-length")
        if length is None:
            return self.stream.read()
        body = self.stream.read(int(length))
        if len(body) != int(length):
            raise OSError(f"the body ended after {len(body)} of {length} bytes")
        return body

    def _chunks(self):
        body = b""
        while (size := int(self.stream.readline().split(b";")[0], 16)):
            body += self.stream.read(size)
            self.stream.readline()
        self.stream.readline()
        return body
