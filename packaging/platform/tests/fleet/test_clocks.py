"""Real boxes over months, and with wrong clocks: `ledge` under libfaketime, and the platform's verbs at the same time.

The servers of the platform run by the real clock, under which certificates of the tests are good.
"""
import re
import shutil
import subprocess
import time
import unittest

from real import DAY, Boxes
from sites import installed, until

from ledge_platform import moments


class Clocks(Boxes):
    def setUp(self):
        super().setUp()
        self.clock = self.folder / "clock"
        self.set_clock("+0d")

    def set_clock(self, words):
        """The clock of the boxes."""
        self.clock.write_text(words + "\n")

    def days_later(self, days):
        """Boxes and platform are so many days later."""
        self.set_clock(f"+{days}d")
        self.later = days

    later = 0

    def renew_servers(self):
        """What timers do meanwhile for the certificates of the servers. nginx reads them."""
        self.done("certificates", "refresh", "--root", self.root)
        self.done("ca", "refresh", self.layout.ca)
        subprocess.run([installed("nginx"), "-e", "stderr", "-c", self.layout.nginx_conf, "-s", "reload"], check=True,
                       capture_output=True)

    def run_verb(self, *words):
        with self.at(self.later * DAY):
            return super().run_verb(*words)

    def until_of(self, box):
        """When its certificate ends, as `ledge doctor` says it."""
        return moments.parse(re.search(r"until (\S+Z)", box.doctor())[1])

    def newest(self, name):
        return self.state.members[name].newest

    def renewed(self, box):
        """Lets a box and the platform do what is due. True if the box has another certificate now."""
        before = box.certificate()
        box.start_again()
        try:
            until(self.requests, "no request came", box.daemon, box.log_file)
        except AssertionError:
            return False
        self.answered(box)
        self.assertNotEqual(box.certificate(), before)
        return True

    def waits(self, box):
        """True if the box asks for nothing within some seconds."""
        since = len(box.log)
        box.start_again()
        before = box.certificate()
        box.says("ready", since)
        time.sleep(6)
        return not self.requests() and box.certificate() == before

    def test_a_box_renews_after_two_thirds_of_its_certificates_life(self):
        box = self.member("shop-7", clock=self.clock)
        first = self.newest("shop-7")
        self.days_later(59)
        self.assertTrue(self.waits(box))
        self.days_later(61)
        self.assertTrue(self.renewed(box))
        second = self.newest("shop-7")
        self.assertNotEqual((first.serial, first.id), (second.serial, second.id), "the key is another one")
        rest = moments.parse(second.until) - moments.parse(first.until)
        self.assertAlmostEqual(rest.days, 61, delta=1)
        self.assertIn("with a certificate until", box.doctor())
        self.assertNotIn("older certificate", self.box_list())
        self.days_later(80)
        self.assertTrue(self.waits(box))

    def test_a_box_that_was_away_for_a_month_around_its_renewal(self):
        box = self.member("shop-7", clock=self.clock)
        box.stop()
        self.days_later(75)
        self.assertIn("it has not renewed its certificate", self.row("shop-7"))
        self.assertIn("due for renewal", box.doctor())
        self.assertTrue(self.renewed(box))
        self.assertNotIn("it has not renewed", self.row("shop-7"))

    def test_a_certificate_that_ended_is_renewed_on_return(self):
        box = self.member("shop-7", clock=self.clock)
        box.stop()
        self.days_later(200)
        self.renew_servers()
        self.assertRegex(self.row("shop-7"), r"ended 1\d\d d ago; it renews by itself when it is back")
        self.assertIn("ended at", box.doctor())
        self.assertTrue(self.renewed(box))
        self.assertIn("is a member of example", box.doctor())

    def test_a_certificate_that_ended_more_than_a_year_ago_is_not_renewed(self):
        box = self.member("shop-7", clock=self.clock)
        box.stop()
        self.days_later(360)
        self.done("ca", "renew", self.layout.ca, "--keys", self.layout.offline)
        self.days_later(460)
        self.renew_servers()
        since = len(box.log)
        box.start()
        until(self.requests, "no request came", box.daemon, box.log_file)
        self.box("answer")
        box.says("refused this box", since)
        self.assertIn("more than a year ago", box.log[since:])
        self.assertIn("more than a year ago", self.box_list())
        self.assertIn("more than a year ago", box.doctor())

    def test_an_issuing_authority_that_ended_and_was_renewed(self):
        box = self.member("shop-7", clock=self.clock)
        box.stop()
        new = self.new_box("shop-8", clock=self.clock)
        new_file = self.invited("shop-8", "--valid", "500d")
        self.days_later(400)
        # The certificates of the servers, and that by which join files are signed, ended with the issuing authority.
        self.assertIn("expired", new.join(new_file, self.fingerprint, ends=1).lower())
        since = len(box.log)
        box.start()
        box.says("the server's certificate has expired", since)
        self.assertIn("the server's certificate has expired", box.doctor())
        status, text = self.run_verb("box", "answer", "--root", self.root)
        self.assertEqual(status, 0, text)
        self.assertIn("nothing is issued at present", self.box_list())
        self.done("ca", "renew", self.layout.ca, "--keys", self.layout.offline)
        self.renew_servers()
        self.answered(box)
        self.assertNotIn("nothing is issued", self.box_list())
        new.join(self.invited("shop-8", "--again"), self.fingerprint)
        new.start()
        self.answered(new)

    def test_a_clock_of_1970_joins_nothing_until_it_is_right(self):
        self.set_clock("@1970-01-01 00:00:01")
        box = self.new_box("shop-7", clock=self.clock)
        file, before = self.invited("shop-7"), box.tree()
        said = box.join(file, self.fingerprint, ends=1)
        self.assertIn("clock", said)
        self.assertEqual(box.tree(), before)
        self.assertEqual(self.requests(), [])
        self.set_clock("+0d")
        box.join(file, self.fingerprint)
        box.start()
        self.answered(box)

    def test_a_member_with_a_clock_of_1970_renews_nothing_wrongly(self):
        box = self.member("shop-7", clock=self.clock)
        before = box.certificate()
        box.stop()
        self.set_clock("@1970-01-01 00:00:01")
        self.assertTrue(self.waits(box))
        self.assertIn("1970", box.log)
        self.assertNotRegex(box.doctor(), "(?i)ended")
        # Two months later its clock is right again.
        self.days_later(62)
        self.assertTrue(self.renewed(box))
        self.assertNotEqual(box.certificate(), before)

    def test_a_daemon_that_starts_in_1970_takes_its_first_certificate_once_the_clock_is_right(self):
        box = self.new_box("shop-7", clock=self.clock)
        box.join(self.invited("shop-7"), self.fingerprint)
        self.set_clock("@1970-01-01 00:00:01")
        box.start()
        time.sleep(10)
        for _ in range(2):
            self.box("answer")
        self.assertEqual(len(self.state.members.get("shop-7").certificates) if self.state.members else 0, len(self.state.members))
        said = box.log
        self.set_clock("+0d")
        if box.certificate() is None:
            until(lambda: self.requests() or self.state.members, "no request came", box.daemon, box.log_file)
            self.box("answer")
            box.says("with a certificate until", len(said), longest_s=240)
        self.assertIn("is a member of example", box.doctor())

    def test_a_membership_of_before_is_shown(self):
        """A disk that was restored, or copied: the platform lets a person decide."""
        box = self.member("shop-7", clock=self.clock)
        box.stop()
        saved = self.folder / "saved"
        shutil.copytree(box.root / "membership", saved)
        self.days_later(61)
        self.assertTrue(self.renewed(box))
        box.stop()
        shutil.rmtree(box.root / "membership")
        shutil.copytree(saved, box.root / "membership")
        since = len(box.log)
        box.start()
        until(self.requests, "no request came", box.daemon, box.log_file)
        self.box("answer")
        self.assertIn("two boxes have this identity, or one was set back", self.row("shop-7"))
        box.says("two boxes have this identity, or one was set back", since)
        self.assertIn("two boxes have this identity", box.doctor())
        self.box("approve", "shop-7")
        box.says("with a certificate until", since, longest_s=120)
        self.assertNotIn("two boxes", self.row("shop-7"))


if __name__ == "__main__":
    unittest.main()
