"""Up to where the audit log of each box was verified, as `audit verify` has kept it."""
from ..audit.findings import NOTICE, STATUSES
from ..audit.store import Store
from ..errors import Failure


class Logs:
    """The stored state of the logs. A file is read again only when it has changed."""

    def __init__(self, folder):
        self.store, self.known = Store(folder), {}

    def exists(self):
        return self.store.folder.is_dir()

    def devices(self):
        return self.store.devices() if self.exists() else []

    def of(self, device):
        """The page's data about one box; None for a box that is not enrolled."""
        try:
            path = self.store.path(device)
            found = path.stat()
        except (Failure, OSError):
            return None
        stamp = found.st_mtime_ns, found.st_size, found.st_ino
        if self.known.get(device, (None,))[0] != stamp:
            self.known[device] = stamp, self.read(device)
        return self.known[device][1]

    def read(self, device):
        try:
            box = self.store.load(device)
        except (Failure, OSError) as error:
            return {"error": f"what `audit verify` kept of it cannot be read: {error}"}
        if box is None:
            return None
        newest = max(box.logs, default=None)
        return {
            "log": newest, "records": box.logs[newest].size if newest else 0, "at": box.verified,
            "findings": [{"kind": finding.kind, "text": str(finding)} for finding in box.findings
                         if finding.kind in STATUSES and finding.kind != NOTICE and not finding.acknowledged],
        }
