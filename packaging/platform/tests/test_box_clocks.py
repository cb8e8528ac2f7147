"""`ledge-platform box` over years, with wrong clocks, and killed at any point."""
import os
import shutil
import signal
import unittest

from joining import Box, new_key
from test_boxes import DAY, Joining

from ledge_platform import moments


class Clocks(Joining):
    def renew_authority(self):
        self.done("ca", "renew", self.layout.ca, "--keys", self.platform.stick)

    def test_twenty_boxes_renew_for_two_years(self):
        names = self.folder / "names"
        names.write_text("".join(f"shop-{number}\n" for number in range(20)))
        self.invite("--batch", "shops", "--names", names)
        boxes = [Box(self.platform, self.folder / "shops.join", f"shop-{number}") for number in range(20)]
        for box in boxes:
            box.ask()
        self.box("answer")
        self.assertEqual({box.take() for box in boxes}, {"issued"})
        renewals = 0
        for day in range(0, 730, 5):
            with self.at(day * DAY):
                now = moments.now()
                if day in (345, 690):
                    self.renew_authority()
                self.done("ca", "refresh", self.layout.ca)
                due = []
                for number, box in enumerate(boxes):
                    self.assertGreater(box.until, now, f"day {day}")
                    member = self.state.members[box.name].newest
                    issued, until = moments.parse(member.issued), moments.parse(member.until)
                    # One box is switched off for a month, four weeks before its certificate ends.
                    if now >= issued + (until - issued) * 2 / 3 and not (number == 7 and 60 <= day < 85):
                        box.ask()
                        due.append(box)
                self.box("answer")
                self.assertEqual({box.take() for box in due} - {"issued"}, set(), f"day {day}")
                renewals += len(due)
                self.assertGreater(self.platform.authority.certificate.not_valid_after_utc, now)
        with self.at(729 * DAY):
            listed = self.listed()
        self.assertEqual((len(listed["boxes"]), listed["refusals"], listed["held"]), (20, [], None))
        self.assertTrue(all(row["state"] == "member" and not row["needs_a_look"] for row in listed["boxes"]), listed)
        self.assertEqual(len(list((self.layout.ca / "issued").iterdir())), 1 + 20 + renewals)
        # What cannot be renewed any more is dropped: the state does not grow for ever.
        self.assertLess(max(len(member.certificates) for member in self.state.members.values()), 20)
        self.assertLess(len(list(self.layout.requests.iterdir())), 20 * 6)

    def test_an_issuing_authority_that_ended(self):
        box, new = self.member("shop-7"), self.invited("shop-8", "--valid", "500d")
        with self.at(400 * DAY):
            box.ask(), new.ask()
            text = self.box("answer", status=1)
            self.assertIn("2 requests wait: the issuing authority is good until", text)
            self.assertEqual((box.take(), new.take()), (None, None))
            self.assertIn("nothing is issued at present, and requests wait: the issuing authority", self.box("list"))
            self.assertIn("ended 310 d ago", self.row("shop-7")["note"])
        with self.at(401 * DAY):
            self.renew_authority()
            self.box("answer")
            self.assertEqual((box.take(), new.take()), ("issued", "issued"))
            self.assertNotIn("nothing is issued", self.box("list"))

    def test_certificates_end_with_the_issuing_authority(self):
        box = self.member("shop-7")
        with self.at(300 * DAY):
            box.ask()
            self.box("answer")
            self.assertEqual(box.take(), "issued")
            self.assertLessEqual(box.until, self.platform.authority.certificate.not_valid_after_utc)

    def test_an_approval_while_nothing_can_be_issued_counts_later(self):
        self.invite("--batch", "shops", "--count", 2, "--valid", "500d")
        box = Box(self.platform, self.folder / "shops.join", "shop-1")
        box.ask()
        with self.at(390 * DAY):
            self.box("answer", status=1)
            self.assertIsNone(box.take())
            self.renew_authority()
            self.box("answer")
            self.assertEqual(box.take(), "waiting")
        with self.at(800 * DAY):
            found, text = self.run_verb("box", "approve", "--root", self.folder, "shop-1")
            self.assertEqual(found, 1, text)
            self.renew_authority()
            self.box("answer")
            self.assertEqual(box.take(), "issued")

    def test_a_box_that_was_off(self):
        box = self.member("shop-7")
        with self.at(61 * DAY):
            box.ask()
            self.box("answer")
        with self.at(100 * DAY):  # before it read its answer
            self.box("answer")
            self.assertEqual(box.take(), "issued")
        with self.at(160 * DAY):
            self.assertIn("ended", self.row("shop-7")["note"] or "ended")
        with self.at(300 * DAY):
            self.assertIn("renews by itself", self.row("shop-7")["note"])
            box.ask()
            self.box("answer")
            self.assertEqual(box.take(), "issued")
        with self.at((365 + 365 + 40) * DAY):
            self.renew_authority()
            self.assertIn("cannot be renewed", self.row("shop-7")["note"])
            self.assertEqual(box.ask(), 201)
            self.assertIn("more than a year ago", self.box("answer"))
            self.assertEqual(box.take(), "refused")
            self.box("forget", "shop-7")
            self.platform.issue_platform()
            self.member("shop-7")

    def test_a_box_that_should_have_renewed_is_noted(self):
        self.member("shop-7")
        with self.at(70 * DAY):
            self.assertIsNone(self.row("shop-7")["note"])
        with self.at(79.5 * DAY):
            self.assertIn("has not renewed its certificate, which ends in 10 d", self.row("shop-7")["note"])

    def test_a_clock_of_1970_issues_nothing_and_removes_nothing(self):
        box, new = self.member("shop-7"), self.invited("shop-8")
        box.ask(), new.ask()
        with self.at(86_400 - moments.now().timestamp()):
            self.assertIn("before the certificate authority began", self.box("answer", status=1))
            self.refused("set the clock", "add", "shop-9", "--out", self.folder)
            self.assertIn("set the clock", self.box("list"))
        self.assertEqual(len(self.platform.waiting_files()), 2)
        self.box("answer")
        self.assertEqual((box.take(), new.take()), ("issued", "issued"))

    def test_what_is_old_is_removed(self):
        box, lost = self.member("shop-7"), self.invited("shop-8")
        lost.pending = new_key()
        self.platform.put(lost, lost.join_request(b"x" * 32))
        self.box("answer")
        self.invite("--batch", "shops", "--count", 1)
        waits = Box(self.platform, self.folder / "shops.join", "shop-1")
        waits.ask()
        self.box("answer")
        self.assertEqual((lost.take(), waits.take()), ("refused", "waiting"))
        with self.at(20 * DAY):
            self.box("answer")
            self.assertEqual(len(list(self.layout.requests.iterdir())), 1)
        with self.at(31 * DAY):
            self.box("answer")
            self.assertEqual((lost.take(), waits.take(), box.take()), (None, "refused", "issued"))
            self.assertEqual(self.state.waiting, {})


