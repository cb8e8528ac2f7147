"""`box ...`: one function a verb, each of which returns its exit status."""
import contextlib
import json
import sys

from .. import moments, release
from ..audit.store import Store as AuditStore
from ..certificates.authority import Authority
from ..errors import DONE, Failure, Refused
from ..site.layout import Layout
from . import answering, asking, inviting, listing, monitoring
from .inboxes import Inboxes
from .questions import Questions, summaries
from .store import MEMBER, REVOKED, Store


def add(given):
    layout = Layout.open(given.root)
    if given.metrics and (len(given.names) != 1 or given.csv or given.batch):
        raise Failure("--metrics is the address of one box: name one, or give --csv with the column metrics")
    wanted = [inviting.Wanted(name, (name,), 1, given.fleet, given.group, given.metrics) for name in given.names]
    if given.csv:
        wanted += [inviting.Wanted(name, (name,), 1, fleet or given.fleet, group or given.group,
                                   metrics and monitoring.address(metrics))
                   for name, fleet, group, metrics in inviting.of_csv(given.csv)]
    if given.batch:
        wanted.append(batch(given))
    elif given.listed or given.count:
        raise Failure("--count and --names belong to a --batch NAME")
    if not wanted:
        raise Failure("name the boxes, or give --csv FILE or --batch NAME")
    if given.settings:
        release.settings(given.settings)
    made = inviting.invite(layout, wanted, given.valid, given.settings, given.out, given.again, given.packages)
    for path, expires in made:
        print(f"{path} is good until {expires}")
    print(f"fingerprint of {layout.name}, which `ledge join` shows: {inviting.fingerprint(layout)}")


def batch(given):
    if not given.listed:
        if not given.count:
            raise Failure("a batch has a --count, a --names of names, or both")
        return inviting.Wanted(given.batch, None, given.count, given.fleet, given.group)
    listed = inviting.of_list(given.listed)
    if not listed:
        raise Failure(f"{given.listed} has no names")
    if given.count and given.count > len(listed):
        raise Failure(f"{given.listed} has {len(listed)} names for --count {given.count}")
    return inviting.Wanted(given.batch, listed, given.count or len(listed), given.fleet, given.group)


def answer(given):
    return told(answering.answer_all(Layout.open(given.root)), given.quiet)


def told(result, is_quiet=False):
    for what, boxes in (("joined", result.issued), ("renewed", result.renewed), ("wait for approval", result.waiting), ("answered a question", result.heard)):
        if boxes and not is_quiet:
            shown = ", ".join(boxes[:10]) + (f" and {len(boxes) - 10} more" if len(boxes) > 10 else "")
            print(f"{what}: {shown}")
    if result.held and result.left:
        print(f"ledge-platform: {result.left} requests wait: {result.held}", file=sys.stderr)
        return Refused.status
    if result.left and not is_quiet:
        print(f"{result.left} requests are left for the next run")
    return DONE


def listed(given):
    layout, now = Layout.open(given.root), moments.now()
    state, answers = Store(layout.boxes).load(), Questions(layout).answers()
    if given.json:
        print(json.dumps({**listing.as_json(state, now), "answers": answers}, indent=1))
        return
    for line in [*listing.lines(state, now), *summaries(answers)]:
        print(line)


@contextlib.contextmanager
def changing(layout):
    """The state of all boxes and the authority, locked in the order of all runs."""
    store, authority = Store(layout.boxes), Authority.open(layout.ca)
    with layout.as_owner(), store.locked(), authority.locked():
        yield store, store.load(), authority


def chosen(state, given):
    """The waiting requests that are meant."""
    if given.all == bool(given.name):
        raise Failure("name a box, or give --all")
    found = [waiting for waiting in state.waiting.values() if not waiting.approved
             and (given.all or waiting.box == given.name) and waiting.id.startswith(given.key or "")]
    if not found:
        raise Failure(f"no request{'' if given.all else f' of {given.name}'} waits for approval")
    return found


def approve(given):
    layout = Layout.open(given.root)
    with changing(layout) as (store, state, _):
        found = chosen(state, given)
        twice = {waiting.box: [other.id[:8] for other in found if other.box == waiting.box] for waiting in found}
        twice = {box: ids for box, ids in twice.items() if len(ids) > 1}
        if twice:
            box, ids = next(iter(twice.items()))
            raise Failure(f"{len(ids)} requests of {box} wait, with the keys {', '.join(ids)}: choose one with --key")
        for waiting in found:
            waiting.approved = True
        store.save(state)
    return told(answering.answer_all(layout))


