"""Join files: one for a box, or one for a batch of boxes."""
import csv
import hashlib
import io
import json
import secrets
import sys
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from .. import files, keys, moments, names
from ..certificates.authority import Authority
from ..errors import Failure
from . import answering, dsse, monitoring, requests
from .inboxes import Inboxes
from .store import REVOKED, Invitation, Store

VALID_S = 14 * 86_400
SUFFIX = ".join"
KEYID = "platform"
BATCH_MAX = 10_000


@dataclass(frozen=True)
class Wanted:
    """A join file that is asked for."""

    name: str
    boxes: tuple | None
    count: int = 1
    fleet: str | None = None
    group: str | None = None
    metrics: str | None = None


COLUMNS = ("name", "fleet", "group", "metrics")


def of_csv(path):
    """[(name, fleet, group, metrics)] by the names in its first line."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Failure(f"{path} is not in UTF-8") from None
    rows = csv.DictReader(io.StringIO(content), skipinitialspace=True)
    columns = rows.fieldnames or []
    if "name" not in columns or set(columns) - set(COLUMNS) or len(set(columns)) < len(columns):
        raise Failure(f"{path}: its first line names the columns: name, and if wanted fleet, group and metrics")
    found = []
    for row in rows:
        if None in row or None in row.values():
            raise Failure(f"{path}, line {rows.line_num}: it does not have {len(columns)} fields")
        found.append(tuple((row.get(column) or "").strip() or None for column in COLUMNS))
        if found[-1][0] is None:
            raise Failure(f"{path}, line {rows.line_num}: the name is missing")
    return found


def of_list(path):
    """The names in a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise Failure(f"{path} is not in UTF-8") from None
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def invite(layout, wanted, valid_s, settings, folder, again, packages=False):
    """Makes join files. Returns [(path, end)]; either all are made or none."""
    now = moments.now()
    authority = Authority.open(layout.ca)
    reason = answering.unsound_clock(authority.root, now)
    if reason:
        raise Failure(reason)
    signer = Signer(layout, now, moments.after(now, valid_s))
    root_text = keys.content_of(layout.repository / "root.json").decode()
    settings = settings and settings.read_text(encoding="utf-8")
    store = Store(layout.boxes)
    if any(one.metrics for one in wanted) and not layout.prometheus.is_dir():
        raise Failure(f"{layout.prometheus} is missing: run `ledge-platform init` again, which makes what Prometheus needs")
    with layout.as_owner(), store.locked():
        state = store.load()
        refuse_taken(state, wanted, now, again)
        refuse_metrics(layout, state, wanted)
        made = {}
        for one in wanted:
            for older in older_invitations(state, one):
                state.remove_invitation(older)
            for box in one.boxes or (one.name,):
                state.forgotten.pop(box, None)
            seed, inbox = Ed25519PrivateKey.generate(), secrets.token_hex(16)
            expires = moments.text(moments.after(now, valid_s))
            raw = seed.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            public = seed.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            content = signer.sealed({
                "version": 1, "platform": layout.name, "made": moments.text(now), "expires": expires,
                "box": one.name if one.boxes == (one.name,) else None, "inbox": inbox, "secret": dsse.encode(raw),
                "join": layout.join_url, "updates": layout.updates_url, "broker": layout.broker_url,
                "audit": layout.audit_url, "region": layout.region,
                "ca": authority.root.public_bytes(Encoding.PEM).decode(), "root": root_text,
                "fleet": one.fleet, "group": one.group, "settings": settings, "packages": packages,
                "metrics": one.metrics,
            })
            boxes = None if one.boxes is None else list(one.boxes)
            state.add_invitation(Invitation(
                one.name, inbox, dsse.encode(public), hashlib.sha256(content).hexdigest(), moments.text(now),
                expires, one.count, boxes, one.fleet, one.group, metrics=one.metrics))
            made[folder / f"{one.name}{SUFFIX}"] = content, expires
        store.save(state)
        for inbox in state.wanted_inboxes(now):
            Inboxes(layout.requests).make(inbox)
    # Only now, so that no file is handed out whose invitation is not on the disk.
    files.write_all({path: content for path, (content, _) in made.items()}, 0o600)
    return [(path, expires) for path, (_, expires) in made.items()]


