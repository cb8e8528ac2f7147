"""Mosquitto on a free loopback port, as Debian ships it: with its defaults, but without persistence."""
import os
import shutil
import socket

from .ledge import WORK
from .servers import Server


def installed():
    """The path of mosquitto, or None. Debian installs it into a folder that is only in root's PATH."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class Mosquitto(Server):
    """A broker that every user of this machine may use while it runs."""

    name = "mosquitto"

    def __init__(self):
        super().__init__(WORK / "mosquitto")

    def command(self):
        settings = self.folder / "mosquitto.conf"
        settings.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n")
        return [installed(), "-c", settings], {}

    def ready(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        except OSError:
            return False
