"""The architectures that packages are made for: this machine's, and the other one by a cross compiler."""
import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    machine: str
    """As the kernel, rpm and wheels name it."""

    @property
    def target(self):
        return f"{self.machine}-unknown-linux-gnu"

    @property
    def prefix(self):
        """Of the compiler and its tools."""
        return f"{self.machine}-linux-gnu"

    @property
    def is_foreign(self):
        return self.machine != platform.machine()

    @property
    def suffix(self):
        """Of folders that both machines would have under the same name."""
        return f"-{self.machine}" if self.is_foreign else ""


# By the names of Debian.
ARCHITECTURES = {"amd64": Architecture("x86_64"), "arm64": Architecture("aarch64")}
OWN = next((name for name, architecture in ARCHITECTURES.items() if not architecture.is_foreign), None)


def add_argument(parser):
    parser.add_argument("--arch", choices=ARCHITECTURES, default=OWN, required=OWN is None, help="[that of this machine]")
