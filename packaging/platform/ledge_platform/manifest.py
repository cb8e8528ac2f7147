"""The rollout manifest of a fleet: its one form, which boxes read in `src/updates/rollout/manifest.rs`, and what is noted beside
it.

Beside it, in the custom data of its target, are the platform's own notes: since when a rollout is paused, and which ids
were used. Boxes do not read them.
"""
import json
import math
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from . import moments, names, waves
from .errors import Failure

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# The fields of a rollout, and their types.
POSITIVE, COUNT, SHARE = "a number above 0", "a whole number", "a number from 0 to 1"
GATE = {
    "golden_min": SHARE,
    "agreement_min": SHARE,
    "p95_ratio_max": POSITIVE,
    "error_rate_max": SHARE,
    "memory_ratio_max": POSITIVE,
    "psi_max": POSITIVE,
}
# The defaults of a rollout; boxes read a manifest that leaves something out in the same way (`src/updates/plan.rs`).
# None is no limit.
GATE_DEFAULTS = {
    "p95_ratio_max": 1.5,
    "error_rate_max": 0.02,
    "memory_ratio_max": 1.5,
    "agreement_min": None,
    "psi_max": None,
}
STEP_DEFAULTS = {
    "shadow": {"share": 0.1, "min_s": 0, "min_requests": 100, "max_s": 3_600, "quiet": "pass"},
    "canary": {"share": 0.0, "min_s": 0, "min_requests": 100, "max_s": 3_600, "quiet": "pass"},
    "soak": {"share": 1.0, "min_s": 600, "min_requests": 100, "max_s": 3_600, "quiet": "pass"},
}
# All that guards a release of packages: root's service on the box watches the whole program.
PACKAGE_GUARDS = {"gate": {"memory_ratio_max": 1.5}, "soak": {"min_s": 600}}
# The value of `off` for a step.
STEP_OFF = {
    "shadow": {"share": 0.0},
    "canary": {"share": 0.0},
    "soak": {"min_s": 0, "min_requests": 0},
}
OFF = "off"
STEP = {"share": SHARE, "min_s": COUNT, "min_requests": COUNT, "max_s": COUNT, "quiet": ("pass", "roll_back")}
ROLLOUT = {
    "id",
    "target",
    "start",
    "waves",
    "paused",
    "groups",
    "devices",
    "window",
    "gate",
    "shadow",
    "canary",
    "soak",
    "max_attempts",
    "byte_budget",
    "allow_downgrade",
    "requires_ledge",
}
MANIFEST = {"schema", "fleet", "published", "rollouts", "pins", "revoked", "minimum"}
# The most that a box accepts.
MOST_BYTES, MOST_ROLLOUTS, MOST_ATTEMPTS, LONGEST_S = 1 << 20, 256, 1_000, 90 * 86_400


def path(fleet):
    return f"fleet/{names.name(fleet, 'fleet')}/rollout.json"


def empty(fleet, moment):
    return {"schema": 1, "fleet": fleet, "published": moments.text(moment), "rollouts": []}


def encode(manifest):
    return json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"


def decode(content):
    try:
        manifest = json.loads(content)
    except ValueError as error:
        raise Failure(f"the rollout manifest is no JSON: {error}") from None
    check(manifest)
    return manifest


def notes_to_custom(notes):
    return {"ledge-platform": notes}


def notes_of(target):
    return dict((target.custom or {}).get("ledge-platform", {}))


def check(manifest):
    """Fails where a box would refuse it: a manifest that no box takes would stop a whole fleet."""
    known(manifest, MANIFEST, "the manifest")
    if manifest.get("schema") != 1:
        raise Failure(f"the manifest has schema {manifest.get('schema')!r}, this version of ledge-platform knows 1")
    names.name(manifest["fleet"], "fleet")
    moments.parse(manifest["published"])
    if len(manifest["rollouts"]) > MOST_ROLLOUTS:
        raise Failure(f"{len(manifest['rollouts'])} rollouts, {MOST_ROLLOUTS} at most: stop those that are done")
    ids = [rollout.get("id") for rollout in manifest["rollouts"]]
    for rollout in manifest["rollouts"]:
        check_rollout(rollout)
    if len(set(ids)) != len(ids):
        raise Failure("two rollouts have the same id")
    for device, pins in manifest.get("pins", {}).items():
        names.name(device, "device")
        check_versions(pins, f"the pins of {device}")
    check_versions(manifest.get("minimum", {}), "minimum")
    for revoked in manifest.get("revoked", []):
        names.release(revoked)


def check_versions(versions, what):
    for subject, version in versions.items():
        names.subject(subject)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise Failure(f"{what}: {version!r} is no version")


