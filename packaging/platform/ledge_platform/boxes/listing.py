"""The state of each box as `box list` and the page show it, and what needs a look."""
from dataclasses import asdict, dataclass

from .. import moments, reports
from ..certificates.authority import DAY
from . import requests
from .rules import RENEWABLE_S
from .store import REVOKED

EXPECTED, WAITING, EXPIRED = "expected", "waiting", "expired"
# A certificate with less of its life left than this should have been renewed.
WORN_SHARE = 0.2
EXPIRES_SOON_S = 2 * DAY
REFUSALS_SHOWN_S = 7 * DAY
HEAD = ("NAME", "STATE", "FLEET", "CERTIFICATE UNTIL", "SINCE", "NOTE")


@dataclass
class Row:
    name: str
    state: str
    fleet: str | None = None
    group: str | None = None
    until: str | None = None  # of the newest certificate
    since: str | None = None
    renewed: str | None = None
    note: str | None = None
    needs_a_look: bool = False
    is_batch: bool = False  # the name is that of a join file for several boxes
    metrics: str | None = None


def rows(state, now):
    """All boxes, by their names."""
    found = [of_member(member, state, now) for member in state.members.values()]
    for invitation in state.invitations.values():
        found += of_invitation(invitation, state, now)
    found += [
        Row(waiting.box, WAITING, since=waiting.at, note=f"{waiting.reason}; key {waiting.id[:8]}", needs_a_look=True)
        for waiting in state.waiting.values() if waiting.kind == requests.JOIN]
    return sorted(found, key=lambda row: (row.name, row.state))


def of_member(member, state, now):
    newest = member.newest
    row = Row(member.name, member.state, member.fleet, member.group, newest.until, member.joined, newest.issued,
              metrics=member.metrics)
    if member.state == REVOKED:
        row.since, row.note = member.since, "its certificates are revoked; `box forget` frees its name"
        return row
    notes = [f"{waiting.reason} (key {waiting.id[:8]}): `box approve` or `box revoke`"
             for waiting in state.waiting.values() if waiting.box == member.name and waiting.kind == requests.RENEW]
    until, issued = moments.parse(newest.until), moments.parse(newest.issued)
    if moments.after(until, RENEWABLE_S) < now:
        notes.append("its certificate ended more than a year ago and cannot be renewed: `box forget`, then `box add`")
    elif until < now:
        notes.append(f"its certificate ended {spoken(now - until)} ago; it renews by itself when it is back")
    elif until - now < (until - issued) * WORN_SHARE:
        notes.append(f"it has not renewed its certificate, which ends in {spoken(until - now)}")
    again = [refusal.at for refusal in refusals(state, now)
             if refusal.inbox == member.invitation and refusal.box == member.name and refusal.at >= member.joined]
    if again:
        notes.append(f"a request with its join file came again {spoken(now - moments.parse(again[0]))} ago and was refused: "
                     "another box has the file, or this one was set up anew (`box forget`, then `box add`)")
    if member.note:
        notes.append(member.note)
    row.note, row.needs_a_look = "; ".join(notes) or None, bool(notes)
    return row


def of_invitation(invitation, state, now):
    """A row for each box that has not come; one for a batch without a list."""
    if invitation.is_used_up():
        return []
    is_expired = invitation.is_expired(now)
    rest = moments.parse(invitation.expires) - now
    if is_expired:
        note = f"never came; its join file expired {spoken(-rest)} ago"
    else:
        note = f"its join file expires in {spoken(rest)}"
    names = invitation.expected()
    if invitation.boxes is None:
        names, came = [invitation.name], f"{len(invitation.taken)} of {invitation.count} boxes came"
        note = f"batch: {came}; {note.removeprefix('never came; ')}"
    waiting = {known.box for known in state.waiting.values()}
    return [Row(name, EXPIRED if is_expired else EXPECTED, invitation.fleet, invitation.group, since=invitation.made,
                note=note, needs_a_look=is_expired or rest.total_seconds() < EXPIRES_SOON_S,
                is_batch=invitation.boxes is None)
            for name in names if name not in waiting or invitation.boxes is None]


def refusals(state, now):
    """Those of the last days, the newest first."""
    oldest = moments.text(moments.after(now, -REFUSALS_SHOWN_S))
    return [refusal for refusal in reversed(state.refusals) if refusal.at >= oldest]


def lines(state, now):
    found = rows(state, now)
    yield reports.table(HEAD, [
        (row.name, row.state, row.fleet or "-", row.until or "-", row.since or "-", row.note or "-") for row in found])
    if state.held:
        yield f"nothing is issued at present, and requests wait: {state.held}"
    latest = refusals(state, now)
    if latest:
        yield f"refused in the last {REFUSALS_SHOWN_S // DAY} days:"
    for refusal in latest:
        times = f" ({refusal.count} times)" if refusal.count > 1 else ""
        yield f"  {refusal.at}  {refusal.box or '-'}  inbox {refusal.inbox[:8]}: {refusal.reason}{times}"


def as_json(state, now):
    return {
        "at": moments.text(now), "boxes": [asdict(row) for row in rows(state, now)], "held": state.held,
        "waiting": [
            {"box": waiting.box, "kind": waiting.kind, "key": waiting.id, "at": waiting.at, "reason": waiting.reason}
            for waiting in state.waiting.values()],
        "refusals": [asdict(refusal) for refusal in refusals(state, now)],
    }


def spoken(duration):
    """In its largest unit: 3 d, 2 h."""
    seconds = duration.total_seconds()
    for unit, size in (("d", DAY), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
