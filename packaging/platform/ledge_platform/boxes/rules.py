"""The rules by which a request gets a certificate, waits for a person, or is refused.

`Rules` changes a state in memory and collects what is to be written. It writes nothing, so that a run that is killed
while it decides has done nothing.
"""
import base64
import sys
from dataclasses import dataclass, field

from cryptography import x509

from .. import keys, moments, reports
from ..audit.notes import VerifierKey
from ..certificates import authority as certificates
from ..certificates.authority import DAY, LIFETIMES
from ..errors import Failure
from . import monitoring, questions, requests
from .store import MEMBER, Certificate, Member, Waiting

# Per inbox and day: what a hostile box can make the platform keep.
RENEWALS_PER_DAY_MAX = 12
REFUSALS_ANSWERED_MAX = 50
WAITING_PER_NAME_MAX = 4
WAITING_PER_INVITATION_MORE = 20
# A certificate that ended can be renewed for this long.
RENEWABLE_S = 365 * DAY
LINES_PER_INBOX = 3
REASON_LENGTH_MAX = 300


@dataclass
class Outcome:
    """The changes of some requests, until they are written."""

    certificates: dict = field(default_factory=dict)
    answers: dict = field(default_factory=dict)
    heard: dict = field(default_factory=dict)  # by the name of the box
    done: list = field(default_factory=list)


@dataclass
class Result:
    """What a run did, in numbers and names."""

    issued: list = field(default_factory=list)
    renewed: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    heard: list = field(default_factory=list)
    refused: int = 0
    left: int = 0
    held: str | None = None


