"""What Prometheus needs to read the metrics of all boxes by one job: their addresses, and a ready-made job.

The certificate of such a box names its host, as people gave it to the platform. The box takes the certificate of the
platform's Prometheus, whose common name is `prometheus`, in place of an API key.

    boxes.json        the members with an address, for `file_sd_configs`; Prometheus reads it again when it changes
    prometheus.yml    the job; a Prometheus on another machine has a copy of this folder in the same place
    prometheus.pem, prometheus.key, root.pem
"""
import ipaddress
import json
import re
from urllib.parse import urlsplit

from .. import files
from ..certificates.authority import CLIENT, SERVER
from ..errors import Failure
from ..site.layout import DOMAIN
from . import requests
from .store import MEMBER

PORT, PORT_MIN = 9443, 1024
# The default of the box's own plain listener on loopback.
PORT_TAKEN = 8000
ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?|(?P<bare>[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){2,})")
NONE = "none"
TARGETS, JOB = "boxes.json", "prometheus.yml"
JOB_TEXT = """\
# The job that reads the metrics of all boxes, written by `ledge-platform init`. Copy it into the configuration of your
# Prometheus, or name this file under scrape_config_files. The rules of ledge.rules.yml expect the name `ledge`.
scrape_configs:
  - job_name: ledge
    scheme: https
    # A box that somebody took over answers with as much as it likes, and leads nowhere else.
    follow_redirects: false
    body_size_limit: 16MB
    sample_limit: 50000
    tls_config:
      ca_file: {folder}/root.pem
      cert_file: {folder}/prometheus.pem
      key_file: {folder}/prometheus.key
    file_sd_configs:
      - files: ["{folder}/boxes.json"]
"""


def address(text):
    """HOST[:PORT] as HOST:PORT, an IPv6 address in brackets."""
    invalid = Failure(f"metrics {text!r}: HOST[:PORT], with a name, an address, or an IPv6 address in brackets")
    found = ADDRESS.fullmatch(text.strip())
    if not found:
        raise invalid
    port = int(found["port"] or PORT)
    if not PORT_MIN <= port <= 65_535 or port == PORT_TAKEN:
        raise Failure(f"metrics {text!r}: a port from {PORT_MIN} to 65535 that no other listener of the box has")
    host = (found["bracketed"] or found["bare"] or found["host"]).lower()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        # The system would read a name such as 127.1 as an address.
        if found["bracketed"] or found["bare"] or not DOMAIN.fullmatch(host) or host.rpartition(".")[2].isdigit():
            raise invalid from None
        return f"{host}:{port}"
    if number.is_unspecified or number.is_multicast or number.version == 6 and number.scope_id:
        raise Failure(f"metrics {text!r}: no other machine reaches a box by this address")
    return f"[{number}]:{port}" if number.version == 6 else f"{number}:{port}"


def host_of(metrics):
    return metrics.rpartition(":")[0].strip("[]")


def certified(metrics):
    """(hosts, usages) of the certificate of a box with this address."""
    return ((host_of(metrics),), (CLIENT, SERVER)) if metrics else ((), None)


def refuse_host(layout, metrics):
    """A certificate of a box must not be one of the platform's servers, nor have a name that servers know others by."""
    host = host_of(metrics)
    own = (layout.domain, *layout.addresses, urlsplit(layout.broker_url).hostname)
    if host in {known.lower() for known in own}:
        raise Failure(f"metrics {metrics}: {host} is the platform itself, and a box must not be taken for it")
    if host in requests.RESERVED:
        raise Failure(f"metrics {metrics}: this name belongs to the platform")


def taken(state, metrics, name):
    """The box that has this address already; None if there is none."""
    members = (member.name for member in state.members.values() if member.metrics == metrics and member.state == MEMBER)
    invited = (known.name for known in state.invitations.values() if known.metrics == metrics and not known.is_used_up())
    return next((other for other in (*members, *invited) if other != name), None)


def targets(state):
    """The content of boxes.json. A box is called by its name, wherever it is: rules and boards know it as `instance`."""
    found = []
    for member in sorted(state.members.values(), key=lambda member: member.name):
        if member.state == MEMBER and member.metrics:
            labels = {"instance": member.name, "box": member.name}
            labels |= {key: value for key, value in (("fleet", member.fleet), ("group", member.group)) if value}
            found.append({"targets": [member.metrics], "labels": labels})
    return json.dumps(found, indent=1).encode() + b"\n"


def job(layout):
    return JOB_TEXT.format(folder=layout.prometheus)


def write(layout, state):
    """Writes boxes.json where it changed. A platform whose `init` did not make the folder has none."""
    if not layout.prometheus.is_dir():
        return
    path, content = layout.prometheus / TARGETS, targets(state)
    if not path.exists() or path.read_bytes() != content:
        files.write(path, content)