def check_rollout(rollout):
    known(rollout, ROLLOUT, "a rollout")
    for key in ("id", "target", "start", "waves"):
        if key not in rollout:
            raise Failure(f"a rollout has no {key!r}")
    names.name(rollout["id"], "rollout")
    where = f"rollout {rollout['id']}"
    names.target(rollout["target"])
    moments.parse(rollout["start"])
    waves.check(rollout["waves"])
    for key in ("groups", "devices"):
        if rollout.get(key) == []:
            raise Failure(f"{where}: no {key} at all means nobody; leave it out")
        for entry in rollout.get(key, []):
            names.name(entry, key[:-1])
    for key in ("paused", "allow_downgrade"):
        if not isinstance(rollout.get(key, False), bool):
            raise Failure(f"{where}: {key} is true or false")
    value(rollout.get("max_attempts", 1), COUNT, f"{where}: max_attempts", 1, MOST_ATTEMPTS)
    value(rollout.get("byte_budget", 0), COUNT, f"{where}: byte_budget")
    if "requires_ledge" in rollout and not re.fullmatch(r"\d+\.\d+\.\d+", rollout["requires_ledge"]):
        raise Failure(f"{where}: requires_ledge is a version such as 0.1.0")
    known(rollout.get("gate", {}), GATE, f"{where}: gate")
    limits = {key: limit for key, limit in rollout.get("gate", {}).items() if limit is not None}
    fields(limits, GATE, f"{where}: gate")
    for step in ("shadow", "canary", "soak"):
        fields(rollout.get(step, {}), STEP, f"{where}: {step}")
        check_step(rollout.get(step, {}), f"{where}: {step}")
    if "window" in rollout:
        check_window(rollout["window"], where)


def check_step(step, where):
    for key in ("min_s", "max_s"):
        if step.get(key, 0) > LONGEST_S:
            raise Failure(f"{where}: {key} {step[key]} is more than {LONGEST_S}")
    if "max_s" in step and step.get("min_s", 0) > step["max_s"]:
        raise Failure(f"{where}: min_s {step['min_s']} is more than max_s, {step['max_s']}")


def check_window(window, where):
    known(window, {"timezone", "days", "from", "to"}, f"{where}: the window")
    try:
        ZoneInfo(window["timezone"])
    except (ZoneInfoNotFoundError, KeyError, ValueError, TypeError):
        raise Failure(f"{where}: {window.get('timezone')!r} is no time zone such as Asia/Dubai") from None
    unknown = [day for day in window.get("days", DAYS) if day not in DAYS]
    if unknown or window.get("days") == []:
        raise Failure(f"{where}: days are some of {' '.join(DAYS)}")
    for key in ("from", "to"):
        if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", str(window.get(key))):
            raise Failure(f"{where}: {key!r} of the window is a time such as 01:00")
    if window["from"] == window["to"]:
        raise Failure(f"{where}: the window is empty; leave it out if any time is right")


def known(table, keys, what):
    if not isinstance(table, dict):
        raise Failure(f"{what} is no object")
    unknown = sorted(set(table) - set(keys))
    if unknown:
        raise Failure(f"{what}: {', '.join(unknown)} is not known; there are {', '.join(sorted(keys))}")


def fields(table, forms, what):
    known(table, forms, what)
    for key, content in table.items():
        value(content, forms[key], f"{what}: {key}")


def value(content, form, what, least=0, most=None):
    """Fails where CONTENT is not of FORM."""
    if isinstance(form, tuple):
        if content not in form:
            raise Failure(f"{what} is {' or '.join(form)}")
        return
    number = isinstance(content, (int, float)) and not isinstance(content, bool) and math.isfinite(content)
    good = number and (form != COUNT or isinstance(content, int)) and content >= least
    good = good and not (
        form == SHARE and content > 1 or form == POSITIVE and content == 0 or most is not None and content > most
    )
    if not good:
        bounds = f", from {least} to {most}" if most is not None else ""
        raise Failure(f"{what} is {form}{bounds}, not {content!r}")


def parse_gate(text):
    """The limits of a gate: `KEY=NUMBER` or `KEY=off`, or `off` for none but the golden inputs."""
    if text == OFF:
        return dict.fromkeys(GATE_DEFAULTS)
    parts = [part for part in text.split(",") if part]
    off = [part.partition("=")[0] for part in parts if part.partition("=")[2] == OFF]
    for key in off:
        if key not in GATE_DEFAULTS:
            there = ", ".join(GATE_DEFAULTS)
            raise Failure(f"gate: {key} cannot be switched off (golden_min=0 takes any answer); {there} can")
    rest = [part for part in parts if part.partition("=")[2] != OFF]
    return {**dict.fromkeys(off), **parse_fields(",".join(rest), GATE, "gate")}


