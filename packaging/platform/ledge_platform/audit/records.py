"""Records: the form of a leaf, and the counts."""
import json
import re

from .notes import Untrue

VERSION = 1
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z", re.ASCII)
FIELDS = ("v", "seq", "ts", "actor", "event")


class NewerVersion(Untrue):
    """A record of a Ledge that is newer than this program."""


def parse(line, index):
    """The record at a place of the log."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise Untrue("it is no JSON") from None
    if not isinstance(record, dict) or not isinstance(record.get("v"), int):
        raise Untrue("it is no audit record")
    if record["v"] != VERSION:
        raise NewerVersion(f"it has version {record['v']}, and {VERSION} is known: bring ledge-platform up to date")
    if record.get("seq") != index or isinstance(record["seq"], bool):
        raise Untrue(f"it says that it is record {record.get('seq')!r:.40}")
    event, actor = record.get("event"), record.get("actor")
    # The form is canonical: of two readers, none may see another record.
    if (
        tuple(record) != FIELDS
        or not line.startswith(b'{"v":1,"seq":%d,"ts":"' % index)
        or not isinstance(record["ts"], str) or not MOMENT.fullmatch(record["ts"])
        or not isinstance(event, dict) or not isinstance(event.get("action"), str)
        or not isinstance(actor, dict) or not isinstance(actor.get("kind"), str)
    ):
        raise Untrue("it is no audit record")
    return record


def count(totals, record):
    """Adds a record to the summary of a log."""
    event = record["event"]
    action = event["action"]
    actions = totals.setdefault("actions", {})
    actions[action] = actions.get(action, 0) + 1
    totals.setdefault("first", record["ts"])
    totals["last"] = record["ts"]
    if action == "records_lost":
        for what in ("calls", "events"):
            totals[f"lost_{what}"] = totals.get(f"lost_{what}", 0) + number(event, what)
    elif action == "records_pruned":
        totals["pruned_below"] = max(totals.get("pruned_below", 0), number(event, "below"))
        if event.get("synced") is not True:
            totals["pruned_unsynced_below"] = max(totals.get("pruned_unsynced_below", 0), number(event, "below"))


def number(event, key):
    found = event.get(key)
    return found if isinstance(found, int) else 0


TOLD = (("access_denied", "accesses denied"), ("connection_refused", "connections refused"),
        ("question_refused", "questions refused"), ("clock_jumped", "clock jumps"), ("budget_reached", "budgets reached"), ("tag_key_destroyed", "tag keys destroyed"),
        ("feature_store_damaged", "times the feature store was damaged"), ("trust_reset", "times the trust was reset"))


def summary(all_totals):
    """The lines about the logs of a box."""
    def total(what):
        return sum(totals.get(what, 0) for totals in all_totals)

    def actions(what):
        return sum(totals.get("actions", {}).get(what, 0) for totals in all_totals)

    parts = []
    if actions("records_lost"):
        parts.append(f"the box lost {total('lost_calls'):,} calls and {total('lost_events'):,} other events")
    if total("pruned_unsynced_below"):
        parts.append("the box removed records that were not synced")
    parts += [f"{actions(action):,} {words}" for action, words in TOLD if actions(action)]
    return parts


def model_of(event):
    """The model that an event is about."""
    subject = event.get("subject")
    return event.get("model") or (subject.removeprefix("models/") if isinstance(subject, str) else None)


def line(record):
    """A record for people."""
    event, actor = record["event"], record["actor"]
    rest = {key: value for key, value in event.items() if key != "action" and value is not None}
    words = " ".join(f"{key}={value if isinstance(value, (str, int)) else json.dumps(value)}"
                     for key, value in rest.items())
    who = actor["kind"] + (f" {actor['tag']}" if actor.get("tag") else "")
    return printable(f"{record['seq']:>8} {record['ts']} {who:<20} {event['action']} {words}".rstrip())


def printable(text):
    """Text of others must not control the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
