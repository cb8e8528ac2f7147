"""Mosquitto on a free loopback port, as Debian ships it: with its defaults, but nothing kept on disk."""
import os
import shutil
import socket

from .ledge import WORK
from .servers import Server


def installed():
    """The path of mosquitto, or None. Debian puts it where only root looks."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


class Mosquitto(Server):
    """A broker that anybody on this machine may use, as long as it runs."""

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
