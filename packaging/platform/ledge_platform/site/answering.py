"""Whether nginx and the broker answer as boxes need it."""
import http.client
import socket
import ssl
from contextlib import closing
from urllib.parse import urlsplit

from .configuration import is_local
from .layout import MQTT_PORT, OWN

LIMIT_S = 10
# MQTT 3.1.1: CONNECT with a clean session and the client id "doctor", and the answer that accepts it.
CONNECT = bytes([0x10, 18]) + b"\x00\x04MQTT\x04\x02\x00\x1e\x00\x06doctor"
CONNACK, DISCONNECT = b"\x20\x02\x00\x00", b"\xe0\x00"
NO_ANSWER = f"/join/answers/{'0' * 64}.json"


def context(layout, with_certificate):
    found = ssl.create_default_context(cafile=layout.ca / "root.pem")
    if with_certificate:
        found.load_cert_chain(layout.platform_certificate, layout.platform_key)
    return found


def connected(host, port, name, tls):
    """A connection to HOST whose server has a certificate for NAME."""
    plain = socket.create_connection((host, port), LIMIT_S)
    try:
        return tls.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def status(host, layout, path, with_certificate):
    connection = http.client.HTTPConnection(layout.domain, layout.https_port, timeout=LIMIT_S)
    with closing(connection):
        connection.sock = connected(host, layout.https_port, layout.domain, context(layout, with_certificate))
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(200).decode(errors="replace")


def check(platform, ok, warning, wrong):
    """Own servers are asked on this machine, because a router may not lead its public name back to it."""
    layout = platform.layout
    if not is_local(layout.domain):
        try:
            socket.getaddrinfo(layout.domain, None)
        except OSError as error:
            yield warning(f"{layout.domain} has no address here ({error.strerror})", "boxes need one in their DNS")

    host = "127.0.0.1" if layout.web_server == OWN else layout.domain
    unit = "ledge-platform-web" if layout.web_server == OWN else "your nginx"
    try:
        asked = {"with the certificate of the platform": ("/metadata/timestamp.json", True, 200),
                 "without a certificate, for an answer that does not exist": (NO_ANSWER, False, 404),
                 "without a certificate, for the repository": ("/metadata/timestamp.json", False, 400)}
        for how, (path, with_certificate, expected) in asked.items():
            found, said = status(host, layout, path, with_certificate)
            if found != expected:
                yield wrong(f"port {layout.https_port} answers {found} and not {expected} {how}",
                            f"{said.strip()!r}; see `journalctl -u {unit}`")
                break
        else:
            yield ok(f"port {layout.https_port} serves the repository, and requests to join")
    except (OSError, http.client.HTTPException) as error:
        yield wrong(f"port {layout.https_port} of {host} does not serve {layout.domain} ({reason(error)})",
                    remedy(error, layout.https_port, unit))

    address = urlsplit(layout.broker_url)
    port = address.port or MQTT_PORT
    host = "127.0.0.1" if layout.broker == OWN else address.hostname
    unit = "ledge-platform-broker" if layout.broker == OWN else "your broker"
    try:
        with connected(host, port, address.hostname, context(layout, True)) as stream:
            stream.sendall(CONNECT)
            if stream.recv(4) == CONNACK:
                stream.sendall(DISCONNECT)
                yield ok(f"port {port} is the broker, and takes the platform's certificate")
            else:
                yield wrong(f"the broker on port {port} refuses the platform's certificate",
                            f"see `journalctl -u {unit}`")
    except OSError as error:
        why = reason(refusal(host, port, address.hostname, layout, error))
        yield wrong(f"port {port} of {host} is no broker for the platform ({why})", remedy(error, port, unit))


def refusal(host, port, name, layout, error):
    """Why a server does not take the certificate: TLS 1.3 says so after the handshake, often too late to be read."""
    tls = context(layout, True)
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        connected(host, port, name, tls).close()
    except ssl.SSLError as told:
        return told
    except OSError:
        pass
    return error


def reason(error):
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def remedy(error, port, unit):
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens: `systemctl restart {unit}`, and `journalctl -u {unit}` for the reason"
    return f"`ss -ltnp sport = :{port}` says which program has the port"
