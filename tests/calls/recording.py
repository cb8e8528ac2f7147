"""A recording: a line of JSON for each call."""
import base64
import hashlib
import json

from normal import Normalizer
from web import Connection, request

JSON_BODY = ("content-type", "application/json")


def as_text(data):
    """The fields of a line for DATA: text if it is UTF-8, otherwise base64."""
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(data).decode()}


def shortened(data):
    """A readable form of a request's body: short text as it is, otherwise its length and a digest."""
    if not data:
        return ""
    if len(data) <= 200 and data.isascii() and data.decode().isprintable():
        return data.decode()
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


class Recording:
    """Writes the lines. Each name is used once."""

    def __init__(self, file):
        self.file, self.names = file, set()

    def add(self, name, request, status, headers, body):
        if name in self.names:
            raise AssertionError(f"two calls are named {name!r}")
        self.names.add(name)
        line = {"name": name, "request": request, "status": status, "headers": headers, **as_text(body)}
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")


class Calls:
    """Calls to one box over HTTP, each recorded. Names begin with the box's."""

    def __init__(self, recording, box):
        self.recording, self.box, self.normalizer = recording, box, Normalizer(box.root)

    def __call__(self, name, method, path, body=None, headers=(), key=None, host="127.0.0.1", over="tcp", told=None):
        """One call on a new connection. Returns the answer as received. TOLD is recorded in place of the request."""
        headers = list(headers)
        words = [f"{header}: {value}" for header, value in headers]
        if key is not None:
            headers.append(("authorization", f"Bearer {self.box.keys[key]}"))
            words.append(f"key of {key}")
        words += [f"host {host}"] if host != "127.0.0.1" else []
        words += [over] if over != "tcp" else []
        with self.connection(over) as connection:
            connection.send(request(method, path, headers, body, host))
            answer = connection.receive(method)
        told = told or " | ".join(filter(None, [f"{method} {path}", *words, shortened(body)]))
        self.record(name, told[:1000], answer)
        return answer

    def connection(self, over):
        """A connection over `tcp`, `tls` or the Unix `socket`."""
        if over == "tls":
            return Connection(self.box.port_of("https"), tls=True)
        return Connection(self.box.socket if over == "socket" else self.box.port)

    def get(self, name, path, **more):
        return self(name, "GET", path, **more)

    def post(self, name, path, body=b"", headers=(JSON_BODY,), **more):
        """POST of bytes, or of a document that becomes JSON."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self(name, "POST", path, body=body, headers=headers, **more)

    def infer(self, name, model, body, **more):
        return self.post(name, f"/v2/models/{model}/infer", body, **more)

    def raw(self, name, data, answers=1, told=None, port=None):
        """Sends bytes as they are, and records the given number of answers."""
        with Connection(port or self.box.port) as connection:
            connection.send(data)
            for number in range(answers):
                suffix = f" ({number + 1})" if answers > 1 else ""
                self.record(name + suffix, told or f"raw {shortened(data)}", connection.receive())

    def record(self, name, told, answer):
        """Records an answer. The length of a normalized body is replaced, as it differs, too."""
        body = self.normalizer.body(told, answer.body)
        headers = self.normalizer.headers(told, answer.headers)
        if body != answer.body:
            headers = [[name, "<length>" if name.lower() == "content-length" else value] for name, value in headers]
        self.recording.add(f"{self.box.name}: {name}", told, answer.status, headers, body)
