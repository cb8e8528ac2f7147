"""Decides on the requests of boxes: this is where a join file and a certificate are worth something, or nothing.

A run decides in memory and then writes, in an order that a kill cannot break:

    1. certificates, in the folder of the authority: what is given out can be revoked
    2. the state: the box is a member, its invitation counts one fewer
    3. the folders of new inboxes, and the answers
    4. only then the requests are removed

Killed before 2 nothing was given out, and the requests are still there. Killed after it they are also still there, and
get the same answer again.
"""
import json
import os
import random

from .. import files, moments
from ..audit.store import Store as AuditStore
from ..certificates.authority import DAY, Authority
from ..errors import Failure
from . import monitoring, questions, requests
from .inboxes import FILES_MAX, Inboxes
from .rules import Outcome, Rules, clean
from .store import Store

# What one run answers; the timer starts the next one a minute later.
REQUESTS_MAX = 2_000
# What is written at once.
GROUP = 250
KEPT_S = 30 * DAY
FORGOTTEN_KEPT_S = 400 * DAY


class Run(Rules):
    """One run over all inboxes, with the store locked."""

    def __init__(self, layout, store):
        self.questions = questions.Questions(layout)
        super().__init__(store.load(), Authority.open(layout.ca), moments.now(), self.questions.load)
        self.layout, self.store, self.inboxes = layout, store, Inboxes(layout.requests)

    def run(self):
        self.open_issuer()
        if self.issuer:
            self.tidy()
            self.settle_waiting()
        picked = self.pick()
        if self.issuer:
            for start in range(0, len(picked), GROUP):
                for file in picked[start:start + GROUP]:
                    self.take(file)
                self.commit()
        else:
            self.result.left += len(picked) + sum(waiting.approved for waiting in self.state.waiting.values())
        self.commit()
        self.clean_folders()
        self.pay()
        self.pin_audit_keys()
        if self.changed:
            self.save()
        monitoring.write(self.layout, self.state)
        return self.result

    def open_issuer(self):
        """The key that signs; without one, `held` says why."""
        reason = unsound_clock(self.root, self.now)
        certificate = self.authority.certificate
        if not reason and self.rest(certificate) < DAY:
            reason = (f"the issuing authority is good until {moments.text(certificate.not_valid_after_utc)} only: "
                      "`ledge-platform ca renew` gives it another year")
        if reason != self.state.held:
            self.state.held, self.changed = reason, True
        self.result.held = reason
        self.issuer = None if reason else self.authority.issuer()

    # --- which requests have their turn ---

    def pick(self):
        """Files of all inboxes in turns: each has its first one read before another has its second."""
        found, others = self.inboxes.names()
        self.folders = set(found)
        for name in others:
            self.inboxes.remove_stranger(name)
            self.refuse("-", f"there was {clean(repr(name))} among the inboxes, which no platform makes")
        self.make_folders()
        lists = []
        for inbox in found:
            listed, surplus = self.inboxes.list(inbox, self.files_max(inbox))
            if surplus:
                self.refuse(inbox, "more files than one inbox may have were removed", count=surplus)
            if listed:
                lists.append(listed)
        random.shuffle(lists)
        turns = range(max(map(len, lists), default=0))
        picked = [file for turn in turns for listed in lists for file in listed[turn:turn + 1]]
        self.result.left = max(0, len(picked) - REQUESTS_MAX)
        return picked[:REQUESTS_MAX]

    def files_max(self, inbox):
        invitation = self.state.invitations.get(inbox)
        return FILES_MAX + (2 * invitation.count if invitation and invitation.is_batch else 0)

    def make_folders(self):
        """A folder for each inbox, although an earlier run was killed before it made one."""
        for inbox in self.state.wanted_inboxes(self.now) - self.folders:
            self.inboxes.make(inbox)
            self.folders.add(inbox)

    def clean_folders(self):
        """Removes the inboxes that nobody has any more, once they are empty."""
        for inbox in self.folders - self.state.wanted_inboxes(self.now):
            self.inboxes.remove_inbox(inbox)
        self.questions.tidy(self.now)
        for stuck in self.inboxes.stuck:
            self.refuse("-", stuck)

    # --- one request ---

    def take(self, file):
        request = None
        try:
            content, mark = self.inboxes.read(file)
            request = parse(content, file.id)
            self.decide(request, file.inbox)
        except FileNotFoundError:
            return
        except Failure as failure:
            mark = None if request is None else mark
            self.refuse(file.inbox, str(failure), request)
        self.outcome.done.append((file, mark))

    # --- writing ---

    def save(self):
        self.store.save(self.state)
        self.changed = False

    def commit(self):
        outcome, self.outcome = self.outcome, Outcome()
        files.write_all(outcome.certificates)
        if self.changed:
            self.save()
        self.make_folders()
        self.write_answers(outcome.answers)
        self.write_heard(outcome.heard)
        for file, mark in outcome.done:
            self.inboxes.remove(file, mark)

    def write_answers(self, answers):
        contents = {self.layout.answers / f"{id_}.json": json.dumps(answer).encode() for id_, answer in answers.items()}
        files.write_all(contents, 0o644)

    def write_heard(self, heard):
        files.write_all(dict(self.questions.content(name, asked) for name, asked in heard.items()), 0o600)
        for asked in heard.values():
            self.questions.withdraw(asked)

    # --- what people have decided ---

    def settle_waiting(self):
        """Requests that were approved, and those that nobody approved."""
        for waiting in list(self.state.waiting.values()):
            if waiting.approved:
                self.settle(waiting)
            elif moments.after(moments.parse(waiting.at), KEPT_S) < self.now:
                self.reject(waiting, f"nobody approved it within {KEPT_S // DAY} days")

    def reject(self, waiting, reason):
        del self.state.waiting[waiting.id]
        self.state.owed[waiting.id] = reason
        self.changed = True

    def pay(self):
        """Answers to requests that are not in an inbox any more. What is owed is on the disk until they are."""
        if not self.state.owed or not self.issuer:
            return
        if self.changed:
            self.save()
        for id_, reason in self.state.owed.items():
            member = self.state.members.get(self.state.keys.get(id_))
            known = member and next((one for one in member.certificates if one.id == id_), None)
            if known:
                self.answer_issued(id_, self.content_of(known.serial))
            else:
                self.answer(id_, "refused", reason or "the box was forgotten")
        self.write_answers(self.outcome.answers)
        self.outcome.answers = {}
        self.state.owed.clear()
        self.changed = True

    # --- audit keys ---

    def pin_audit_keys(self):
        if not self.state.unpinned:
            return
        store = AuditStore(self.layout.audit_state)
        try:
            with store.locked(wait=False):
                contents = {}
                for name in dict.fromkeys(self.state.unpinned):
                    member = self.state.members.get(name)
                    if member is not None:
                        self.pin(store, member, contents)
                files.write_all(contents, 0o600)
        except BlockingIOError:
            return  # `audit verify` is at it; the next run pins them
        self.state.unpinned.clear()
        self.changed = True

    def pin(self, store, member, contents):
        try:
            box = store.pinned(member.name, member.audit_key)
            if box is not None:
                contents[store.path(member.name)] = store.content(box)
            member.note = None
        except Failure as failure:
            member.note = f"its audit key was not pinned: {failure}"

    # --- what is old ---

    def tidy(self):
        """Once a day."""
        if self.state.tidied and (self.now - moments.parse(self.state.tidied)).total_seconds() < DAY:
            return
        oldest = self.now.timestamp() - KEPT_S
        # A box that was switched off before it read its answer reads it when it is back.
        kept = {*self.state.waiting, *(member.newest.id for member in self.state.members.values())}
        if self.layout.answers.is_dir():
            with os.scandir(self.layout.answers) as entries:
                for entry in entries:
                    is_kept = entry.name.removesuffix(".json") in kept
                    if not is_kept and entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)
        for inbox, invitation in list(self.state.invitations.items()):
            is_late = moments.after(moments.parse(invitation.expires), KEPT_S) < self.now
            if is_late and invitation.is_used_up():
                del self.state.invitations[inbox]
        for name, at in list(self.state.forgotten.items()):
            if moments.after(moments.parse(at), FORGOTTEN_KEPT_S) < self.now:
                del self.state.forgotten[name]
        self.state.tidied, self.changed = moments.text(self.now), True


def unsound_clock(root, now):
    """Why the clock of this machine cannot be right; None if it can."""
    if now < root.not_valid_before_utc:
        begin = moments.text(root.not_valid_before_utc)
        return f"the clock says {moments.text(now)}, before the certificate authority began ({begin}): set the clock"
    return None


def parse(content, id_):
    """A request. Whatever a stranger's bytes set off in a parser is a refusal: one file cannot end the run of all."""
    try:
        return (questions if questions.is_answer(content) else requests).parse(content, id_)
    except Failure:
        raise
    except Exception as error:
        raise Failure(f"it cannot be read ({type(error).__name__})") from None


def answer_all(layout):
    """One run. The locks are those of the state and of the authority, in this order."""
    store = Store(layout.boxes)
    with layout.as_owner(), store.locked(), Authority.open(layout.ca).locked():
        return Run(layout, store).run()
