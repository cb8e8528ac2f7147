"""Which boxes a rollout has reached: the same arithmetic as on the box, in `src/updates/rollout/waves.rs`.

A box has a seed from 0 to 2047 for each rollout, so it is not always the same boxes that go first. A wave is a bound
of seeds and the seconds after the start from which boxes below it are meant. `tests/seeds.json` has examples for both
sides.
"""
import hashlib
import json

from . import moments
from .errors import Failure

SEEDS = 2048
MOST_WAVES, LONGEST_S = 64, 90 * 86_400
HOUR, DAY = 3_600, 86_400

# Bottlerocket's schedules: seconds after the start, and percent of the fleet from then on.
PRESETS = {
    "default": [(HOUR, 1), (4 * HOUR, 5), (DAY, 15), (2 * DAY, 40), (4 * DAY, 60), (5 * DAY, 90), (6 * DAY, 100)],
    "accelerated": [(HOUR, 3), (4 * HOUR, 12), (8 * HOUR, 40), (16 * HOUR, 80), (DAY, 100)],
    "ohno": [(1_800, 5), (3_600, 25), (7_200, 50), (9_000, 90), (10_800, 100)],
    "all": [(0, 100)],
}


def seed(device, rollout):
    digest = hashlib.sha256(f"{device}\n{rollout}".encode()).digest()
    return digest[0] << 3 | digest[1] >> 5


def below(percent):
    """The bound of seeds for a share of the fleet."""
    return SEEDS * percent // 100


def schedule(waves):
    """[(seconds after the start, bound of seeds)] of what a manifest says."""
    if isinstance(waves, str):
        return [(after, below(percent)) for after, percent in PRESETS[waves]]
    return [(wave["after_s"], wave["seed_below"]) for wave in waves]


def listed(waves):
    """The same in the form of a manifest."""
    return [{"seed_below": bound, "after_s": after} for after, bound in schedule(waves)]


def reached(waves, elapsed_s):
    """The bound of the seeds that are reached this long after the start; 0: no box."""
    return max((bound for after, bound in schedule(waves) if after <= elapsed_s), default=0)


def check(waves):
    """True if a box takes it."""
    if isinstance(waves, str):
        if waves not in PRESETS:
            raise Failure(f"waves {waves!r}: none of {', '.join(PRESETS)}")
        return
    if not isinstance(waves, list) or not 1 <= len(waves) <= MOST_WAVES:
        raise Failure(f"waves: a list has from 1 to {MOST_WAVES} waves")
    last = (-1, 0)
    for wave in waves:
        keys = isinstance(wave, dict) and set(wave) == {"seed_below", "after_s"}
        if not keys or any(not isinstance(value, int) or isinstance(value, bool) for value in wave.values()):
            raise Failure("waves: each is {\"seed_below\": 1 to 2048, \"after_s\": seconds after the start}")
        if not 0 < wave["seed_below"] <= SEEDS:
            raise Failure(f"waves: seed_below {wave['seed_below']} is not from 1 to {SEEDS}")
        if wave["after_s"] > LONGEST_S:
            raise Failure(f"waves: after_s {wave['after_s']} is more than {LONGEST_S}")
        if wave["after_s"] < max(0, last[0]) or wave["seed_below"] <= last[1]:
            raise Failure("waves: each must reach more of the fleet than the one before, and not come earlier")
        last = wave["after_s"], wave["seed_below"]


def parse(text):
    """A preset, `1%@1h,20%@1d,100%@3d`, or the list of a manifest in JSON."""
    if text in PRESETS:
        return text
    if text.startswith("["):
        try:
            waves = json.loads(text)
        except ValueError as error:
            raise Failure(f"waves: no JSON: {error}") from None
    else:
        waves = [wave(part) for part in text.split(",")]
    check(waves)
    return waves


def wave(text):
    percent, at, after = text.partition("@")
    if not at or not percent.endswith("%"):
        raise Failure(f"waves {text!r}: one of {', '.join(PRESETS)}, or shares and times like 1%@1h,20%@1d,100%@3d")
    return {"seed_below": max(1, share(percent)), "after_s": moments.duration(after)}


def share(text):
    """The bound of seeds for `2.5%`."""
    try:
        percent = float(text.rstrip("%"))
    except ValueError:
        percent = -1
    if not 0 < percent <= 100:
        raise Failure(f"{text!r} is no share of the fleet: more than 0%, at most 100%")
    return int(SEEDS * percent / 100)