CALLS = ("replace", "unlink", "mkdir", "rmdir", "fsync")


class Kills(Joining):
    def killed(self, at, *words):
        """Runs a verb in a child that is killed before call number AT of those that change a disk. True if it was."""
        child = os.fork()
        if child == 0:
            calls = 0

            def hooked(function):
                def call(*arguments, **named):
                    nonlocal calls
                    calls += 1
                    if calls == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return function(*arguments, **named)
                return call

            for name in CALLS:
                setattr(os, name, hooked(getattr(os, name)))
            self.run_verb(*words, "--root", self.folder)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return os.WIFSIGNALED(status)

    def each_kill(self, *words):
        """Yields before each kill of a verb with the platform as it is now, until the verb comes to its end."""
        self.saved = self.folder.with_name(self.folder.name + "-saved")
        self.addCleanup(shutil.rmtree, self.saved, True)
        shutil.copytree(self.folder, self.saved, symlinks=True)
        at, was_killed = 0, True
        while was_killed:
            at += 1
            shutil.rmtree(self.folder)
            shutil.copytree(self.saved, self.folder, symlinks=True)
            was_killed = self.killed(at, *words)
            yield at
        self.assertGreater(at, 5, "the verb changes nothing")

    def check(self, boxes):
        """What holds at any time: what is answered is on the disk of the platform, and nobody is counted twice."""
        state = self.state
        for invitation in state.invitations.values():
            self.assertLessEqual(len(invitation.taken), invitation.count)
        for box in boxes:
            answer = self.platform.get(box.id)
            is_there = any(path.name == f"{box.id}.json" for path in self.platform.waiting_files())
            self.assertTrue(is_there or answer, f"{box.name} is neither answered nor there")
            if answer and answer["state"] == "issued":
                member = state.members[box.name]
                self.assertEqual(member.newest.id, box.id)
                file = self.layout.ca / "issued" / f"{member.newest.serial}.pem"
                self.assertTrue(answer["certificate"].encode().startswith(file.read_bytes()))

    def test_a_killed_answer_loses_and_doubles_nothing(self):
        renewing, joining = self.member("shop-1"), self.invited("shop-2")
        names = self.folder / "names"
        names.write_text("a\nb\n")
        self.invite("--batch", "shops", "--names", names, "--count", 1)
        rivals = [Box(self.platform, self.folder / "shops.join", name) for name in ("a", "b", "a")]
        self.invite("--batch", "others", "--count", 1)
        waiting = Box(self.platform, self.folder / "others.join", "c")
        boxes = [renewing, joining, waiting, *rivals]
        for box in boxes:
            box.ask()
        for at in self.each_kill("box", "answer"):
            with self.subTest(at=at):
                self.check(boxes)
                self.box("answer")
                self.check(boxes)
                self.assertEqual(self.platform.waiting_files(), [])
                found = [self.platform.get(box.id)["state"] for box in boxes]
                self.assertEqual(found[:3], ["issued", "issued", "waiting"])
                self.assertEqual(sorted(found[3:]), ["issued", "refused", "refused"])
                self.assertEqual(len(self.state.members), 3)
                self.assertIn(joining.audit_key, self.done("audit", "keys", "--state", self.layout.audit_state))
                for member in self.state.members.values():
                    self.assertTrue((self.layout.requests / member.newest.inbox).is_dir())

    def test_a_killed_approval_is_made_or_is_not(self):
        self.invite("--batch", "shops", "--count", 1)
        box = Box(self.platform, self.folder / "shops.join", "shop-1")
        box.ask()
        self.box("answer")
        for at in self.each_kill("box", "approve", "shop-1"):
            with self.subTest(at=at):
                self.box("answer")
                if self.platform.get(box.id)["state"] == "waiting":
                    self.box("approve", "shop-1")
                self.check([box])
                self.assertEqual(self.platform.get(box.id)["state"], "issued")
                self.assertEqual((self.state.owed, self.state.waiting), ({}, {}))

    def test_a_killed_revocation_is_finished_when_it_is_run_again(self):
        box = self.member("shop-7")
        for verb in ("revoke", "forget"):
            for at in self.each_kill("box", verb, "shop-7"):
                with self.subTest(verb=verb, at=at):
                    self.run_verb("box", verb, "--root", self.folder, "shop-7")
                    self.box("answer")
                    states = [known.state for known in self.platform.authority.all() if known.name == "shop-7"]
                    self.assertEqual(states, ["revoked"])
                    self.assertFalse((self.layout.requests / box.address).exists())
            shutil.rmtree(self.folder)
            shutil.copytree(self.saved, self.folder)
            shutil.rmtree(self.saved)

    def test_a_killed_invitation_is_made_again(self):
        for at in self.each_kill("box", "add", "shop-7", "--out", self.folder):
            with self.subTest(at=at):
                box = self.invited("shop-7", "--again")
                box.ask()
                self.box("answer")
                self.assertEqual(box.take(), "issued")
                # Its own, and that of its used join file: whoever comes with a copy is seen.
                self.assertEqual(len(list(self.layout.requests.iterdir())), 2)


if __name__ == "__main__":
    unittest.main()
