"""The configuration of nginx and mosquitto, from the templates next to this file."""
import ipaddress
import textwrap
from pathlib import Path

from . import machine
from .layout import OWN

TEMPLATES = Path(__file__).resolve().parent / "templates"


def filled(name, values):
    text = (TEMPLATES / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    # A line that only had a value which is empty goes.
    return text.replace("\n\n\n", "\n\n")


def is_local(domain):
    """A platform for this machine alone listens on it alone."""
    try:
        return domain == "localhost" or ipaddress.ip_address(domain).is_loopback
    except ValueError:
        return False


def values(layout):
    return {"ETC": layout.etc, "TLS": layout.tls, "SRV": layout.srv, "RUN": layout.run, "DOMAIN": layout.domain}


def nginx(layout, users):
    """A whole configuration; for a web server of the administrator a file to include in its block `http`."""
    port = layout.https_port
    listen = [f"listen 127.0.0.1:{port} ssl;"] if is_local(layout.domain) else [f"listen {port} ssl;"]
    if machine.has_ipv6():
        listen.append(f"listen [::1]:{port} ssl;" if is_local(layout.domain) else f"listen [::]:{port} ssl;")
    crl = f"    ssl_crl {layout.ca}/crl.pem;" if has_list(layout) else ""
    site = filled("nginx-site.conf", {
        **values(layout), "LISTEN": "\n".join(f"    {line}" for line in listen), "CRL": crl})
    if layout.web_server != OWN:
        return site
    # The journal has both logs, and needs no rotation.
    journal = "syslog:server=unix:/dev/log,nohostname,tag=ledge_platform_web"
    access = layout.run / "access.log" if layout.is_trial else journal
    return filled("nginx.conf", {
        **values(layout), "USER": users.web, "ACCESS_LOG": access, "SITE": textwrap.indent(site, "    ").rstrip()})


def mosquitto(layout, users):
    """A whole configuration; for a broker of the administrator a file to include."""
    own = (f"user {users.broker}\nlog_dest stderr\npersistence true\npersistence_location {layout.broker_state}/\n"
           if layout.broker == OWN else "")
    bind = " 127.0.0.1" if is_local(layout.domain) else ""
    crl = f"crlfile {layout.ca}/crl.pem" if has_list(layout) else ""
    return filled("mosquitto.conf", {
        **values(layout), "OWN": own, "PORT": layout.mqtt_port, "BIND": bind, "CRL": crl})


def acl():
    return (TEMPLATES / "mosquitto.acl").read_text()


def has_list(layout):
    """An authority of the administrator may have no list of revoked certificates."""
    return layout.ca_kind == OWN or (layout.ca / "crl.pem").exists()
