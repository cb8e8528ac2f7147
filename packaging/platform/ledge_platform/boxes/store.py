"""What the platform knows of its boxes, in one file that is replaced as a whole.

One file, because one step changes several things: a box becomes a member, and its invitation counts one box fewer. A
run that is killed leaves the state before or after that step, and never half of it.

    boxes.json    state of the `box` verbs; whoever can write here can make members
"""
import fcntl
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from .. import files, moments
from ..errors import Failure

FORMAT = 1
MEMBER, REVOKED = "member", "revoked"
REFUSALS_MAX = 200
REFUSALS_PER_INBOX_MAX = 20


@dataclass
class Invitation:
    """A join file, known by the inbox that it names."""

    name: str  # of the file: the box, or the batch
    inbox: str
    public: str  # the public half of its secret, in base64
    file: str  # SHA-256 of the whole file
    made: str
    expires: str
    count: int = 1
    boxes: list | None = None  # the names that it is for; None for a batch that is approved by hand
    fleet: str | None = None
    group: str | None = None
    taken: dict = field(default_factory=dict)  # which key each box came with
    metrics: str | None = None  # HOST:PORT at which Prometheus reaches the box

    @property
    def is_batch(self):
        return self.boxes != [self.name]

    def is_used_up(self):
        return len(self.taken) >= self.count

    def is_expired(self, now):
        return self.expires <= moments.text(now)

    def is_open(self, now):
        return not self.is_used_up() and not self.is_expired(now)

    def expected(self):
        """The names of boxes that have not come."""
        return [box for box in self.boxes or () if box not in self.taken]


@dataclass
class Certificate:
    """A certificate that a box got, without its content, which is in the folder of the authority."""

    serial: str
    id: str  # of its key
    inbox: str  # where requests go that are signed by this key
    issued: str
    until: str


@dataclass
class Member:
    name: str
    joined: str
    certificates: list  # the last one is the newest
    invitation: str | None = None
    fleet: str | None = None
    group: str | None = None
    audit_key: str | None = None
    ledge: str | None = None
    state: str = MEMBER
    since: str | None = None  # when it was revoked
    note: str | None = None
    metrics: str | None = None  # HOST:PORT at which Prometheus reaches it

    @property
    def newest(self):
        return self.certificates[-1]

    def certificate(self, serial):
        return next((known for known in self.certificates if known.serial == serial), None)

    def inboxes(self, now):
        """Those of certificates that are in use, perhaps by a copy of the box. That of the newest is kept for good."""
        at = moments.text(now)
        return {known.inbox for known in self.certificates if known is self.newest or known.until > at}


@dataclass
class Waiting:
    """A request that a person has to approve."""

    id: str
    kind: str
    box: str
    sent_to: str
    inbox: str
    csr: str
    at: str
    reason: str
    signed_by: str  # the inbox of a join file, or the serial number of a certificate
    audit_key: str | None = None
    ledge: str | None = None
    approved: bool = False


@dataclass
class Refusal:
    """Equal refusals of one inbox are one entry."""

    at: str
    inbox: str
    reason: str
    box: str | None = None
    count: int = 1


