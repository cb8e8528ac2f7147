"""An authority and certificates for the tests, as a fleet has them: those of `ledge-platform ca`."""
import shutil
from unittest import mock

import support  # noqa: F401  puts the tool of this checkout on the path

from ledge_platform.certificates import authority

# The names of the servers of the tests.
HOSTS = ("127.0.0.1", "updates.example.com", "packages.example.com")


class Authority:
    def __init__(self, folder, name="fleet-ca"):
        self.folder = folder
        self.authority = authority.init(folder / name, folder / f"{name}-offline", name, {}, encrypt=False)
        self.file = folder / f"{name}.pem"
        shutil.copyfile(self.authority.root_file, self.file)
        self.list_file = folder / f"{name}.crl"
        shutil.copyfile(self.authority.list_file, self.list_file)

    def issue(self, name):
        """The files of a certificate for this common name, with the authority behind it, and of its key."""
        # Other authorities take names that this one refuses.
        with mock.patch("ledge_platform.names.name"):
            chain, key = self.authority.issue(name, HOSTS if name == "server" else (), again=True)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for file, content in zip(files, (chain, key)):
            file.write_bytes(content)
        return files

    def revoke(self, name):
        """Revokes all certificates of a name, in the list that servers read when they are told to."""
        self.authority.revoke(name)
        shutil.copyfile(self.authority.list_file, self.list_file)
