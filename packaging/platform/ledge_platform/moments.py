"""Moments and durations, as people write them and as metadata has them. The only place that reads the clock."""
import re
from datetime import datetime, timedelta, timezone

from .errors import Failure

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def now():
    """To the second, for metadata knows no smaller unit."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def text(moment):
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(value):
    """An RFC 3339 moment in UTC."""
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00").replace("z", "+00:00"))
    except (ValueError, AttributeError):
        raise Failure(f"{value!r} is no moment: write it like 2026-11-20T06:00:00Z") from None
    if moment.tzinfo is None:
        raise Failure(f"{value!r} has no time zone: write it like 2026-11-20T06:00:00Z")
    return moment.astimezone(timezone.utc).replace(microsecond=0)


def duration(value):
    """Seconds of `90s`, `30m`, `4h`, `7d`."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", value.strip())
    if not found:
        raise Failure(f"{value!r} is no duration: write a number and s, m, h or d, like 90s or 7d")
    return int(found[1]) * UNITS[found[2]]


def spoken(seconds):
    """The largest unit that leaves no rest: 7200 is 2h."""
    for unit in "dhm":
        if seconds and seconds % UNITS[unit] == 0:
            return f"{seconds // UNITS[unit]}{unit}"
    return f"{seconds}s"


def after(moment, seconds):
    return moment + timedelta(seconds=seconds)


def at(seconds):
    """The moment this many seconds after 1970."""
    return datetime.fromtimestamp(seconds, timezone.utc)
