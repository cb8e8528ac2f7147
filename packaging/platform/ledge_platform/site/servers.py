"""Tells nginx and the broker what has changed: certificates, and who is refused from now on.

nginx ends idle connections of its old configuration at a reload, and others after worker_shutdown_timeout. mosquitto 2.0
reads its certificate, the authorities of clients and the list of revoked certificates again after SIGHUP, and keeps the
connections that are open: to end those of revoked boxes, it has to start again.
"""
import hashlib
import json

from .. import files
from ..errors import Failure
from . import machine, units

STATE = "servers.json"


def digests(layout):
    """What both servers read, and what is changed when open connections have to end."""
    def of(*paths):
        contents = (path.read_bytes() if path.exists() else b"" for path in paths)
        return hashlib.sha256(b"\0".join(contents)).hexdigest()

    read = of(layout.ca / "crl.pem", layout.server_certificate, layout.clients)
    return {"read": read, "ended": of(layout.ca / "revoked")}


def refresh(layout):
    """Does what the changes since the last run need. Returns lines to print."""
    state = layout.site_state / STATE
    before = json.loads(state.read_text()) if state.exists() else {}
    # Taken first: what changes meanwhile is seen by the next run.
    now = digests(layout)
    if now == before:
        return []
    lines = []
    web, broker = units.web_unit(layout), units.broker_unit(layout)
    lines += control("reload", web)
    if broker:
        lines += control("restart" if before and now["ended"] != before["ended"] else "reload", broker)
    files.write(state, json.dumps(now).encode())
    return lines


def remember(layout):
    """Servers that start read everything: only later changes count."""
    files.write(layout.site_state / STATE, json.dumps(digests(layout)).encode())


def control(action, unit):
    """Only for what runs: a server that is stopped reads everything when it starts."""
    systemctl = machine.program("systemctl")
    if machine.run(systemctl, "is-active", "--quiet", unit)[0]:
        return [f"{unit} does not run"]
    status, said = machine.run(systemctl, action, unit)
    if status:
        raise Failure(f"systemctl {action} {unit}: {said}")
    return [f"{action}: {unit}"]