def reject(given):
    layout = Layout.open(given.root)
    with changing(layout) as (store, state, _):
        found = chosen(state, given)
        for waiting in found:
            del state.waiting[waiting.id]
            state.owed[waiting.id] = "the operator of the platform rejected it"
        store.save(state)
    print(f"rejected: {', '.join(waiting.box for waiting in found)}")
    return told(answering.answer_all(layout))


def revoke(given):
    layout = Layout.open(given.root)
    with changing(layout) as (store, state, authority):
        member = state.members.get(given.name)
        if member is None:
            raise Failure(f"{given.name} is no member: `ledge-platform box list` has them")
        count = len(authority.revoke(member.name))
        if member.state == MEMBER:
            member.state, member.since = REVOKED, moments.text(moments.now())
        drop_waiting(state, member.name, f"{member.name} is revoked")
        store.save(state)
        monitoring.write(layout, state)
        Questions(layout).forget(member.name)
        remove_inboxes(layout, member)
    print(f"{given.name}: {count} certificates are revoked now; the servers refuse it within two minutes")


def forget(given):
    layout = Layout.open(given.root)
    with changing(layout) as (store, state, authority):
        member = state.members.get(given.name)
        invitations = [known for known in state.invited.get(given.name, ())
                       if known.name == given.name or given.name in known.expected()]
        waits = any(waiting.box == given.name for waiting in state.waiting.values())
        if member is None and not invitations and not waits:
            raise Failure(f"{given.name} is no box of this platform: `ledge-platform box list` has them")
        if member:
            if member.state == MEMBER:
                authority.revoke(member.name)
            state.remove_member(member)
            state.unpinned = [name for name in state.unpinned if name != member.name]
        for invitation in invitations:
            if invitation.name == given.name:
                state.remove_invitation(invitation)
            else:
                invitation.boxes.remove(given.name)
                invitation.count = max(1, min(invitation.count, len(invitation.boxes)))
        drop_waiting(state, given.name, f"{given.name} was forgotten")
        state.index()
        state.forgotten[given.name] = moments.text(moments.now())
        store.save(state)
        monitoring.write(layout, state)
        Questions(layout).forget(given.name)
        if member:
            remove_inboxes(layout, member)
        enrolled = forget_log(layout, given.name)
    print(f"{given.name} is forgotten, and its name can be invited again")
    if enrolled:
        print(f"its audit log stays in {layout.box_audit / given.name} and is not verified any more; move that folder "
              "away before another box takes this name")


def metrics(given):
    layout = Layout.open(given.root)
    wanted = None if given.address == monitoring.NONE else monitoring.address(given.address)
    if wanted and not layout.prometheus.is_dir():
        raise Failure(f"{layout.prometheus} is missing: run `ledge-platform init` again, which makes what Prometheus needs")
    with changing(layout) as (store, state, _):
        member = state.members.get(given.name)
        if member is None or member.state != MEMBER:
            raise Failure(f"{given.name} is no member: `box add --metrics` says it for a box that joins")
        before = member.metrics
        if wanted:
            monitoring.refuse_host(layout, wanted)
            other = monitoring.taken(state, wanted, member.name)
            if other:
                raise Failure(f"{other} has the address {wanted} for metrics, too")
        member.metrics = wanted
        store.save(state)
        monitoring.write(layout, state)
    print(f"{given.name}: Prometheus reads its metrics at {wanted}" if wanted else
          f"{given.name}: Prometheus does not read its metrics")
    if wanted and (before is None or monitoring.host_of(before) != monitoring.host_of(wanted)):
        print("its certificate is for this host from its next renewal on; until then Prometheus refuses it")
    if wanted and (before is None or before.rpartition(":")[2] != wanted.rpartition(":")[2]):
        print("the box listens there only by a new join file (`box add --metrics`), or by http.listen of its own")


def remove_inboxes(layout, member):
    """Those with a request in them are removed by the next `box answer`, which refuses it."""
    for inbox in {known.inbox for known in member.certificates}:
        Inboxes(layout.requests).remove_inbox(inbox)


def forget_log(layout, name):
    """Takes a box out of those whose audit logs are expected."""
    audit = AuditStore(layout.audit_state)
    if not audit.folder.is_dir():
        return False
    with audit.locked():
        path = audit.path(name)
        if not path.exists():
            return False
        path.unlink()
        return True


def drop_waiting(state, name, reason):
    for waiting in [waiting for waiting in state.waiting.values() if waiting.box == name]:
        del state.waiting[waiting.id]
        state.owed[waiting.id] = reason


VERBS = {
    "box add": add,
    "box answer": answer,
    "box list": listed,
    "box ask": asking.ask,
    "box approve": approve,
    "box reject": reject,
    "box revoke": revoke,
    "box forget": forget,
    "box metrics": metrics,
}
