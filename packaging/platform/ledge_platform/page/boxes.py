"""The page's data about a box: its last report, its rollouts, its log, and its faults."""
from .. import moments
from ..audit.findings import FAILED, STALE
from ..boxes.store import MEMBER as JOINED
from ..boxes.store import REVOKED
from . import clean, inventory, standings

LATE_S = 900
GONE_S = 86_400
LOG_LATE_S = 26 * 3_600
COPY_LATE_RECORDS = 10_000
CLOCK_S = 300
WARN, FAIL = "warn", "fail"
# The kinds of faults.
SEEN, RELEASE, AUDIT, HEALTH, ROOM, MEMBER = "seen", "release", "audit", "health", "room", "member"
MOST_VERSIONS, MOST_SUBJECTS = 128, 24  # of a report, as boxes bound it


def describe_all(devices, complaints, logs, members, fleets, now, late_s):
    """All boxes by their names: of the broker, with verified logs, and those that joined or are expected."""
    reported = {device.device: device for device in devices}
    known = {*reported, *logs.devices(), *members.names()} - members.forgotten
    return [describe(name, reported.get(name), complaints.get(name), logs, members, fleets, now, late_s)
            for name in sorted(known)]


def describe(name, device, complaint, logs, members, fleets, now, late_s):
    found, log, row = [], logs.of(name), members.rows.get(name)
    box = {"device": name, "name": clean.line(name) or "?", "verified": log, "findings": found,
           "membership": members.of(name), "answer": members.answer(name)}

    def tell(kind, level, text, advice=None):
        found.append({"kind": kind, "level": level, "text": clean.line(text), **({"advice": advice} if advice else {})})

    look_at_membership(tell, row, device)
    if row is not None and device is not None:
        box["notes"] = moves(row, device)
    if device is None:
        if row is None:
            tell(SEEN, WARN, "it has never reported, and its log is verified here",
                 "look at `[mqtt]` on the box, or take it out with `ledge-platform audit forget`")
        box.update(fleet=row and clean.line(row.fleet), group=row and clean.line(row.group))
        if log is not None:
            look_at_log(tell, log, None, logs.exists(), now)
        return box
    fleet = fleets.get(device.fleet)
    own = standings.standings(device, fleet, now)
    box.update(fleet=clean.line(device.fleet), group=clean.line(device.group), online=device.online,
               ledge=clean.line(device.ledge_version), health=clean.line(device.health),
               at=clean.moment(device.at), rollouts=own, **report_of(device))
    look_at_report(tell, device, box, complaint, now, late_s)
    look_at_inventory(tell, row, box, now)
    look_at_rollouts(tell, own)
    look_at_health(tell, box)
    look_at_log(tell, log, box["audit"], logs.exists(), now)
    found.sort(key=lambda finding: finding["level"] != FAIL)
    return box


def report_of(device):
    """The rest of the report, as far as the page shows it."""
    document = device.document
    load, updates = clean.table(document.get("load")), clean.table(document.get("updates"))
    machine, process = clean.table(load.get("machine")), clean.table(load.get("process"))
    requests, audit = clean.table(document.get("requests")), clean.table(document.get("audit"))
    lost = clean.table(audit.get("lost"))
    return {
        "started": clean.moment(document.get("started")),
        "load": {"cores": clean.number(machine.get("cores")), "cpu": clean.number(machine.get("cpu_ratio")),
                 "memory": clean.number(machine.get("memory_total_bytes")),
                 "free": clean.number(machine.get("memory_available_bytes")),
                 "ledge": clean.number(process.get("memory_bytes"))},
        "requests": {key: clean.number(requests.get(key)) for key in ("ok", "failed", "refused")},
        "inventory": inventory.of(document),
        "models": [{"name": clean.line(model.get("name")), "origin": inventory.origin(model), "versions": [
            {"version": clean.number(version.get("version")), "state": clean.line(version.get("state")),
             "runtime": clean.line(version.get("runtime")), "reason": clean.line(version.get("reason"))}
            for version in clean.rows(model.get("versions"), MOST_VERSIONS)]}
            for model in clean.rows(document.get("models"), MOST_VERSIONS)],
        "left_out": clean.number(document.get("versions_left_out")) or 0,
        "updates": {
            "checked": clean.moment(updates.get("checked")), "error": clean.line(device.error),
            "timestamp": device.metadata.get("timestamp"), "subjects": [
                {"subject": clean.line(entry.subject), "version": entry.version, "pinned": entry.pinned}
                for entry in device.subjects[:MOST_SUBJECTS]],
        } if updates else None,
        "audit": {
            "log": clean.line(audit.get("log")), "records": clean.number(audit.get("size")),
            "copied": clean.number(audit.get("synced")), "error": clean.line(audit.get("error")),
            "alarm": clean.line(audit.get("alarm")),
            "lost": (clean.number(lost.get("calls")) or 0) + (clean.number(lost.get("events")) or 0),
        } if audit else None,
    }


# --- what is late or wrong ---

