"""`ledge-platform box`: boxes join, renew and leave, and nobody gets the certificate of another one."""
import json
import unittest

from joining import Box, Platform
from support import Verbs

from ledge_platform.boxes.store import Store

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
        self.assertEqual((box.invitation["fleet"], box.invitation["group"], box.invitation["settings"]), ("night", "north", None))
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
        self.assertEqual(self.layout.requests.joinpath(box.own).stat().st_mode & 0o7777, 0o2770)

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
        self.assertEqual((found[1], found[3], sorted(found)), ("issued", "refused", ["issued", "issued", "refused", "refused"]))
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
        for content, says in (("shop-1\n", "names the columns"), ("name,fleet\nshop-4\n", "fields"), ("name\n,\n", "fields"),
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


if __name__ == "__main__":
    unittest.main()