class Signer:
    """The platform's client certificate and its key."""

    def __init__(self, layout, now, until):
        self.chain = keys.content_of(layout.platform_certificate).decode()
        self.key = keys.load_private(layout.platform_key, "platform")
        leaf = x509.load_pem_x509_certificates(self.chain.encode())[0]
        if not isinstance(self.key, ec.EllipticCurvePrivateKey) or leaf.public_key() != self.key.public_key():
            raise Failure(f"{layout.platform_key} is not the key of {layout.platform_certificate}")
        ends = moments.text(leaf.not_valid_after_utc)
        if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
            raise Failure(f"{layout.platform_certificate} was good until {ends}: `ledge-platform certificates refresh` "
                          "issues another one")
        if leaf.not_valid_after_utc < until:
            print(f"ledge-platform: boxes take these files only until {ends}, when the platform's certificate ends",
                  file=sys.stderr)

    def sealed(self, payload, kind=dsse.JOIN_FILE):
        body = json.dumps(payload, indent=1).encode()
        return dsse.seal(kind, body, lambda signed: self.key.sign(signed, ec.ECDSA(hashes.SHA256())),
                         keyid=KEYID, certificate=self.chain)


def older_invitations(state, wanted):
    """The invitations that a new one for the same boxes replaces."""
    found = [known for name in (wanted.name, *(wanted.boxes or ())) for known in state.invited.get(name, ())
             if known.name == wanted.name or not known.is_batch]
    return [known for index, known in enumerate(found) if known not in found[:index]]


def refuse_taken(state, wanted, now, again):
    """Says all that is wrong with what is asked for."""
    wrong, seen = [], set()
    for one in wanted:
        names.name(one.name)
        for label, value in (("fleet", one.fleet), ("group", one.group)):
            if value is not None:
                names.name(value, label)
        if not 1 <= one.count <= BATCH_MAX:
            raise Failure(f"{one.name}: a batch has 1 to {BATCH_MAX} boxes")
        for box in one.boxes or ():
            requests.box_name(box)
            folded = box.lower()
            if folded in seen:
                wrong.append(f"{box} is named twice")
            seen.add(folded)
            member = state.members.get(state.folded.get(folded))
            if member:
                is_revoked = member.state == REVOKED
                what = "revoked" if is_revoked else "a member"
                wrong.append(f"{member.name} is {what} (`ledge-platform box forget` frees its name)")
            elif any(waiting.box == box for waiting in state.waiting.values()):
                wrong.append(f"{box} waits for `ledge-platform box approve`")
        if not again:
            wrong += [f"{known.name} has an invitation until {known.expires} (--again replaces it)"
                      for known in older_invitations(state, one) if known.is_open(now)]
        wrong += [f"{box} is in the list of the batch {known.name}" for box in one.boxes or ()
                  for known in state.invitations_of(box, now) if known.is_batch and known.name != one.name]
    if wrong:
        raise Failure("nothing is made: " + "; ".join(dict.fromkeys(wrong)))


def refuse_metrics(layout, state, wanted):
    """Two boxes at one address could be taken for one another."""
    seen = {}
    for one in wanted:
        if one.metrics is None:
            continue
        monitoring.refuse_host(layout, one.metrics)
        other = seen.setdefault(one.metrics, one.name)
        other = other if other != one.name else monitoring.taken(state, one.metrics, one.name)
        if other:
            raise Failure(f"nothing is made: {other} has the address {one.metrics} for metrics, too")


def fingerprint(layout):
    """What people compare on both sides."""
    return hashlib.sha256(Authority.open(layout.ca).root.public_bytes(Encoding.DER)).hexdigest()
