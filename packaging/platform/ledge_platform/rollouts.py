"""Operations on rollouts. Pure: a manifest and the notes next to it are changed; nothing is signed here."""
from . import moments, names, waves
from .errors import Failure

REMEMBERED = 500  # ids that were used; boxes that refused a release under an id do not try it again


def find(manifest, rollout_id):
    for rollout in manifest["rollouts"]:
        if rollout["id"] == rollout_id:
            return rollout
    running = ", ".join(rollout["id"] for rollout in manifest["rollouts"]) or "none"
    raise Failure(f"fleet {manifest['fleet']} has no rollout {rollout_id!r} (it has: {running})")


def start(manifest, notes, rollout):
    used = notes.setdefault("used", [])
    if rollout["id"] in used or any(other["id"] == rollout["id"] for other in manifest["rollouts"]):
        raise Failure(
            f"the id {rollout['id']!r} was used already: boxes that refused it then "
            f"would not try it again, take a new one"
        )
    release = names.release(rollout["target"])
    if is_revoked(manifest, release):
        raise Failure(f"{release} is revoked, or below the minimum: no box would take it")
    manifest["rollouts"].append(rollout)
    notes["used"] = [*used, rollout["id"]][-REMEMBERED:]


def is_revoked(manifest, release):
    return str(release) in manifest.get("revoked", []) or release.version < manifest.get("minimum", {}).get(
        release.subject, 0
    )


def elapsed(rollout, moment):
    return int((moment - moments.parse(rollout["start"])).total_seconds())


def widen(manifest, notes, rollout_id, moment, to=None, schedule=None):
    """The next wave now; or everything up to the bound TO now; or another schedule from the same start."""
    rollout = find(manifest, rollout_id)
    if schedule is not None:
        rollout["waves"] = schedule
        return
    since = max(0, elapsed(rollout, paused_since(notes, rollout_id) or moment))
    listed = waves.listed(rollout["waves"])
    before = waves.reached(listed, since)
    to = to or next((wave["seed_below"] for wave in listed if wave["seed_below"] > before), None)
    if to is None or to <= before:
        raise Failure(f"rollout {rollout_id} has reached {100 * before / waves.SEEDS:.1f} % already")
    if elapsed(rollout, moment) < 0:
        rollout["start"] = moments.text(moment)
    later = [wave for wave in listed if wave["seed_below"] > to]
    reached = [wave for wave in listed if wave["after_s"] <= since and wave["seed_below"] <= before]
    rollout["waves"] = [*reached, {"seed_below": to, "after_s": since}, *later]


def pause(manifest, notes, rollout_id, moment):
    rollout = find(manifest, rollout_id)
    if rollout.get("paused"):
        raise Failure(f"rollout {rollout_id} is paused already")
    rollout["paused"] = True
    notes.setdefault("paused_since", {})[rollout_id] = moments.text(moment)


def resume(manifest, notes, rollout_id, moment, catch_up=False):
    """Goes on where it stood: without moving the start, all waves of the meantime would come at once."""
    rollout = find(manifest, rollout_id)
    if not rollout.get("paused"):
        raise Failure(f"rollout {rollout_id} is not paused")
    rollout["paused"] = False
    since = paused_since(notes, rollout_id)
    notes.get("paused_since", {}).pop(rollout_id, None)
    start = moments.parse(rollout["start"])
    if since and not catch_up and moment > start:
        rollout["start"] = moments.text(start + (moment - max(since, start)))


def paused_since(notes, rollout_id):
    since = notes.get("paused_since", {}).get(rollout_id)
    return moments.parse(since) if since else None


def stop(manifest, notes, rollout_id):
    manifest["rollouts"].remove(find(manifest, rollout_id))
    notes.get("paused_since", {}).pop(rollout_id, None)


def revoke(manifest, release, again=False):
    revoked = manifest.setdefault("revoked", [])
    if again:
        if str(release) not in revoked:
            raise Failure(f"{release} is not revoked")
        revoked.remove(str(release))
    elif str(release) not in revoked:
        revoked.append(str(release))


def minimum(manifest, subject, version):
    """Below VERSION nothing of SUBJECT runs; 0 takes the limit away."""
    limits = manifest.setdefault("minimum", {})
    if version:
        limits[subject] = version
    else:
        limits.pop(subject, None)


def pin(manifest, device, subject, version):
    """DEVICE stays at, or goes to, VERSION of SUBJECT; 0 takes the pin away."""
    pins = manifest.setdefault("pins", {})
    if version:
        pins.setdefault(device, {})[subject] = version
    elif pins.get(device, {}).pop(subject, None) is None:
        raise Failure(f"{device} has no pin of {subject}")
    if not pins.get(device):
        pins.pop(device, None)
