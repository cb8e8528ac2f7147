"""Reports of boxes: the retained documents of `src/updates/report.rs`, as far as a platform needs them."""
import json
from dataclasses import dataclass, field

from . import moments
from .errors import Failure

MOST_BYTES = 262_144  # a report is at most 128 KiB


@dataclass(frozen=True)
class Subject:
    """The state of one artifact on one box."""

    subject: str
    version: int | None = None
    digest: str | None = None
    pinned: bool = False
    stage: str = "idle"
    trial_rollout: str | None = None
    trial_version: int | None = None
    held: bool = False
    error: str | None = None  # why the last attempt failed, when another follows
    last_rollout: str | None = None
    last_version: int | None = None
    result: str | None = None
    failed_stage: str | None = None
    cause: str | None = None
    detail: str | None = None


@dataclass
class Device:
    """The state of one box."""

    device: str
    fleet: str = "default"
    group: str | None = None
    ledge_version: str | None = None
    health: str | None = None
    at: str | None = None
    error: str | None = None
    verifier_key: str | None = None  # of its audit log
    metadata: dict = field(default_factory=dict)
    subjects: list = field(default_factory=list)
    document: dict = field(default_factory=dict, repr=False)  # all of the last report, as the box wrote it
    online: bool | None = None
    offline_since: float | None = None  # by the watcher's clock

    def apply(self, document):
        """Takes in a reported document."""
        updates = document.get("updates") or {}
        self.fleet, self.group = text(document.get("fleet")) or "default", text(document.get("group"))
        self.ledge_version, self.health, self.at = (
            text(document.get("ledge_version")),
            text(document.get("health")),
            text(document.get("at")),
        )
        self.error = text(updates.get("error"))
        self.metadata = {role: whole(version) for role, version in (updates.get("metadata") or {}).items()}
        self.verifier_key = text((document.get("audit") or {}).get("verifier_key"))
        self.subjects = [subject(entry) for entry in updates.get("subjects", [])]
        self.document = document

    def set_online(self, online, now_s):
        if online:
            self.offline_since = None
        elif self.online is not False:
            self.offline_since = now_s
        self.online = online


def subject(entry):
    trial, last = entry.get("trial") or {}, entry.get("last") or {}
    if not isinstance(entry["subject"], str):
        raise TypeError("a subject has no name")
    return Subject(
        text(entry["subject"]),
        whole(entry.get("version")),
        text(entry.get("digest")),
        bool(entry.get("pinned")),
        text(entry.get("stage", "idle")),
        text(trial.get("rollout")),
        whole(trial.get("version")),
        bool(trial.get("held")),
        text(entry.get("error")),
        text(last.get("rollout")),
        whole(last.get("version")),
        text(last.get("result")),
        text(last.get("stage")),
        text(last.get("cause")),
        text(last.get("detail")),
    )


def text(value):
    """VALUE, a text or nothing. Boxes are not trusted: another type would end a verb later, at an unexpected place."""
    if value is not None:
        if not isinstance(value, str):
            raise TypeError(f"{str(value)[:40]!r} is no text")
        value.encode()  # half of a surrogate pair could not be printed
    return value


def whole(value):
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    return value


def parse(payload):
    """A document, or the reason why it is invalid."""
    if len(payload) > MOST_BYTES:
        raise Failure(f"it has {len(payload)} bytes, {MOST_BYTES} at most")
    try:
        document = json.loads(payload)
        if not isinstance(document, dict) or document.get("schema") != 1:
            raise Failure("it is not of schema 1")
        Device("-").apply(document)  # a form that is not known fails here and not later
    except Failure:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Failure(f"it cannot be read ({type(error).__name__}: {error})") from None
    return document


HEAD = ("DEVICE", "FLEET", "GROUP", "SUBJECT", "VERSION", "STAGE", "ROLLOUT", "RESULT", "CAUSE", "SEEN")


def rows(devices, now):
    """One row of texts for each subject of each box; a box with none has one row."""
    result = []
    for device in sorted(devices, key=lambda device: device.device):
        seen = ("online " if device.online else "offline " if device.online is False else "") + age(device.at, now)
        start = [device.device, device.fleet, device.group or "-"]
        for entry in device.subjects:
            version = f"{entry.version or 'own'}{' pinned' if entry.pinned else ''}"
            stage = (
                entry.stage
                + (f" {entry.trial_version}" if entry.trial_version else "")
                + (" held" if entry.held else "")
            )
            rollout = entry.trial_rollout or entry.last_rollout or "-"
            result_of = "under way" if entry.trial_rollout else (entry.result or "-").replace("_", " ")
            result.append([*start, entry.subject, version, stage, rollout, result_of, why(entry), seen])
        if not device.subjects:
            result.append([*start, "-", "-", "-", "-", "-", f"error: {device.error}" if device.error else "-", seen])
    return result


def why(entry):
    """Why a rollout ended, or why its last attempt failed."""
    if entry.trial_rollout:
        return f"again after {entry.error}" if entry.error else "-"
    return f"{entry.cause} at {entry.failed_stage}: {entry.detail}" if entry.cause else "-"


def age(at, now):
    if not at:
        return "never"
    try:
        seconds = max(0, int((now - moments.parse(at)).total_seconds()))
    except Failure:
        return "?"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def table(head, lines):
    """Columns as wide as their texts; the last is not padded."""
    shown = [[printable(str(cell)) for cell in line] for line in lines]
    widths = [max(len(str(line[column])) for line in [head, *shown]) for column in range(len(head))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [head, *shown]
    )


def printable(text):
    """TEXT without what would move the cursor, or turn the direction of writing."""
    return "".join(c if c.isprintable() else "?" for c in text)


def as_json(device):
    return {
        "device": device.device,
        "fleet": device.fleet,
        "group": device.group,
        "online": device.online,
        "at": device.at,
        "ledge_version": device.ledge_version,
        "health": device.health,
        "error": device.error,
        "metadata": device.metadata,
        "subjects": [vars(entry) for entry in device.subjects],
    }
