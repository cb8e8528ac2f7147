"""Where everything of a platform lies, and what `init` was told about it.

All folders are below a root, `/` but for trials and tests. Who may read and write each is in folders.py.
"""
import contextlib
import json
import os
import pwd
import re
import tomllib
from pathlib import Path

from .. import names
from ..errors import Failure

HTTPS_PORT, MQTT_PORT = 443, 8883
# Who serves: a program that `init` sets up, or one that the administrator has.
OWN, EXISTING = "own", "existing"
DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
KEYS = {"name": str, "domain": str, "https_port": int, "mqtt_port": int, "region": str, "addresses": list,
        "web_server": str, "broker": str, "ca": str}


class Layout:
    """The folders of a platform; after `open` also its name and addresses."""

    name = domain = region = None
    https_port, mqtt_port = HTTPS_PORT, MQTT_PORT
    addresses = ()
    # `own` or `existing`; the broker may also be an address mqtts://HOST[:PORT] elsewhere.
    web_server = broker = ca_kind = OWN

    def __init__(self, root="/"):
        self.root = Path(root).absolute()
        etc, srv, var = (self.root / part for part in ("etc/ledge-platform", "srv", "var/lib/ledge-platform"))
        self.etc, self.srv, self.var = etc, srv, var
        self.config_file = etc / "platform.toml"
        self.keys, self.ca, self.tls = etc / "keys", etc / "ca", etc / "tls"
        self.server_certificate, self.server_key = self.tls / "server.pem", self.tls / "server.key"
        self.platform_certificate, self.platform_key = self.tls / "platform.pem", self.tls / "platform.key"
        # Everything that a Prometheus needs, so that the folder can be copied to another machine.
        self.prometheus = etc / "prometheus"
        self.scraper_certificate, self.scraper_key = self.prometheus / "prometheus.pem", self.prometheus / "prometheus.key"
        # The root and the present issuing authority: by this the servers know clients.
        self.clients = self.tls / "clients.pem"
        self.nginx_conf = etc / "nginx.conf"
        self.mosquitto_conf, self.acl = etc / "mosquitto.conf", etc / "mosquitto.acl"
        self.repository, self.packages, self.fleet_page = srv / "ledge", srv / "ledge-packages", srv / "ledge-fleet"
        self.box_files = srv / "ledge-boxes"
        self.box_audit, self.box_incoming, self.box_full = (
            self.box_files / part for part in ("audit", "incoming", "full"))
        self.join = srv / "ledge-join"
        # A folder in `requests` for each inbox, with mode 770: nginx writes to it and the platform removes from it.
        self.requests, self.answers, self.questions, self.join_incoming = (
            self.join / part for part in ("requests", "answers", "questions", "incoming"))
        self.audit_state, self.boxes, self.site_state = var / "audit", var / "boxes", var / "site"
        self.broker_state = self.root / "var/lib/ledge-platform-broker"
        self.units, self.run = self.root / "etc/systemd/system", self.root / "run/ledge-platform-web"
        # Where offline keys go unless somebody says otherwise; `doctor` asks to move them away.
        self.offline = etc / "offline-keys"

    @property
    def is_trial(self):
        """Below another root everything belongs to whoever made it, and nothing is started."""
        return self.root != Path("/")

    @classmethod
    def open(cls, root="/"):
        layout = cls(root)
        try:
            content = layout.config_file.read_text()
        except FileNotFoundError:
            raise Failure(f"there is no platform at {layout.root}: `ledge-platform init` makes one") from None
        try:
            layout.take(tomllib.loads(content))
        except (ValueError, Failure) as error:
            raise Failure(f"{layout.config_file}: {error}") from None
        return layout

    def take(self, settings):
        """Checks what platform.toml says, or what `init` was told, and keeps it."""
        for key, value in settings.items():
            if key not in KEYS:
                raise Failure(f"there is no setting {key!r}; there are {', '.join(KEYS)}")
            if type(value) is not KEYS[key]:
                raise Failure(f"{key} = {value!r} is no {KEYS[key].__name__}")
        missing = [key for key in ("name", "domain") if key not in settings]
        if missing:
            raise Failure(f"{missing[0]} is missing")
        self.name, self.domain = names.name(settings["name"]), domain(settings["domain"])
        self.region = names.name(settings.get("region", "eu"), "region")
        self.https_port = port(settings.get("https_port", HTTPS_PORT))
        self.mqtt_port = port(settings.get("mqtt_port", MQTT_PORT))
        self.addresses = tuple(settings.get("addresses", ()))
        self.web_server = one_of("web_server", settings.get("web_server", OWN))
        self.ca_kind = one_of("ca", settings.get("ca", OWN))
        self.broker = settings.get("broker", OWN)
        if not self.broker.startswith("mqtts://"):
            one_of("broker", self.broker)

    def table(self):
        return {
            "name": self.name, "domain": self.domain, "https_port": self.https_port, "mqtt_port": self.mqtt_port,
            "region": self.region, "addresses": list(self.addresses), "web_server": self.web_server,
            "broker": self.broker, "ca": self.ca_kind,
        }

    def settings(self):
        """The content of platform.toml. JSON writes such names, numbers and lists as TOML does."""
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.table().items())

    @property
    def updates_url(self):
        return f"https://{with_port(self.domain, self.https_port, HTTPS_PORT)}"

    @property
    def join_url(self):
        return f"{self.updates_url}/join/"

    @property
    def audit_url(self):
        return f"{self.updates_url}/audit"

    @property
    def broker_url(self):
        if self.broker.startswith("mqtts://"):
            return self.broker
        return f"mqtts://{with_port(self.domain, self.mqtt_port, MQTT_PORT)}"

    @contextlib.contextmanager
    def as_owner(self):
        """Root becomes the platform's user for a while, so that timers can use what is written meanwhile."""
        owner = self.keys.stat().st_uid if self.keys.is_dir() else 0
        if os.geteuid() != 0 or owner == 0:
            yield
            return
        user, groups, group = pwd.getpwuid(owner), os.getgroups(), os.getegid()
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setegid(user.pw_gid)
        os.seteuid(owner)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)


def with_port(host, port_, usual):
    return host if port_ == usual else f"{host}:{port_}"


def domain(text):
    if not DOMAIN.fullmatch(text):
        raise Failure(f"domain {text!r}: a name such as platform.example.com, in lower case")
    return text


def port(number):
    if not 1 <= number <= 65_535:
        raise Failure(f"port {number} is not between 1 and 65535")
    return number


def one_of(key, value):
    if value not in (OWN, EXISTING):
        raise Failure(f"{key} = {value!r}: {OWN} or {EXISTING}")
    return value
