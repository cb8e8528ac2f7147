"""The state of a box in the rollouts of its fleet."""
from .. import moments, names, watch
from . import clean, rollouts as shown

# The states, from the one that needs a person most.
FAILED, NOTHING, WAITING, PAUSED, TRIAL, FETCHING, PINNED, LATER, ENDED, COMMITTED = (
    "failed", "nothing", "waiting", "paused", "trial", "fetching", "pinned", "later", "ended", "committed")
UNDER_WAY = (NOTHING, WAITING, TRIAL, FETCHING)
RELEASE_LATE_S = 86_400


def standings(device, fleet, now):
    """One for each subject that a rollout brings to this box: that of the rollout that counts."""
    if fleet is None:
        return []
    entries = {entry.subject: entry for entry in device.subjects}
    waiting = {entry.get("subject"): clean.table(entry.get("waiting"))
               for entry in clean.rows(clean.table(device.document.get("updates")).get("subjects"), 1_000)
               if isinstance(entry.get("subject"), str)}
    chosen = {}
    for rollout in fleet.manifest["rollouts"]:
        if not shown.is_meant(device, fleet.manifest, rollout):
            continue
        subject = names.release(rollout["target"]).subject
        found = standing(device, fleet, rollout, entries.get(subject), waiting.get(subject, {}), now)
        # The last one that has reached its time.
        if subject not in chosen or found["state"] != LATER:
            chosen[subject] = found
    return list(chosen.values())


def standing(device, fleet, rollout, entry, waiting, now):
    release, wave = names.release(rollout["target"]), shown.wave_of(device, fleet.manifest, rollout)
    start = moments.parse(rollout["start"])
    comes = moments.after(start, wave[1]) if wave else None
    state, text = state_of(rollout, release, entry, waiting, comes, now)
    is_late = state in UNDER_WAY and comes and (now - comes).total_seconds() > RELEASE_LATE_S
    return {
        "rollout": rollout["id"], "subject": release.subject, "version": release.version, "state": state,
        "stage": clean.line(entry.stage) if entry and state in (TRIAL, FETCHING) else None, "text": text,
        "wave": wave[0] if wave else None, "comes": moments.text(comes) if comes else None, "late": bool(is_late),
    }


def state_of(rollout, release, entry, waiting, comes, now):
    """(state, its reason in words)."""
    if entry and entry.trial_rollout == rollout["id"]:
        text = f"tries again after: {entry.error}" if entry.error else None
        return TRIAL if entry.stage in watch.TRIED else FETCHING, clean.line(text)
    if entry and entry.last_rollout == rollout["id"]:
        if entry.result == "committed":
            return COMMITTED, None
        text = f"{entry.cause} at {entry.failed_stage}: {entry.detail}"
        return ENDED if entry.cause in watch.NO_FAULT else FAILED, clean.line(text)
    if entry and entry.version == release.version:
        return COMMITTED, None
    if entry and entry.pinned:
        return PINNED, "its owner keeps it at its version"
    if comes is None or comes > now:
        return LATER, None
    if rollout.get("paused"):
        return PAUSED, None
    if waiting.get("rollout") == rollout["id"]:
        return WAITING, clean.line(waiting.get("reason"))
    return NOTHING, None
