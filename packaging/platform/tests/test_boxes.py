"""`ledge-platform box`: boxes join, renew and leave, and nobody gets the certificate of another one."""
import contextlib
import json
import os
import random
import secrets
import socket
import sys
import unittest
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from joining import Box, Platform, age, csr_of, fill, id_of, new_key, verified
from support import HERE, Verbs

from ledge_platform import moments, release
from ledge_platform.boxes import dsse
from ledge_platform.boxes.requests import LONGEST
from ledge_platform.boxes.store import Store
from ledge_platform.errors import Failure

DAY = 86_400


class Joining(Verbs):
    def setUp(self):
        super().setUp()
        self.platform = Platform(self.folder)
        self.layout = self.platform.layout

    def box(self, action, *words, status=0):
        found, text = self.run_verb("box", action, "--root", self.folder, *words)
        self.assertEqual(found, status, text)
        return text

    def refused(self, says, action, *words):
        self.failed(says, "box", action, "--root", self.folder, *words)

    def invite(self, *words):
        return self.box("add", "--out", self.folder, *words)

    def invited(self, name, *words):
        self.invite(name, *words)
        return Box(self.platform, self.folder / f"{name}.join")

    def member(self, name):
        box = self.invited(name)
        box.ask()
        self.box("answer")
        self.assertEqual(box.take(), "issued")
        return box

    @property
    def state(self):
        return Store(self.layout.boxes).load()

    def listed(self):
        return json.loads(self.box("list", "--json"))

    def row(self, name):
        found = [row for row in self.listed()["boxes"] if row["name"] == name]
        self.assertEqual(len(found), 1, found)
        return found[0]

    def reasons(self):
        return [refusal["reason"] for refusal in self.listed()["refusals"]]


