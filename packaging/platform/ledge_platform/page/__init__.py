"""The fleet page: a folder of static files that shows all boxes, and how rollouts go.

Whoever may look at the fleet opens `index.html`, from the disk or from any web server. Browsers load neither modules
nor data from the disk, so the page is one classic script, made of modules (`script.py`), and its data are in `index.html`,
as JSON that nothing runs. `fleet.json` has the same data, for a page that a server gave and that looks again, and `inventory.csv` the inventory
for spreadsheets.

What boxes report is foreign: it is bounded and cleaned here (`clean.py`), its `<` cannot end the JSON, the script makes
text nodes of it, and no file has the name of a box.
"""
import fcntl
import hashlib
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import files, fleets, moments, watch
from ..errors import Failure
from . import boxes, inventory, logs, rollouts, script
from .history import History
from .members import Members

WEB = Path(__file__).resolve().parent / "web"
COPIED = ("console.css", "fleet.css", "icon.svg")
FORM = 1
DATA = "null"  # in the place of the data in index.html


@dataclass(frozen=True)
class Watched:
    """The rollout of the watcher that writes the page."""

    fleet: str
    policy: watch.Policy
    reason: str | None = None  # why it was paused just now


class Page:
    """The page in one folder."""

    def __init__(self, folder, repository, state, late_s=boxes.LATE_S, members_folder=None):
        folder = folder.absolute()
        if folder.resolve().is_relative_to(repository.folder.resolve()):
            raise Failure(f"{folder} is in the repository, which every box may read: take another folder")
        if (folder / "index.html").exists() and not (folder / "fleet.json").exists():
            raise Failure(f"{folder} has an index.html that is not of this page: take another folder")
        self.folder, self.repository, self.late_s = folder, repository, late_s
        self.logs, self.members_folder = logs.Logs(state), members_folder

    def write(self, broker, watched=None):
        """Shows the present state of the boxes at the broker. Returns the number of boxes."""
        devices, complaints = broker.snapshot(), dict(broker.complaints)
        now = moments.now()
        states = {fleet: fleets.load(self.repository, fleet) for fleet in fleets.all_of(self.repository)}
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.locked():
            history = History.read(self.folder)
            shown = []
            for fleet, state in states.items():
                members = [device for device in devices if device.fleet == fleet]
                for rollout in state.manifest["rollouts"]:
                    entry = history.entry(fleet, rollout, watched)
                    decision = watch.decide(members, entry.policy, broker.clock())
                    if watched is None:
                        decision.silent = None  # whoever has just connected does not know since when a box is away
                    meant = rollouts.meant(members, state.manifest, rollout, now)
                    entry.add(now, decision, meant)
                    shown.append(rollouts.describe(state, rollout, entry, decision, meant, now))
            shown += [rollouts.describe_ended(entry) for entry in history.ended(states, now)]
            known = Members(self.members_folder, now)
            if known.error:
                print(f"ledge-platform: {known.error}", file=sys.stderr)
            described = boxes.describe_all(devices, complaints, self.logs, known, states, now, self.late_s)
            history.note_machines(described, now)
            self.save(history, inventory.table(described), {
                "form": FORM, "at": moments.text(now), "by": "watch" if watched else "hand",
                "logs_known": self.logs.exists(), "rollouts": shown, "boxes": described})
        return len(described)

    @contextmanager
    def locked(self):
        """A watcher and a cron line may meet."""
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def save(self, history, table, data):
        contents = {name: read(name) for name in COPIED}
        contents["fleet.js"] = script.bundle(read, "app.js").encode()
        # A page that is open sees that its script is another one now.
        data["script"] = hashlib.sha256(contents["fleet.js"] + contents["fleet.css"]).hexdigest()[:16]
        content = encode(data)
        before, after = read("index.html").split(b">" + DATA.encode() + b"</script>")
        contents["history.json"], contents[inventory.CSV] = encode(history.to_json()), table
        contents["fleet.json"] = content  # before index.html, which is taken for somebody else's where it stands alone
        contents["index.html"] = before + b">" + content + b"</script>" + after
        for name, content in contents.items():
            if not has(self.folder / name, content):
                files.write(self.folder / name, content)


def read(name):
    try:
        return (WEB / name).read_bytes()
    except OSError as error:
        raise Failure(f"{WEB / name} cannot be read ({error.strerror}): run packaging/platform/setup again") from None


def has(path, content):
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def encode(data):
    """JSON that is a part of a page: without `<` nothing in it ends the element, and all of it is ASCII."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").encode()