def parse_step(text, name):
    """The fields of the step NAME, or `off`."""
    return dict(STEP_OFF[name]) if text == OFF else parse_fields(text, STEP, name)


def completed(rollout):
    """ROLLOUT with everything said that it leaves out of its gate and steps, as boxes would read it."""
    if is_of_packages(rollout):
        return completed_of_packages(rollout)
    steps = {name: completed_step(name, rollout.get(name, {})) for name in STEP_DEFAULTS}
    return {**rollout, "gate": {**GATE_DEFAULTS, **rollout.get("gate", {})}, **steps}


def is_of_packages(rollout):
    return rollout["target"].startswith(f"{names.PACKAGES}/")


def completed_of_packages(rollout):
    """The same of a release of packages. Fails where a guard was asked for that nothing on a box would look at."""
    off = {"gate": dict.fromkeys(GATE_DEFAULTS), **STEP_OFF}
    result = {key: content for key, content in rollout.items() if key not in off}
    foreign = []
    for name, nothing in off.items():
        said, defaults = rollout.get(name, {}), PACKAGE_GUARDS.get(name, {})
        asked = [key for key, content in said.items() if not (key in nothing and content == nothing[key])]
        foreign += [f"{name} {key}" for key in asked if key not in defaults]
        if defaults:
            result[name] = {key: said.get(key, default) for key, default in defaults.items()}
    if foreign:
        raise Failure(f"a rollout of packages is guarded by gate memory_ratio_max and soak min_s, and not by {', '.join(foreign)}")
    return result


def completed_step(name, said):
    """One bound in time moves the other with it."""
    step = {**STEP_DEFAULTS[name], **said}
    if "min_s" not in said:
        step["min_s"] = min(step["min_s"], step["max_s"])
    if "max_s" not in said:
        step["max_s"] = max(step["min_s"], step["max_s"])
    return step


def spoken_guards(rollout):
    """The limits that guard a complete rollout, line by line, in the words of the options that set them."""
    seen_by_requests = rollout["target"].startswith("models/")
    gate = {"golden_min": 1, **rollout["gate"]} if seen_by_requests else rollout["gate"]
    if seen_by_requests or is_of_packages(rollout):
        limits = (f"{key}={OFF if limit is None else format(limit, 'g')}" for key, limit in gate.items())
        yield f"gate    {' '.join(limits)}"
    for name in STEP_DEFAULTS if seen_by_requests else ("soak",):
        step = rollout[name]
        if all(step.get(key, value) == value for key, value in STEP_OFF[name].items()):
            yield f"{name:<7} {OFF}"
            continue
        share = [] if name == "soak" else [f"share={step['share']:g}"]
        times = [f"{key}={moments.spoken(step[key])}" for key in ("min_s", "max_s") if key in step]
        requests = [f"min_requests={step['min_requests']}", f"quiet={step['quiet']}"] if seen_by_requests else []
        yield f"{name:<7} {' '.join([*share, *times, *requests])}"


def parse_fields(text, forms, what):
    """`share=0.1,min_requests=100` as the fields of a step or gate. Durations may have a unit: `min_s=2h`."""
    table = {}
    for part in filter(None, text.split(",")):
        key, sign, content = part.partition("=")
        if not sign or key not in forms:
            raise Failure(f"{what}: {part!r} is not KEY=VALUE with one of {', '.join(forms)}")
        if isinstance(forms[key], tuple):
            table[key] = content
            continue
        try:
            if forms[key] == COUNT:
                table[key] = (
                    moments.duration(content) if key.endswith("_s") and content[-1:].isalpha() else int(content)
                )
            else:
                table[key] = float(content)
        except ValueError:
            raise Failure(f"{what}: {key} is {forms[key]}, not {content!r}") from None
    fields(table, forms, what)
    return table


def parse_window(text):
    """`Asia/Dubai mon,tue 01:00-05:00`, the days optional."""
    parts = text.split()
    found = re.fullmatch(r"(\d\d:\d\d)-(\d\d:\d\d)", parts[-1]) if len(parts) in (2, 3) else None
    if not found:
        raise Failure(f"window {text!r}: write it like 'Asia/Dubai mon,tue 01:00-05:00'")
    window = {"timezone": parts[0], "from": found[1], "to": found[2]}
    if len(parts) == 3:
        window["days"] = parts[1].lower().split(",")
    check_window(window, "window")
    return window