class Ways(Joining):
    def test_a_box_joins_by_its_file_and_renews(self):
        text = self.invite("shop-7", "--fleet", "night", "--group", "north")
        path = self.folder / "shop-7.join"
        self.assertIn(str(path), text)
        self.assertRegex(text, r"fingerprint of example.*: [0-9a-f]{64}\n")
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        box = Box(self.platform, path)
        self.assertEqual([box.invitation[key] for key in ("fleet", "group", "settings")], ["night", "north", None])
        self.assertEqual(self.row("shop-7")["state"], "expected")
        self.assertEqual(box.ask(), 201)
        self.assertIn("joined: shop-7", self.box("answer"))
        self.assertEqual(box.take(), "issued")
        self.assertEqual((self.row("shop-7")["state"], self.row("shop-7")["fleet"]), ("member", "night"))
        self.assertIn(box.audit_key, self.done("audit", "keys", "--state", self.layout.audit_state))
        first = box.serial
        with self.at(60 * DAY):
            self.assertEqual(box.ask(), 201)
            self.assertIn("renewed: shop-7", self.box("answer"))
            self.assertEqual(box.take(), "issued")
        self.assertNotEqual(box.serial, first)
        self.assertEqual(self.platform.waiting_files(), [])
        self.assertIn(box.own, [path.name for path in self.layout.requests.iterdir()])
        self.assertEqual(self.layout.requests.joinpath(box.own).stat().st_mode & 0o777, 0o770)

    def test_the_same_request_gets_the_same_answer(self):
        box = self.invited("shop-7")
        request = box.join_request()
        self.platform.put(box, request)
        self.box("answer")
        first = self.platform.get(box.id)
        for inbox in (box.invitation["inbox"], box.own):
            self.layout.requests.joinpath(inbox).mkdir(exist_ok=True)
            self.platform.put(box, request, inbox)
            self.box("answer")
            self.assertEqual(self.platform.get(box.id), first)
        self.assertEqual(len(list((self.layout.ca / "issued").iterdir())), 2)

    def test_boxes_of_a_batch_are_approved_by_hand(self):
        self.invite("--batch", "shops", "--count", 2)
        boxes = [Box(self.platform, self.folder / "shops.join", f"shop-{number}") for number in range(4)]
        for box in boxes:
            box.ask()
        self.assertIn("wait for approval", self.box("answer"))
        self.assertEqual([box.take() for box in boxes], ["waiting"] * 4)
        self.assertEqual(self.row("shop-1")["state"], "waiting")
        self.box("reject", "shop-3")
        self.assertIn("joined: shop-1", self.box("approve", "shop-1"))
        self.box("approve", "--all")
        found = [box.take() for box in boxes]
        self.assertEqual((found[1], found[3]), ("issued", "refused"))
        self.assertEqual(sorted(found), ["issued", "issued", "refused", "refused"])
        self.assertIn("is used up", " ".join(self.reasons()))
        self.refused("no request of shop-9 waits", "approve", "shop-9")
        self.refused("name a box, or give --all", "approve")

    def test_two_requests_for_one_name_are_told_apart_by_their_keys(self):
        self.invite("--batch", "shops", "--count", 2)
        boxes = [Box(self.platform, self.folder / "shops.join", "shop-1") for _ in range(2)]
        for box in boxes:
            box.ask()
        self.box("answer")
        self.refused("choose one with --key", "approve", "shop-1")
        self.box("approve", "shop-1", "--key", boxes[1].id[:8])
        self.assertEqual([box.take() for box in boxes], ["waiting", "issued"])
        self.box("approve", "shop-1")
        self.assertEqual(boxes[0].take(), "refused")

    def test_boxes_of_a_list_join_at_once(self):
        names = self.folder / "names"
        names.write_text("# shops\nshop-1\nshop-2\n\n")
        self.invite("--batch", "shops", "--names", names)
        boxes = [Box(self.platform, self.folder / "shops.join", f"shop-{number}") for number in (1, 2, 3)]
        for box in boxes:
            box.ask()
        self.box("answer")
        self.assertEqual([box.take() for box in boxes], ["issued", "issued", "refused"])

    def test_a_revoked_box_and_a_forgotten_one(self):
        first, second = self.member("shop-1"), self.member("shop-2")
        self.assertIn("1 certificates are revoked", self.box("revoke", "shop-1"))
        self.assertEqual(first.ask(), 404)
        self.assertEqual(self.row("shop-1")["state"], "revoked")
        self.refused("is revoked", "add", "shop-1", "--out", self.folder)
        self.refused("is a member", "add", "shop-2", "--again", "--out", self.folder)
        self.assertIn("its audit log stays", self.box("forget", "shop-2"))
        self.assertEqual(second.ask(), 404)
        self.box("forget", "shop-1")
        self.assertEqual(self.listed()["boxes"], [])
        states = {issued.name: issued.state for issued in self.platform.authority.all()}
        self.assertEqual((states["shop-1"], states["shop-2"]), ("revoked", "revoked"))
        self.member("shop-1")
        self.refused("is no box of this platform", "forget", "shop-9")
        self.refused("is no member", "revoke", "shop-9")

    def test_boxes_of_a_table(self):
        table = self.folder / "boxes.csv"
        table.write_text("name,fleet,group\nshop-1,day,\nshop-2,,north\n")
        settings = self.folder / "night.toml"
        settings.write_text("[serving]\nmax_queue_size = 10\n")
        text = self.invite("--csv", table, "--fleet", "night", "--settings", settings)
        self.assertEqual(text.count("is good until"), 2)
        found = [Box(self.platform, self.folder / f"shop-{number}.join").invitation for number in (1, 2)]
        self.assertEqual([(one["fleet"], one["group"]) for one in found], [("day", None), ("night", "north")])
        self.assertEqual(found[0]["settings"], "[serving]\nmax_queue_size = 10\n")
        settings.write_text('[updates]\nrepository = "https://elsewhere"\n')
        self.refused("sets updates.repository", "add", "shop-3", "--settings", settings, "--out", self.folder)
        for content, says in (
                ("shop-1\n", "names the columns"), ("name,fleet\nshop-4\n", "fields"), ("name\n,\n", "fields"),
                ("name\nshop-1\n", "has an invitation until"), ("name\na/b\n", "no dot in front"),
                ("name\nPlatform\n", "belongs to the platform"), ("name\nshop-5\nSHOP-5\n", "named twice")):
            table.write_text(content)
            self.refused(says, "add", "--csv", table, "--out", self.folder)
        self.assertEqual(len(self.state.invitations), 2)

    def test_another_invitation_replaces_the_first_one(self):
        older = self.invited("shop-7")
        self.refused("--again replaces it", "add", "shop-7", "--out", self.folder)
        newer = self.invited("shop-7", "--again")
        older.ask()
        self.box("answer")
        self.assertEqual((older.take(), older.ask()), ("refused", 404))
        newer.ask()
        self.box("answer")
        self.assertEqual(newer.take(), "issued")


