"""The history of rollouts: their counts at each moment at which the page was written, for its plots; and the machines of
boxes, for a note on a box that has another one.

One file in the folder of the page. Its loss costs the plots and the notes their past, and nothing else. A rollout has a sample a
minute at first, and fewer as it gets older, so that no rollout has more than some thousands.
"""
import dataclasses
import json

from .. import moments, watch
from ..errors import Failure
from . import inventory

FORM = 1
MOST_ENDED = 20
SAMPLE_EVERY_S = 60
SAMPLES_OF_AN_AGE = 1_000  # a rollout of a week has a sample each 10 minutes from then on
MACHINE_NEW_S = 30 * 86_400  # for so long a box that has another machine has a note
COLUMNS = ("meant", "under_way", "tried", "committed", "failed", "silent")


@dataclasses.dataclass
class Entry:
    """One rollout."""

    fleet: str
    rollout: str
    target: str
    start: str
    policy: watch.Policy
    samples: list = dataclasses.field(default_factory=list)  # [seconds since 1970, and a number for each column]
    ended: str | None = None
    reason: str | None = None  # why the watcher paused it

    def add(self, now, decision, meant):
        at = int(now.timestamp())
        sample = [at, meant, *(getattr(decision, column) for column in COLUMNS[1:])]
        if len(self.samples) > 1 and at - self.samples[-2][0] < self.spacing(at):
            self.samples[-1] = sample
        elif not self.samples or at > self.samples[-1][0]:
            self.samples.append(sample)

    def spacing(self, at):
        """The seconds between two samples at this age."""
        return max(SAMPLE_EVERY_S, (at - self.samples[0][0]) // SAMPLES_OF_AN_AGE)


class History:
    """All rollouts, those that are over included."""

    def __init__(self, entries, machines=None):
        self.entries = entries
        self.machines = machines or {}  # by the box: [the machine in words, the one before, since when]

    @classmethod
    def read(cls, folder):
        """The content of the folder; empty if it is of another form."""
        try:
            found = json.loads((folder / "history.json").read_bytes())
            if found["form"] != FORM:
                return cls({})
            entries = [Entry(**{**entry, "policy": watch.Policy(**entry["policy"])}) for entry in found["rollouts"]]
            for entry in entries:
                moments.parse(entry.start)
                if any(len(sample) != len(COLUMNS) + 1 for sample in entry.samples):
                    return cls({})
            machines = {name: [str(machine), before and str(before), since and moments.text(moments.parse(since))]
                        for name, (machine, before, since) in found.get("machines", {}).items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, Failure):
            return cls({})
        return cls({(entry.fleet, entry.rollout): entry for entry in entries}, machines)

    def to_json(self):
        return {"form": FORM, "columns": ["at", *COLUMNS],
                "rollouts": [dataclasses.asdict(entry) for entry in self.entries.values()], "machines": self.machines}

    def note_machines(self, described, now):
        """Gives boxes that have another machine than before a note. Boxes that are gone are forgotten."""
        known, self.machines = self.machines, {}
        for box in described:
            machine, kept = inventory.machine(box), known.get(box["device"])
            if machine and kept and machine != kept[0]:
                kept = [machine, kept[0], moments.text(now)]
            if machine and not kept:
                kept = [machine, None, None]
            if kept is None:
                continue
            self.machines[box["device"]] = kept
            _, before, since = kept
            if since and moments.after(moments.parse(since), MACHINE_NEW_S) > now:
                box.setdefault("notes", []).append(f"since {since[:10]} it has another machine; before it was {before}")

    def entry(self, fleet, rollout, watched):
        """That of a rollout that a manifest has. It is judged by the limits of its watcher, as far as one was there."""
        key = fleet, rollout["id"]
        if key not in self.entries:
            self.entries[key] = Entry(*key, rollout["target"], rollout["start"], watch.Policy(rollout["id"]))
        entry = self.entries[key]
        entry.ended = None
        if not rollout.get("paused"):
            entry.reason = None
        if watched and (watched.fleet, watched.policy.rollout) == key:
            entry.policy, entry.reason = watched.policy, watched.reason or entry.reason
        return entry

    def ended(self, states, now):
        """The rollouts that no manifest has any more, the last one first; those that ended long ago are forgotten."""
        running = {(fleet, rollout["id"]) for fleet, state in states.items() for rollout in state.manifest["rollouts"]}
        over = [entry for key, entry in self.entries.items() if key not in running]
        for entry in over:
            entry.ended = entry.ended or moments.text(now)
        over.sort(key=lambda entry: entry.ended, reverse=True)
        for entry in over[MOST_ENDED:]:
            del self.entries[entry.fleet, entry.rollout]
        return over[:MOST_ENDED]