@dataclass
class State:
    invitations: dict = field(default_factory=dict)  # by inbox
    members: dict = field(default_factory=dict)  # by name
    waiting: dict = field(default_factory=dict)  # by the id of the request
    forgotten: dict = field(default_factory=dict)  # when, by name
    refusals: list = field(default_factory=list)
    # Answers to requests that are not in an inbox any more: {id: reason of a refusal, or None for a certificate}.
    owed: dict = field(default_factory=dict)
    unpinned: list = field(default_factory=list)  # members whose audit key the audit store has yet to get
    held: str | None = None  # why nothing can be issued at present
    tidied: str | None = None

    def __post_init__(self):
        self.index()

    def index(self):
        """Who has which key, which inbox and which name: looked up for each request."""
        self.keys = {known.id: member.name for member in self.members.values() for known in member.certificates}
        self.inboxes = {known.inbox: member.name for member in self.members.values() for known in member.certificates}
        self.folded = {name.lower(): name for name in self.members}
        self.invited = {}
        for invitation in self.invitations.values():
            self.index_invitation(invitation)

    def index_invitation(self, invitation):
        for name in {invitation.name, *(invitation.boxes or ())}:
            self.invited.setdefault(name, []).append(invitation)

    def add_invitation(self, invitation):
        self.invitations[invitation.inbox] = invitation
        self.index_invitation(invitation)

    def remove_invitation(self, invitation):
        del self.invitations[invitation.inbox]
        for name in {invitation.name, *(invitation.boxes or ())}:
            self.invited[name].remove(invitation)

    def remove_member(self, member):
        del self.members[member.name]
        self.index()

    def add_member(self, member):
        self.members[member.name] = member
        self.folded[member.name.lower()] = member.name
        self.inboxes.update({known.inbox: member.name for known in member.certificates})
        self.keys.update({known.id: member.name for known in member.certificates})

    def add_certificate(self, member, certificate):
        member.certificates.append(certificate)
        self.keys[certificate.id] = self.inboxes[certificate.inbox] = member.name

    def remove_certificate(self, member, certificate):
        member.certificates.remove(certificate)
        if all(known.id != certificate.id for known in member.certificates):
            self.keys.pop(certificate.id, None)
        if all(known.inbox != certificate.inbox for known in member.certificates):
            self.inboxes.pop(certificate.inbox, None)

    def refuse(self, inbox, reason, box, now, count=1):
        at = moments.text(now)
        same = next((known for known in self.refusals
                     if (known.inbox, known.reason, known.box) == (inbox, reason, box)), None)
        if same:
            self.refusals.remove(same)
            self.refusals.append(Refusal(at, inbox, reason, box, same.count + count))
            return
        own = [known for known in self.refusals if known.inbox == inbox]
        # One inbox cannot push out what others have done.
        if len(own) >= REFUSALS_PER_INBOX_MAX:
            self.refusals.remove(own[0])
        self.refusals.append(Refusal(at, inbox, reason, box, count))
        del self.refusals[:-REFUSALS_MAX]

    def wanted_inboxes(self, now):
        """The inboxes that have a folder."""
        invited = {inbox for inbox, invitation in self.invitations.items()
                   if invitation.is_open(now) or self.is_watched(invitation, now)}
        return invited.union(*(member.inboxes(now) for member in self.members.values() if member.state == MEMBER))

    def is_watched(self, invitation, now):
        """True for a join file that a member used, until the file's end: who comes with a copy of it is refused and
        seen."""
        used = any(name in self.members and self.members[name].state == MEMBER for name in invitation.taken)
        return used and not invitation.is_expired(now)

    def invitations_of(self, name, now):
        """The open invitations by which a box of this name is expected."""
        return [known for known in self.invited.get(name, ())
                if known.is_open(now) and name in (known.boxes or ()) and name not in known.taken]

    def to_json(self):
        return {
            "format": FORMAT,
            "invitations": [vars(known) for known in self.invitations.values()],
            "members": [asdict(known) for known in self.members.values()],
            "waiting": [vars(known) for known in self.waiting.values()],
            "refusals": [vars(known) for known in self.refusals],
            "forgotten": self.forgotten, "owed": self.owed, "unpinned": self.unpinned, "held": self.held,
            "tidied": self.tidied,
        }

    @classmethod
    def of_json(cls, found):
        if found["format"] != FORMAT:
            raise ValueError(f"it has format {found['format']}, and {FORMAT} is known")
        members = [Member(**{**known, "certificates": [Certificate(**one) for one in known["certificates"]]})
                   for known in found["members"]]
        return cls(
            {known["inbox"]: Invitation(**known) for known in found["invitations"]},
            {member.name: member for member in members},
            {known["id"]: Waiting(**known) for known in found["waiting"]},
            found["forgotten"], [Refusal(**known) for known in found["refusals"]],
            found["owed"], found["unpinned"], found["held"], found["tidied"])


class Store:
    def __init__(self, folder):
        self.folder, self.file = folder, folder / "boxes.json"

    @contextmanager
    def locked(self):
        """One run at a time: the timer and a person may meet."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(self):
        try:
            return State.of_json(json.loads(self.file.read_bytes()))
        except FileNotFoundError:
            return State()
        except OSError:
            raise
        except Exception as error:  # whatever is not as it was written
            raise Failure(
                f"{self.file} cannot be read ({type(error).__name__}: {error}): restore it from a backup") from None

    def save(self, state):
        files.write(self.file, json.dumps(state.to_json(), separators=(",", ":")).encode() + b"\n", 0o600)