class Attacks(Joining):
    """Each is refused, says so in `box list`, and leaves nothing behind."""

    def denied(self, says, box, content=None, inbox=None, id_=None, answered=True):
        """Asserts that a request is refused."""
        issued = len(list((self.layout.ca / "issued").iterdir()))
        self.platform.put(box, box.join_request() if content is None else content, inbox, id_)
        self.assertIn(says, self.box("answer"))
        self.assertTrue(any(says in reason for reason in self.reasons()), self.reasons())
        self.assertEqual(len(list((self.layout.ca / "issued").iterdir())), issued)
        self.assertEqual(self.platform.waiting_files(), [])
        if answered:
            self.assertEqual(self.platform.get(id_ or box.id)["state"], "refused")
        else:
            self.assertIsNone(self.platform.get(id_ or box.id))

    def test_a_join_file_is_worth_one_box(self):
        """Of two that have it, such as its owner and a thief, one joins; in one run or in two."""
        first = self.invited("shop-7")
        thief = Box(self.platform, self.folder / "shop-7.join")
        first.ask(), thief.ask()
        self.assertIn("the join file shop-7 was used before", self.box("answer"))
        self.assertEqual(sorted([first.take(), thief.take()]), ["issued", "refused"])
        end = moments.text(moments.now())
        with self.at(DAY):
            self.denied(f"the join file shop-7 was used before: shop-7 joined by it on {end[:10]}",
                        Box(self.platform, self.folder / "shop-7.join"))
        # At its end its inbox is closed.
        late = Box(self.platform, self.folder / "shop-7.join")
        with self.at(15 * DAY):
            self.box("answer")
            self.assertEqual(late.ask(), 404)
            # A hostile web server makes the folder again.
            self.layout.requests.joinpath(late.address).mkdir()
            self.denied("the join file shop-7 has expired", late)
            self.assertFalse(self.layout.requests.joinpath(late.address).exists())

    def test_a_box_that_comes_with_a_used_join_file_is_seen(self):
        self.member("shop-7")
        self.assertFalse(self.row("shop-7")["needs_a_look"])
        with self.at(DAY):
            Box(self.platform, self.folder / "shop-7.join").ask()
            self.box("answer")
        with self.at(3 * DAY):
            row = self.row("shop-7")
            self.assertTrue(row["needs_a_look"])
            self.assertIn("a request with its join file came again 2 d ago and was refused", row["note"])
            self.assertIn("the join file shop-7 was used before: shop-7 joined by it", self.box("list"))
        with self.at(9 * DAY):
            self.assertFalse(self.row("shop-7")["needs_a_look"], "a week later nobody has to look any more")
        # A box that lost its answer is none of these.
        lost = self.invited("shop-8")
        for _ in range(2):
            lost.ask()
            self.box("answer")
            self.assertEqual(self.platform.get(lost.id)["state"], "issued")
        self.assertFalse(self.row("shop-8")["needs_a_look"])
        # Of a revoked box nobody waits for anything.
        self.box("revoke", "shop-7")
        self.box("answer")
        self.assertEqual(Box(self.platform, self.folder / "shop-7.join").ask(), 404)

    def test_a_join_file_that_was_changed_is_found_by_the_box_and_by_the_platform(self):
        box = self.invited("shop-7")
        envelope = json.loads(box.content)
        seed = 20261202
        chance = random.Random(seed)
        for _ in range(50):
            body = bytearray(dsse.decode(envelope["payload"], "payload"))
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            with self.assertRaises(Exception, msg=f"seed {seed}"):
                verified(changed(box.content, payload=dsse.encode(bytes(body))))
        # Nobody but the platform can sign other settings: a box has a client certificate of the same authority.
        member = self.member("shop-1")
        payload = {**box.invitation, "settings": "[updates]\nmax_bytes_per_s = 1\n"}
        forged = dsse.seal(dsse.JOIN_FILE, json.dumps(payload).encode(),
                           lambda signed: member.key.sign(signed, ec.ECDSA(hashes.SHA256())),
                           keyid="platform", certificate=member.certificate.decode())
        with self.assertRaisesRegex(Failure, "not signed by the platform"):
            verified(forged)
        # A box that did not look: its request is over another file.
        box.content = forged
        self.denied("was changed after it was made", box)

    def test_a_join_file_ends(self):
        box = self.invited("shop-7", "--valid", "2d")
        with self.at(3 * DAY):
            self.assertEqual(self.row("shop-7")["state"], "expired")
            self.assertIn("never came", self.row("shop-7")["note"])
            self.denied("has expired on", box)
            self.assertEqual(list(self.layout.requests.iterdir()), [])
            self.invited("shop-7")
        self.assertEqual(box.ask(), 404)

    def test_a_request_for_another_name(self):
        box, other = self.invited("shop-7"), self.member("shop-1")
        for name, says in (("shop-8", "is not for shop-8"), ("shop-1", "is a member already"),
                           ("SHOP-1", "shop-1 is a member already")):
            box.name, box.pending = name, new_key()
            self.denied(says, box)
        for name, says in (
                ("platform", "belongs to the platform"), ("Platform", "belongs"), ("a/b", "no dot"), ("../x", "no dot"),
                ("", "no dot"), ("x" * 65, "64 characters"), ("a\x1b[2Jb", "no dot"), ("+", "no dot"), ("#", "no dot"),
                ("shop-8", "is for shop-7, and not for shop-8")):
            box.pending = new_key()
            self.denied(says, box, box.join_request(box=name, csr=csr_of("shop-7", box.pending)), answered=False)
        self.assertEqual(other.ask(), 201)

    def test_a_batch_has_its_count(self):
        names = self.folder / "names"
        names.write_text("a\nb\nc\n")
        self.invite("--batch", "shops", "--names", names, "--count", 2)
        boxes = [Box(self.platform, self.folder / "shops.join", name) for name in ("a", "b", "c")]
        for box in boxes:
            box.ask()
        self.box("answer")
        self.assertEqual(sorted(box.take() for box in boxes), ["issued", "issued", "refused"])
        self.assertIn("the join file shops is used up", self.reasons())
        self.assertEqual(len(self.state.members), 2)

    def test_a_batch_for_approval_does_not_fill_the_list(self):
        self.invite("--batch", "shops", "--count", 2)
        for number in range(30):
            Box(self.platform, self.folder / "shops.join", f"shop-{number}").ask()
        for _ in range(2):
            self.box("answer")
        self.assertEqual(len(self.state.waiting), 20)
        self.invited("shop-99")
        self.denied("has an invitation of its own", Box(self.platform, self.folder / "shops.join", "shop-99"))

    def test_the_name_of_a_request_is_that_of_its_key(self):
        box, other = self.invited("shop-7"), self.member("shop-1")
        answer = self.platform.get(other.id)
        self.denied("under the name of another key", box, id_="0" * 64, answered=False)
        # The name of another box's request: its answer stays.
        self.platform.put(box, box.join_request(), id_=other.id)
        self.platform.put(box, b"not JSON", id_=other.id)
        self.box("answer")
        self.assertEqual(self.platform.get(other.id), answer)
        # A copy of another box's request, in an inbox of one's own.
        copied = other.copy()
        self.platform.put(copied, box.join_request(box="shop-1", csr=csr_of("shop-1", other.key)), box.address)
        self.box("answer")
        self.assertEqual(self.platform.get(other.id), answer)
        box.pending = other.key
        self.platform.put(box, box.join_request())
        self.assertIn("certified before, for shop-1", self.box("answer"))
        self.assertEqual(self.platform.get(other.id), answer)

    def test_signatures_of_others(self):
        box, other = self.invited("shop-7"), self.invited("shop-8")
        self.denied("not signed by the secret", box, box.join_request(secrets.token_bytes(32)))
        box.pending = new_key()
        self.denied("not signed by the secret", box, box.join_request(dsse.decode(other.invitation["secret"], "")))
        box.pending = new_key()
        self.denied("not signed by the secret", box, box.join_request(keyid=other.address))
        # In the inbox of the other one.
        box.pending = new_key()
        self.denied("not signed by the secret", box, box.join_request(), other.address)
        box.pending = new_key()
        self.denied("chose is another one's", box, box.join_request(inbox=other.address))
        box.pending = new_key()
        self.denied("chose is another one's", box, box.join_request(inbox=self.member("shop-1").address))

    def test_a_renewal_that_was_sent_before(self):
        box = self.member("shop-7")
        box.ask()
        request, id_ = box.renew_request(), box.id
        self.box("answer")
        box.take()
        first = self.platform.get(id_)
        for _ in range(2):  # the same answer, and nothing else
            self.platform.put(box, request, id_=id_)
            self.box("answer")
            self.assertEqual(self.platform.get(id_), first)
        box.ask()
        self.box("answer")
        box.take()
        newest = box.serial
        self.platform.put(box, request, id_=id_)
        self.assertIn("a copy of an older one", self.box("answer"))
        self.assertEqual((self.platform.get(id_), self.state.members["shop-7"].newest.serial), (first, newest))
        self.assertEqual(self.state.waiting, {})

    def test_two_boxes_with_one_identity(self):
        """Copies of one disk: the first one renews, the second one waits for a person, whichever is the real one."""
        box = self.member("shop-7")
        clone = box.copy()
        box.ask()
        self.box("answer")
        box.take()
        self.assertEqual(clone.ask(), 201)
        self.assertIn("wait for approval: shop-7", self.box("answer"))
        self.assertEqual(clone.take(), "waiting")
        self.assertIn("two boxes have this identity", self.row("shop-7")["note"])
        # The person finds that the clone is the real one.
        self.assertIn("renewed: shop-7", self.box("approve", "shop-7"))
        self.assertEqual(clone.take(), "issued")
        self.assertIsNone(self.row("shop-7")["note"])
        box.ask()
        self.box("answer")
        self.assertEqual(box.take(), "waiting")
        self.box("reject", "shop-7")
        self.assertEqual(box.take(), "refused")
        clone.ask()
        self.box("answer")
        self.assertEqual(clone.take(), "issued")

    def test_renewals_of_others(self):
        box, other = self.member("shop-7"), self.member("shop-1")
        box.pending, other.pending = new_key(), new_key()
        self.denied("not signed by the key of the certificate", box, box.renew_request(other.key))
        box.pending = new_key()
        self.denied("names no certificate of shop-7", box, box.renew_request(other.key, other.serial))
        box.pending = new_key()
        self.denied("came to another inbox", box, box.renew_request(), other.address)
        other.pending = new_key()
        self.denied("names no certificate of shop-7", other,
                    other.renew_request(box="shop-7", csr=csr_of("shop-7", other.pending)), box.address)
        box.pending = new_key()
        self.denied("chose is another one's", box, box.renew_request(inbox=other.address))
        box.pending = new_key()
        self.denied("its keyid is", box, box.renew_request(keyid="../issued/" + box.serial), answered=False)

    def test_a_revoked_or_forgotten_box_cannot_renew(self):
        for verb, says in (("revoke", "is revoked"), ("forget", "was forgotten")):
            box = self.member("shop-7")
            self.box(verb, "shop-7")
            box.pending = new_key()
            self.layout.requests.joinpath(box.address).mkdir()  # by a hostile web server
            self.denied(says, box, box.renew_request())
            self.assertFalse(self.layout.requests.joinpath(box.address).exists())
            if verb == "revoke":
                self.box("forget", "shop-7")
                for path in self.folder.glob("*.join"):
                    path.unlink()

    def test_a_certificate_that_the_authority_revoked_is_not_renewed(self):
        box = self.member("shop-7")
        clone = box.copy()
        box.ask()
        self.box("answer")
        box.take()
        clone.ask()
        self.box("answer")
        self.done("ca", "revoke", self.layout.ca, "shop-7")
        self.box("approve", "shop-7")
        self.assertEqual(clone.take(), "refused")
        box.pending = new_key()
        self.denied("is revoked", box, box.renew_request())

    def test_a_revoked_box_with_a_request_in_its_inbox(self):
        box = self.member("shop-7")
        box.ask()
        self.box("revoke", "shop-7")
        self.assertIn("is revoked", self.box("answer"))
        self.assertEqual(list(self.layout.requests.iterdir()), [])

    def test_a_box_of_a_batch_that_was_forgotten_does_not_come_back_by_its_file(self):
        self.invite("--batch", "shops", "--count", 5)
        box = Box(self.platform, self.folder / "shops.join", "shop-1")
        box.ask()
        self.box("answer")
        self.box("approve", "--all")
        box.take()
        self.box("forget", "shop-1")
        box.pending = new_key()
        self.denied("was forgotten since", box, inbox=box.invitation["inbox"])

    def test_files_that_are_no_requests(self):
        box = self.invited("shop-7")
        good = box.join_request()
        deep = b"[" * 15_000
        for content, says in (
                (b"x" * 10_000_000, f"larger than {LONGEST} bytes"), (b"", "is no JSON"),
                (b"\xff\xfe\x00", "is no JSON"), (deep, "is no JSON"), (b'{"a":' * 3_000, "is no JSON"),
                (b"[]", "no JSON object"), (b"null", "no JSON object"),
                (b'{"payloadType": NaN}', "is no JSON"), (b'{"a": 1, "a": 2}', "is no JSON"),
                (good.replace(b"join-request", b"join-file"), "has the type"),
                (b"1" * 10_000, "is no JSON"), (changed(good, signatures=[]), "one signature"),
                (changed(good, payload=7), "no base64"),
                (changed(good, payload=dsse.encode(deep[:10_000])), "its payload is no JSON"),
                (box.join_request(version=2), "version 2"), (box.join_request(kind="admin"), "its kind is"),
                (box.join_request(csr=7), "its csr is no text"), (box.join_request(csr="\ud800"), "no Unicode text"),
                (box.join_request(csr="-----BEGIN CERTIFICATE REQUEST-----\n"), "PKCS #10"),
                (box.join_request(inbox="../" + "a" * 29), "its inbox is"),
                (box.join_request(box=["shop-7"]), "its box is no text")):
            self.denied(says, box, content, answered=False)
        padded = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"x" * 6_000)
        padded = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(padded, False)
        padded = padded.sign(box.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
        self.denied("more than 4096 bytes", box, box.join_request(csr=padded), answered=False)
        weak = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop-7")])
        csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(weak, hashes.SHA256())
        csr = csr.public_bytes(Encoding.PEM).decode()
        self.denied("no P-256 key", box, box.join_request(csr=csr), answered=False)
        box.ask()
        self.box("answer")
        self.assertEqual(box.take(), "issued")

    def test_what_a_hostile_web_server_puts_into_the_folders(self):
        """Links, pipes, sockets, folders and odd names: none is followed, waited for, or in anybody's way."""
        box = self.invited("shop-7")
        inbox, secret = self.layout.requests / box.address, self.folder / "secret"
        secret.mkdir()
        (secret / "file").write_text("secret")
        (inbox / f"{'1' * 64}.json").symlink_to(secret / "file")
        (inbox / f"{'2' * 64}.json").symlink_to(secret)
        os.mkfifo(inbox / f"{'3' * 64}.json")
        (inbox / f"{'4' * 64}.json").mkdir()
        (inbox / f"{'4' * 64}.json" / "more").mkdir()
        (inbox / f"{'4' * 64}.json" / "link").symlink_to(secret)
        (inbox / "UPPER.json").write_text("{}")
        (inbox / "line\nbreak").write_text("{}")
        os.link(self.layout.config_file, inbox / f"{'5' * 64}.json")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as there:
            with contextlib.chdir(inbox):
                there.bind("s")
        os.rename(inbox / "s", inbox / f"{'6' * 64}.json")
        (self.layout.requests / ("a" * 32)).symlink_to(secret)
        (self.layout.requests / "other").mkdir()
        (self.layout.requests / "other" / "file").write_text("{}")
        (self.layout.requests / "plain").write_text("{}")
        unfinished = inbox / f"{box.id}.json.0000000001"
        unfinished.write_text("{")
        box.ask()
        text = self.box("answer")
        self.assertEqual(box.take(), "issued")
        self.assertIn("among the inboxes", text)
        self.assertEqual((secret / "file").read_text(), "secret")
        self.assertTrue(self.layout.config_file.exists())
        self.box("answer")
        self.assertEqual(self.platform.waiting_files(), [unfinished], "nginx may be writing it")
        age(unfinished, 7_200)
        self.box("answer")
        self.assertEqual({path.name for path in self.layout.requests.iterdir()}, {box.own, box.invitation["inbox"]})
        self.assertNotIn("\n", "".join(self.reasons()))

    def test_folders_too_deep_to_be_removed_in_one_way_or_for_want_of_rights(self):
        box = self.invited("shop-7")
        inbox = self.layout.requests / box.address
        with contextlib.chdir(inbox):
            for _ in range(2_000):
                os.mkdir("d")
                os.chdir("d")
        self.box("answer")
        self.assertEqual(list(inbox.iterdir()), [])
        (inbox / "foreign").write_text("{}")
        box.ask()
        unlink = os.unlink

        def denied(name, *arguments, **named):
            if name == "foreign":
                raise PermissionError(13, "Permission denied", name)
            return unlink(name, *arguments, **named)

        with mock.patch("os.unlink", denied):
            for _ in range(2):
                self.assertIn("'foreign' cannot be removed (Permission denied)", self.box("answer"))
        self.assertEqual(box.take(), "issued")

    def test_a_box_that_fills_its_inbox_keeps_nobody_waiting(self):
        others = [self.invited(f"shop-{number}") for number in range(5)]
        hostile = self.member("hostile")
        fill(self.layout.requests / hostile.address, 20_000)
        for box in others:
            box.ask()
        self.assertIn("more files than one inbox may have were removed", self.box("answer"))
        self.assertEqual([box.take() for box in others], ["issued"] * 5)
        self.assertEqual(self.platform.waiting_files(), [])
        refusals = self.listed()["refusals"]
        self.assertEqual(sum(refusal["count"] for refusal in refusals), 20_000)
        self.assertLess(len(list(self.layout.answers.iterdir())), 10)

    def test_a_box_that_renews_all_the_time_is_stopped(self):
        box = self.member("shop-7")
        for _ in range(12):
            box.ask()
            self.box("answer")
            box.take()
        self.assertEqual(box.take(), "refused")
        self.assertIn("12 certificates within a day", " ".join(self.reasons()))
        with self.at(2 * DAY):
            box.pending = box.key
            box.ask()
            self.box("answer")
            self.assertEqual(box.take(), "issued")

    def test_refusals_of_one_inbox_do_not_push_out_those_of_others(self):
        box, other = self.member("shop-7"), self.invited("shop-8")
        other.pending = new_key()
        self.platform.put(other, other.join_request(secrets.token_bytes(32)))
        self.box("answer")
        for number in range(300):
            self.platform.put(box, box.join_request(kind=f"x{number}"), id_=f"{number:064x}")
            if number % 15 == 14:
                self.box("answer")
        self.assertIn("it is not signed by the secret of the join file", self.reasons())
        self.assertLessEqual(len(self.state.refusals), 200)

    def test_mutations_of_a_good_request(self):
        """Whatever is changed: never a certificate for another key or name, never a traceback."""
        seed = int.from_bytes(os.urandom(4), "big")
        print(f"seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        box, other = self.invited("shop-7"), self.member("shop-1")
        other.pending = new_key()
        goods = [(box, box.join_request(), box.address), (other, other.renew_request(), other.address)]
        for _ in range(60):
            files = []
            for _ in range(10):
                who, good, inbox = chance.choice(goods)
                content = mutated(chance, good)
                if content != good:
                    id_ = f"{chance.randrange(2**256):064x}" if chance.random() < 0.3 else None
                    self.platform.put(who, content, chance.choice([inbox, box.address, other.address]), id_)
                    files.append(content)
            found, text = self.run_verb("box", "answer", "--root", self.folder)
            self.assertEqual(found, 0, f"seed {seed}: {text}")
            for issued in self.platform.authority.all():
                if issued.name != "platform":
                    found = issued.name, id_of(issued.certificate)
                    asked = {("shop-7", box.id), ("shop-1", other.id), ("shop-1", id_of(other.key))}
                    self.assertIn(found, asked, f"seed {seed}")
            if "shop-7" in self.state.members or self.state.members["shop-1"].newest.id == other.id:
                # A change that no reader sees, such as white space: the request was the good one. Begin again.
                for name in ("shop-7", "shop-1"):
                    with contextlib.suppress(AssertionError):
                        self.box("forget", name)
                box, other = self.invited("shop-7"), self.member("shop-1")
                other.pending = new_key()
                goods = [(box, box.join_request(), box.address), (other, other.renew_request(), other.address)]
                (self.layout.ca / "issued").rename(self.folder / f"issued-{chance.random()}")
                (self.layout.ca / "issued").mkdir()
                issued = x509.load_pem_x509_certificate(other.certificate)
                (self.layout.ca / "issued" / f"{other.serial}.pem").write_bytes(issued.public_bytes(Encoding.PEM))


def changed(content, **values):
    """A request with other values in its envelope."""
    return json.dumps({**json.loads(content), **values}).encode()


def mutated(chance, content):
    """A request with some bytes or values changed, inside or outside of what is signed."""
    kind = chance.randrange(4)
    if kind == 0:
        other = bytearray(content)
        for _ in range(chance.randrange(1, 4)):
            other[chance.randrange(len(other))] = chance.randrange(256)
        return bytes(other)
    if kind == 1:
        start = chance.randrange(len(content))
        return content[:start] + content[start + chance.randrange(1, 50):]
    envelope = json.loads(content)
    body = json.loads(dsse.decode(envelope["payload"], ""))
    values = [None, 0, -1, 1e400, True, [], {}, "", "shop-1", "shop-7", "platform", "a" * 32, "0" * 64, "\ud800",
              "\x00", "../..", 2**70]
    table = chance.choice([body, envelope, envelope["signatures"][0]]) if kind == 2 else body
    table[chance.choice(list(table))] = chance.choice(values)
    if table is not envelope:
        envelope["payload"] = dsse.encode(json.dumps(body).encode())
    return json.dumps(envelope).encode()


class Settings(unittest.TestCase):
    def test_the_closed_set_is_that_of_boxes(self):
        source = (HERE.parents[2] / "src/updates/configuration.rs").read_text()
        listed = source.partition("SETTABLE_KEYS")[2].partition("= [")[2].partition("];")[0]
        listed = [word.strip().strip('"') for word in listed.split(",") if word.strip()]
        self.assertEqual(listed, list(release.SETTABLE))
        for text, foreign in (
                ({"mqtt": {"bindings": []}}, []), ({"quota": 7}, ["quota"]),
                ({"serving.max_queue_size": 7}, ["serving.max_queue_size"]),
                ({"serving": {"a": 1, "max_queue_size": 1}}, ["serving.a"]),
                ({"mqtt": {"bindings_of_others": 1}}, ["mqtt.bindings_of_others"])):
            self.assertEqual(release.unsettable(text), foreign)


if __name__ == "__main__":
    unittest.main()