def look_at_membership(tell, row, device):
    if row is None:
        return
    if row.state == REVOKED and device is not None and device.online:
        tell(MEMBER, FAIL, "it is revoked, and connected to the broker",
             "`ledge-platform servers refresh` ends its connection")
    elif row.needs_a_look:
        tell(MEMBER, WARN, row.note)
    elif row.state == JOINED and device is None:
        tell(SEEN, WARN, "it joined, and has never reported", "`ledge doctor` on the box looks at `[mqtt]`")


def look_at_report(tell, device, box, complaint, now, late_s):
    if box["name"] != device.device:
        tell(SEEN, FAIL, "its name has characters that no box has",
             "find the client of the broker that uses this name")
    if complaint:
        tell(SEEN, FAIL, f"its last report is left out: {complaint}")
    if not box["at"]:
        if not complaint:
            tell(SEEN, WARN, "it is known to the broker, and has not reported yet")
        return
    age = (now - moments.parse(box["at"])).total_seconds()
    level = FAIL if age > GONE_S else WARN
    if age < -CLOCK_S:
        tell(SEEN, WARN, f"its clock is {spoken(-age)} ahead", "look at the time of the box")
    elif device.online is False and age > late_s:
        tell(SEEN, level, f"not connected; its last report came {spoken(age)} ago",
             "look at its power and its network")
    elif age > late_s:
        more = ", though it is connected" if device.online else ""
        tell(SEEN, level, f"its last report is {spoken(age)} old{more}", "`ledge doctor` on the box says why")


def look_at_inventory(tell, row, box, now):
    found = box["inventory"]
    if found is None:
        return
    full = inventory.disk_finding(found["disk"])
    if full:
        tell(ROOM, FAIL if full[0] else WARN, full[1], "`ledge doctor` on the box lists its folders")
    certificate = found["certificate"]
    if row is None or row.state == JOINED:
        worn = inventory.certificate_finding(certificate, row and row.until, now, spoken)
        if worn:
            tell(MEMBER, FAIL if worn[0] else WARN, worn[1], "`ledge doctor` on the box looks at `[membership]`")
    if certificate and box["at"]:
        behind = (moments.parse(certificate["from"]) - moments.parse(box["at"])).total_seconds()
        if behind > CLOCK_S:
            tell(SEEN, WARN, f"its clock is at least {spoken(behind)} behind: its last report is older than its certificate",
                 "look at the time of the box")


def moves(row, device):
    """How its place differs from that of its join file."""
    return [f"it reports {what} {clean.line(now)}, and was invited for {clean.line(then)}"
            for what, now, then in (("fleet", device.fleet, row.fleet), ("group", device.group or "none", row.group))
            if device.at and then and now != then]


def look_at_rollouts(tell, own):
    for one in own:
        release = f"{one['subject']} {one['version']}"
        if one["state"] == standings.FAILED:
            tell(RELEASE, FAIL, f"{one['rollout']} was rolled back: {one['text']}")
        elif one["late"]:
            nothing = ", and the box has not begun" if one["state"] == standings.NOTHING else ""
            why = f": {one['text']}" if one["text"] else nothing
            tell(RELEASE, WARN, f"{release} is not committed a day after its wave{why}")


def look_at_health(tell, box):
    bad = [f"{model['name']} {version['version'] or ''}: {version['reason'] or 'no reason given'}"
           for model in box["models"] for version in model["versions"]
           if version["state"] == "UNAVAILABLE" and version["reason"] not in (None, "unloaded")]
    if box["health"] not in (None, "ok"):
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        tell(HEALTH, FAIL, f"{bad[0]}{more}" if bad else f"it reports that it is {box['health']}")
    if box["updates"] and box["updates"]["error"]:
        tell(HEALTH, WARN, f"its last look for updates failed: {box['updates']['error']}")


def look_at_log(tell, log, audit, is_kept, now):
    """LOG is the state that `audit verify` kept, AUDIT the report of the box."""
    if audit:
        if audit["alarm"]:
            tell(AUDIT, FAIL, f"its audit log: {audit['alarm']}")
        if audit["error"]:
            tell(AUDIT, WARN, f"its audit log: {audit['error']}")
        if audit["lost"]:
            tell(AUDIT, WARN, f"its audit log lost {audit['lost']:,} records")
        behind = (audit["records"] or 0) - audit["copied"] if audit["copied"] is not None else 0
        if behind > COPY_LATE_RECORDS:
            tell(AUDIT, WARN, f"{behind:,} of its {audit['records']:,} records are not copied to the platform yet",
                 "`ledge doctor` on the box looks at `[audit.sync]`")
    if log is None:
        if is_kept and audit and audit["log"]:
            tell(AUDIT, WARN, "its audit log is not verified: its key is not pinned",
                 "`ledge-platform audit enroll`")
        return
    if "error" in log:
        tell(AUDIT, FAIL, log["error"])
        return
    for finding in log["findings"]:
        tell(AUDIT, WARN if finding["kind"] in (FAILED, STALE) else FAIL, f"its audit log: {finding['text']}")
    age = (now - moments.parse(log["at"])).total_seconds() if log["at"] else 0
    if age > LOG_LATE_S or not log["log"]:
        when = f"last verified {spoken(age)} ago" if log["log"] else "never verified"
        tell(AUDIT, WARN, f"its audit log was {when}", "run `ledge-platform audit verify`")


def spoken(seconds):
    """A duration in its largest unit: 3 h, 2 d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
