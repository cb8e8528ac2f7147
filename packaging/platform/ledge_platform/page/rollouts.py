"""The page's data about a rollout: its waves, the counts of its watcher, and both over time."""
from .. import manifest as form
from .. import moments, names, rollouts, watch, waves
from . import clean

PLOT_ROWS, PLOT_ROWS_LEAST = 240, 30
GAP_S = 900  # without a sample for so long, nobody has looked
MOST_CAUSES = 8


def is_meant(device, state, rollout):
    """True if a rollout is for a box at all, as the box decides it in `src/updates/rollout/decide.rs`."""
    release = names.release(rollout["target"])
    if rollouts.is_revoked(state, release):
        return False
    pin = pin_of(device, state, release.subject)
    if pin:
        return pin == release.version
    groups, devices = rollout.get("groups"), rollout.get("devices")
    return (not groups and not devices or device.device in (devices or ()) or device.group in (groups or ()))


def pin_of(device, state, subject):
    return state.get("pins", {}).get(device.device, {}).get(subject)


def wave_of(device, state, rollout):
    """(number of the wave of a box, seconds after the start at which it comes); None where none reaches it yet."""
    if pin_of(device, state, names.release(rollout["target"]).subject):
        return 1, 0
    seed = waves.seed(device.device, rollout["id"])
    for number, (after_s, bound) in enumerate(waves.schedule(rollout["waves"]), 1):
        if seed < bound:
            return number, after_s
    return None


def meant(devices, state, rollout, now):
    """The number of known boxes that the rollout has reached."""
    since = rollouts.elapsed(rollout, now)
    found = (wave_of(device, state, rollout) for device in devices if is_meant(device, state, rollout))
    return sum(wave is not None and wave[1] <= since for wave in found)


def describe(fleet, rollout, entry, decision, meant_now, now):
    manifest, since = fleet.manifest, rollouts.elapsed(rollout, now)
    start = moments.parse(rollout["start"])
    paused = rollouts.paused_since(fleet.notes, rollout["id"]) if rollout.get("paused") else None
    return {
        **head(entry), "start": rollout["start"],
        "state": "paused" if rollout.get("paused") else "scheduled" if since < 0 else "running",
        "since": moments.text(paused) if paused else None, "reason": entry.reason,
        "waves": [{"share": bound / waves.SEEDS, "at": moments.text(moments.after(start, after_s)),
                   "reached": after_s <= since} for after_s, bound in waves.schedule(rollout["waves"])],
        "groups": rollout.get("groups", []), "devices": len(rollout.get("devices", [])),
        "window": window(rollout.get("window")), "guards": list(form.spoken_guards(form.completed(rollout))),
        "withdrawn": rollouts.is_revoked(manifest, names.release(rollout["target"])),
        "counts": counts(decision, meant_now),
        "causes": [{"cause": clean.line(cause) or "no reason given", "count": count,
                    "example": clean.line(decision.examples[cause])}
                   for cause, count in decision.causes.most_common(MOST_CAUSES)],
        "plot": plot(entry, int(now.timestamp())),
    }


def describe_ended(entry):
    last = entry.samples[-1] if entry.samples else None
    names_of = ("meant", "under_way", "tried", "committed", "failed", "silent")
    return {**head(entry), "start": entry.start, "state": "ended", "since": entry.ended, "reason": entry.reason,
            "counts": dict(zip(names_of, last[1:])) if last else None, "plot": plot(entry, last[0]) if last else None}


def head(entry):
    policy = entry.policy
    return {
        "fleet": entry.fleet, "id": entry.rollout, "target": entry.target,
        "pauses": {"failures": policy.max_failures, "silent": policy.max_silent, "least": policy.min_failures,
                   "silent_after": moments.spoken(int(policy.silent_after_s))},
    }


def counts(decision, meant_now):
    return {
        "meant": meant_now, "under_way": decision.under_way, "tried": decision.tried,
        "committed": decision.committed, "failed": decision.failed, "silent": decision.silent,
    }


def window(window):
    if not window:
        return None
    return f"{window['timezone']} {','.join(window.get('days', form.DAYS))} {window['from']}-{window['to']}"


def plot(entry, end):
    """The samples at even distances up to END, and the numbers of boxes at which the watcher would have paused."""
    if not entry.samples:
        return None
    begin = min(entry.samples[0][0], end)
    interval = max(60, -(-(end - begin) // (PLOT_ROWS - 1)))
    length = (end - begin) // interval + 1
    samples, rows, place = entry.samples, [], -1
    for index in range(length):
        moment = end - (length - 1 - index) * interval
        while place + 1 < len(samples) and samples[place + 1][0] <= moment:
            place += 1
        # Samples lie further apart, the older the rollout was.
        is_known = place >= 0 and moment - samples[place][0] <= GAP_S + 2 * entry.spacing(moment)
        rows.append(samples[place] if is_known else None)
    columns = {name: [row and row[number] for row in rows]
               for number, name in enumerate(("meant", "under_way", "tried", "committed", "failed", "silent"), 1)}
    policy = entry.policy
    for name, limit in (("failed_limit", policy.max_failures), ("silent_limit", policy.max_silent)):
        columns[name] = [row and watch.bound(row[3], limit, policy) for row in rows]
    return {"end": moments.text(moments.at(end)), "interval": interval, "length": length,
            "rows": max(length, PLOT_ROWS_LEAST), "columns": columns}