class Rules:
    def __init__(self, state, authority, now, asked):
        self.state, self.authority, self.now, self.asked = state, authority, now, asked
        self.changed, self.outcome, self.result = False, Outcome(), Result()
        self.root = authority.root
        self.root_pem = certificates.pem(self.root).decode()
        self.issuer, self.revoked, self.lines = None, None, {}

    def rest(self, certificate):
        return (certificate.not_valid_after_utc - self.now).total_seconds()

    def decide(self, request, sent_to):
        if isinstance(request, questions.Answer):
            self.hear(request, sent_to)
            return
        owner = self.state.keys.get(request.id)
        member = self.state.members.get(request.box)
        if owner == request.box and member.state == MEMBER and member.newest.id == request.id \
                and not self.is_worn(member.newest):
            # It has not read its answer, or lost it.
            self.answer_issued(request.id, self.content_of(member.newest.serial))
            return
        if request.id in self.state.waiting:
            self.answer(request.id, "waiting", self.state.waiting[request.id].reason)
            return
        if owner is not None and (owner != request.box or member.newest.id != request.id):
            raise Failure(f"its key was certified before, for {owner}: this request is a copy of an older one")
        if request.kind == requests.JOIN:
            self.join(request, sent_to)
        else:
            self.renew(request, sent_to, member)

    def is_worn(self, certificate):
        """True if a third of its life is left, when a renewal may keep the key."""
        issued, until = moments.parse(certificate.issued), moments.parse(certificate.until)
        return (until - self.now) * 3 < until - issued

    def join(self, request, sent_to):
        invitation = self.state.invitations.get(sent_to)
        if invitation is None:
            raise Failure("no join file has this inbox: it was replaced, or the box is forgotten")
        if request.keyid != sent_to or not request.is_signed_by_secret(base64.b64decode(invitation.public)):
            raise Failure("it is not signed by the secret of the join file")
        if invitation.is_expired(self.now):
            raise Failure(f"the join file {invitation.name} has expired on {invitation.expires}")
        if request.join_file != invitation.file:
            raise Failure(f"the join file {invitation.name} was changed after it was made")
        self.refuse_name(request, invitation)
        self.refuse_inbox(request)
        if invitation.boxes is None:
            self.wait(request, sent_to, f"a person has to approve a box of the batch {invitation.name}")
            return
        self.admit(request, invitation)

    def refuse_name(self, request, invitation):
        name = request.box
        known = self.state.members.get(self.state.folded.get(name.lower()))
        if known and known.state == MEMBER and known.name in invitation.taken:
            raise Failure(f"the join file {invitation.name} was used before: {known.name} joined by it on {known.joined}")
        if known:
            raise Failure(f"{known.name} is {'a member already' if known.state == MEMBER else 'revoked'}")
        if name in invitation.taken:
            raise Failure(f"{name} joined by this file before, and was forgotten since")
        if invitation.boxes is not None and name not in invitation.boxes:
            raise Failure(f"the join file {invitation.name} is not for {name}")
        if invitation.is_used_up():
            raise Failure(f"the join file {invitation.name} is used up")
        if any(other is not invitation for other in self.state.invitations_of(name, self.now)):
            raise Failure(f"{name} has an invitation of its own")

    def refuse_inbox(self, request, own=None):
        """The inbox that a box chose is its own."""
        taken = request.inbox in self.state.invitations or self.state.inboxes.get(request.inbox, own) != own
        chosen = {waiting.inbox for waiting in self.state.waiting.values() if waiting.box != request.box}
        if taken or request.inbox in chosen:
            raise Failure("the inbox that it chose is another one's")

    def renew(self, request, sent_to, member):
        if member is None:
            why = "was forgotten" if request.box in self.state.forgotten else "is no member"
            raise Failure(f"{request.box} {why}: it needs a new join file")
        if member.state != MEMBER:
            raise Failure(f"{request.box} is revoked")
        if self.state.inboxes.get(sent_to) != member.name:
            raise Failure(f"it is for {request.box} and came to another inbox")
        own = member.certificate(request.keyid)
        if own is None:
            raise Failure(f"it names no certificate of {request.box}")
        self.refuse_revoked(own)
        if not request.is_signed_by_certificate(self.issued(own.serial)):
            raise Failure(f"it is not signed by the key of the certificate {own.serial}")
        ended = moments.parse(own.until)
        if moments.after(ended, RENEWABLE_S) < self.now:
            raise Failure(f"the certificate ended on {own.until}, more than a year ago: "
                          "`ledge-platform box forget`, then a new join file")
        self.refuse_inbox(request, member.name)
        if own.id != member.newest.id:
            self.wait(request, sent_to, "two boxes have this identity, or one was set back: "
                                        f"it has an older certificate than that of {member.newest.issued}")
            return
        day_ago = moments.after(self.now, -DAY)
        if sum(moments.parse(known.issued) > day_ago for known in member.certificates) >= RENEWALS_PER_DAY_MAX:
            raise Failure(f"{member.name} had {RENEWALS_PER_DAY_MAX} certificates within a day")
        self.extend(request, member)

    def refuse_revoked(self, certificate):
        """`ca revoke` revokes a certificate, too. A renewal must not give back what it took."""
        if self.revoked is None:
            self.revoked = {entry.serial_number for entry in self.authority.revoked()}
        if int(certificate.serial, 16) in self.revoked:
            raise Failure(f"the certificate {certificate.serial} is revoked")

    def hear(self, answer, sent_to):
        """Takes the answer to the question that is open: one, by the box that was asked."""
        member = self.state.members.get(answer.box)
        if member is None or member.state != MEMBER:
            raise Failure(f"{answer.box} is no member")
        if self.state.inboxes.get(sent_to) != member.name:
            raise Failure(f"it is an answer of {answer.box} and came to another inbox")
        own = member.newest
        if answer.keyid != own.serial:
            raise Failure(f"it is an answer by another certificate of {answer.box} than the newest")
        self.refuse_revoked(own)
        if not answer.is_signed_by_certificate(self.issued(own.serial)):
            raise Failure(f"it is not signed by the key of the certificate {own.serial}")
        asked = self.asked(member.name)
        if asked is None or asked.id != answer.id or asked.question != answer.content["question"]:
            raise Failure("it answers a question that is not open")
        if asked.is_answered or member.name in self.outcome.heard:
            raise Failure("it answers a question that was answered before")
        asked.answer = {**answer.content, "heard": moments.text(self.now)}
        self.outcome.heard[member.name] = asked
        self.result.heard.append(member.name)

    def wait(self, request, sent_to, reason):
        """Keeps a request for a person to decide."""
        others = [waiting for waiting in self.state.waiting.values() if waiting.box == request.box]
        if len(others) >= WAITING_PER_NAME_MAX:
            raise Failure(f"{len(others)} other requests for {request.box} wait for approval")
        invitation = self.state.invitations.get(sent_to)
        beside = sum(waiting.sent_to == sent_to for waiting in self.state.waiting.values())
        if invitation and beside >= invitation.count - len(invitation.taken) + WAITING_PER_INVITATION_MORE:
            raise Failure(f"{beside} boxes of the batch {invitation.name} wait for approval, more than it has left")
        self.state.waiting[request.id] = Waiting(
            request.id, request.kind, request.box, sent_to, request.inbox, request.csr.decode(), moments.text(self.now),
            reason, request.keyid, clean(request.audit_key), clean(request.ledge))
        self.changed = True
        self.result.waiting.append(request.box)
        self.answer(request.id, "waiting", reason)

    # --- what a person has decided ---

    def settle(self, waiting):
        request = requests.Request(
            waiting.id, waiting.kind, waiting.box, waiting.inbox, None, waiting.audit_key, waiting.ledge,
            waiting.csr.encode(), waiting.signed_by, b"", b"")
        del self.state.waiting[waiting.id]
        self.changed = True
        try:
            if waiting.kind == requests.JOIN:
                invitation = self.state.invitations.get(waiting.sent_to)
                if invitation is None:
                    raise Failure("its join file was replaced")
                self.refuse_name(request, invitation)
                self.refuse_inbox(request)
                self.admit(request, invitation)
            else:
                member = self.state.members.get(waiting.box)
                if member is None or member.state != MEMBER:
                    raise Failure(f"{waiting.box} is no member any more")
                self.refuse_revoked(member.certificate(waiting.signed_by))
                self.refuse_inbox(request, member.name)
                self.extend(request, member)
            self.state.owed[waiting.id] = None
        except Failure as failure:
            self.refuse(waiting.sent_to, str(failure), request)
            self.state.owed[waiting.id] = clean(str(failure))

    # --- certificates ---

    def admit(self, request, invitation):
        """Makes a box a member, and counts it once."""
        certificate = self.certify(request, invitation.metrics)
        invitation.taken[request.box] = request.id
        member = Member(request.box, certificate.issued, [certificate], invitation.inbox, invitation.fleet,
                        invitation.group, None, clean(request.ledge), metrics=invitation.metrics)
        self.state.add_member(member)
        self.state.forgotten.pop(member.name, None)
        self.note_audit_key(member, request.audit_key)
        self.result.issued.append(member.name)

    def extend(self, request, member):
        certificate = self.certify(request, member.metrics)
        oldest = moments.text(moments.after(self.now, -RENEWABLE_S))
        ended = [known for known in member.certificates if known.until < oldest]
        self.state.add_certificate(member, certificate)
        for known in ended:
            self.state.remove_certificate(member, known)
        member.ledge = clean(request.ledge) or member.ledge
        self.note_audit_key(member, request.audit_key)
        self.result.renewed.append(member.name)

    def certify(self, request, metrics):
        """A certificate for the key of a request. No certificate outlives the issuing authority.

        With METRICS it is also one of a server: for the host that people gave the box here, whatever a request asks for.
        """
        lifetime = int(min(LIFETIMES["certificate"], self.rest(self.issuer.certificate)))
        hosts, usages = monitoring.certified(metrics)
        signed = self.issuer.certify(request.box, request.key, lifetime, hosts, usages)
        content = certificates.pem(signed)
        self.outcome.certificates[self.authority.issued_file(signed)] = content
        self.changed = True
        self.answer_issued(request.id, content)
        until = moments.text(signed.not_valid_after_utc)
        return Certificate(f"{signed.serial_number:x}", request.id, request.inbox, moments.text(self.now), until)

    def content_of(self, serial):
        path = self.authority.issued / f"{serial}.pem"
        return self.outcome.certificates.get(path) or keys.content_of(path)

    def issued(self, serial):
        try:
            return x509.load_pem_x509_certificate(self.content_of(serial))
        except ValueError:
            raise Failure(f"its certificate {serial} cannot be read here") from None

    def note_audit_key(self, member, text):
        """The key of the box's audit log, which the audit store gets when it is free."""
        if text is None:
            return
        try:
            member.audit_key = str(VerifierKey.of(member.name, text))
            self.state.unpinned.append(member.name)
        except Failure as failure:
            member.note = f"its audit key was not pinned: {clean(str(failure))}"

    # --- answers ---

    def answer_issued(self, id_, certificate):
        chain = certificate + certificates.pem(self.issuer.certificate)
        self.outcome.answers[id_] = {
            "version": 1, "state": "issued", "certificate": chain.decode(), "ca": self.root_pem, "reason": None}

    def answer(self, id_, state, reason):
        self.outcome.answers[id_] = {
            "version": 1, "state": state, "certificate": None, "ca": None, "reason": clean(reason)}

    def refuse(self, inbox, reason, request=None, count=1):
        """Keeps and prints a refusal.

        Only who has proven to have the key gets an answer, and never in the place of a certificate.
        """
        reason, box = clean(reason), request and request.box
        day_ago = moments.text(moments.after(self.now, -DAY))
        before = sum(known.count for known in self.state.refusals if known.inbox == inbox and known.at > day_ago)
        self.state.refuse(inbox, reason, box, self.now, count)
        self.changed, self.result.refused = True, self.result.refused + count
        if request and request.wants_answer and request.id not in self.state.keys and request.id not in self.state.waiting \
                and request.id not in self.outcome.answers and before < REFUSALS_ANSWERED_MAX:
            self.answer(request.id, "refused", reason)
        self.lines[inbox] = self.lines.get(inbox, 0) + 1
        if self.lines[inbox] <= LINES_PER_INBOX:
            times = f" ({count} times)" if count > 1 else ""
            whose = f" of {box}" if box else ""
            print(f"ledge-platform: refused a request{whose} in inbox {inbox[:8]}: {reason}{times}", file=sys.stderr)


def clean(text):
    """A text of a stranger, in one line and bounded."""
    if text is None:
        return None
    text = reports.printable(text)
    return text if len(text) <= REASON_LENGTH_MAX else text[:REASON_LENGTH_MAX - 3] + "..."
