"""Who publishes the packages: a file of settings, because no maintainer and no home page is part of the sources. See
packaging/publisher.toml.example."""
from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from failure import Failure

MAINTAINER = re.compile(r"([^<>,@]*[^<>,@\s]) <([^<>,@\s]+@[^<>,@\s]+\.[^<>,@\s]+)>")
HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+", re.IGNORECASE)
ROOT_FILE = "catalogue-root.json"
CATALOGUE = f"""\
# From the publisher of this package. Settings in /etc/ledge/ledge.toml replace these.
[catalogue]
address = "%s"
root_file = "/usr/share/ledge/{ROOT_FILE}"
"""


@dataclass
class Publisher:
    file: Path
    maintainer: str  # NAME <ADDRESS>, as Debian has it
    homepage: str
    address: str | None = None
    root_file: Path | None = None

    @classmethod
    def read(cls, file):
        """The settings in FILE, all checked."""
        found = settings(file)

        def take(key, is_right, form):
            value = found.pop(key, "")
            if not is_right(value):
                raise Failure(f"{file}: {key} = {value!r} is not {form}")
            return value

        maintainer = take("maintainer", MAINTAINER.fullmatch, "a name and an address, like: Example packages <packages@example.com>")
        homepage = take("homepage", is_address, "an address, like https://example.com/ledge")
        made = cls(file, maintainer, homepage)
        if any(key.startswith("catalogue.") for key in found):
            made.address = take("catalogue.address", lambda text: is_address(text, "https"), "an address, like https://packages.example.com/catalogue")
            name = take("catalogue.root_file", lambda text: text == Path(text).name != "", "the name of a file in the folder of this one")
            made.root_file = file.parent / name
            made.root()
        if found:
            raise Failure(f"{file}: unknown settings: {', '.join(found)}")
        return made

    @property
    def name(self):
        return MAINTAINER.fullmatch(self.maintainer)[1]

    @property
    def email(self):
        return MAINTAINER.fullmatch(self.maintainer)[2]

    def root(self):
        """The root metadata of the catalogue."""
        try:
            content = self.root_file.read_bytes()
            kind = json.loads(content)["signed"]["_type"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(f"{self.root_file} is no root metadata of a catalogue: {error!r}") from error
        if kind != "root":
            raise Failure(f"{self.root_file} is {kind} metadata, and not root metadata of a catalogue")
        return content

    def copy_to(self, folder):
        """Copies the file, and the root file that it names."""
        folder.mkdir(exist_ok=True)
        for path in filter(None, (self.file, self.root_file)):
            shutil.copyfile(path, folder / path.name)

    def files(self):
        """What packages install below /usr/share/ledge."""
        return {"publisher.toml": (CATALOGUE % self.address).encode(), ROOT_FILE: self.root()} if self.address else {}

    def labels(self):
        """The labels of an image, by their names below org.opencontainers.image."""
        return {"vendor": self.name, "url": self.homepage, "authors": self.maintainer}


def settings(file):
    """The strings in a file of TOML, by table and key. Python 3.9, which the clean root has, reads no TOML by itself."""
    found, table = {}, ""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise Failure(f"the file of the publisher cannot be read: {error}") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if head := re.fullmatch(r"\[(\w+)\]", line):
            table = f"{head[1]}."
        elif pair := re.fullmatch(r'(\w+)\s*=\s*"([^"\\]*)"', line):
            found[table + pair[1]] = pair[2]
        elif line and not line.startswith("#"):
            raise Failure(f'{file}:{number}: write it as key = "value", on a line of its own')
    return found


def is_address(text, *schemes):
    try:
        parts = urlsplit(text)
        return parts.scheme in (schemes or ("https", "http")) and HOST.fullmatch(parts.hostname or "") and not re.search(r"\s", text)
    except ValueError:
        return False
