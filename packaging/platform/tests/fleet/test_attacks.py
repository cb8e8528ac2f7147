"""`ledge join` with files that are changed, expired, foreign or used before, on boxes that contradict them, and killed at any moment."""
import base64
import json
import random
import signal
import subprocess
import time
import unittest

from real import Boxes
from sites import free_port, until
from support import daemon_environment, ledge

from ledge_platform.site.layout import Layout

KILLS = 40


class Attacks(Boxes):
    def refused(self, box, says, *words, ends=1):
        """A join that ends with an error and changes nothing below the root."""
        before = box.tree()
        text = box.run("join", "--wait", 0, *words, ends=ends)
        self.assertIn(says, text)
        self.assertEqual(box.tree(), before)
        return text

    def payload(self, file):
        return json.loads(base64.b64decode(json.loads(file.read_bytes())["payload"]))

    def changed(self, file, **changes):
        """A join file with another payload, under the signature of before."""
        envelope = json.loads(file.read_bytes())
        body = json.dumps({**self.payload(file), **changes}).encode()
        envelope["payload"] = base64.b64encode(body).decode()
        made = file.with_name("changed.join")
        made.write_text(json.dumps(envelope))
        return made

    def test_a_changed_file(self):
        box, file = self.new_box("shop-7"), self.invited("shop-7")
        given = ("--fingerprint", self.fingerprint)
        changes = ({"box": "shop-8"}, {"updates": "https://evil.example.com"}, {"settings": "[serving]\nmax_queue_size = 1\n"},
                   {"expires": "2099-01-01T00:00:00Z"}, {"fleet": "other"}, {"root": "{}"}, {"packages": True})
        for change in changes:
            with self.subTest(change=change):
                self.refused(box, "was changed", *given, self.changed(file, **change))
        content = file.read_bytes()
        for cut in (0, 1, 100, len(content) // 2, len(content) - 2):
            file.with_name("cut.join").write_bytes(content[:cut])
            self.refused(box, "ledge:", *given, file.with_name("cut.join"))
        for position in random.Random(7).sample(range(len(content)), 30):
            broken = bytearray(content)
            broken[position] ^= 1
            file.with_name("broken.join").write_bytes(broken)
            status, text = box.ask("join", "--wait", 0, *given, file.with_name("broken.join"))
            if status == 0:  # a byte that means nothing, such as the id of the key
                self.assertIn("shop-7", (box.root / "membership/settings.toml").read_text(), text)
                box.run("join", "--wait", 0, *given, "--replace", file)
                break
        box.join(file, self.fingerprint, "--replace")

    def test_an_expired_file(self):
        box, out = self.new_box("shop-7"), self.folder / "join files"
        self.box("add", "shop-7", "--valid", "1s", "--out", out)
        time.sleep(1.5)
        self.refused(box, "expired at", "--fingerprint", self.fingerprint, out / "shop-7.join")

    def test_a_file_that_expires_after_the_box_took_it(self):
        box, out = self.new_box("shop-7"), self.folder / "join files"
        self.box("add", "shop-7", "--valid", "4s", "--out", out)
        box.join(out / "shop-7.join", self.fingerprint)
        time.sleep(5)
        self.box("answer")
        box.start()
        until(lambda: self.requests() or "does not take the request" in box.log, "no request came", box.daemon, box.log_file)
        self.box("answer")
        box.says("expired", longest_s=60)
        self.assertIn("expired", box.doctor())
        self.assertIn("expired", self.box_list())

    def test_a_file_of_another_platform(self):
        box, other = self.new_box("shop-7"), self.folder / "other"
        self.done("init", "example", "--domain", "localhost", "--root", other, "--plain", "--https-port", free_port(),
                  "--mqtt-port", free_port())
        self.done("box", "add", "shop-7", "--root", other, "--out", other)
        self.refused(box, "of another platform", "--fingerprint", self.fingerprint, other / "shop-7.join")
        self.refused(box, "--fingerprint", other / "shop-7.join")
        # The signature of one platform over the payload of the other.
        file = self.invited("shop-7")
        self.refused(box, "was changed", "--fingerprint", self.fingerprint, self.changed(file, ca=self.payload(other / "shop-7.join")["ca"]))
        self.assertEqual(Layout.open(other).name, "example")

    def test_a_box_that_is_a_member_already(self):
        box = self.member("shop-7")
        box.stop()
        file = self.invited("shop-8")
        self.refused(box, "`--replace` leaves that platform", "--fingerprint", self.fingerprint, file)
        self.assertIn("shop-7 is a member", box.doctor())
        box.join(file, self.fingerprint, "--replace")
        box.start()
        self.answered(box)
        self.assertIn("shop-8 is a member", box.doctor())
        self.assertTrue((box.root / "membership.before/identity.pem").exists())

    def test_a_file_that_two_boxes_use(self):
        file = self.invited("shop-7")
        first, second = self.new_box("first"), self.new_box("second")
        for box in (first, second):
            box.join(file, self.fingerprint)
        first.start()
        self.answered(first)
        second.start()
        until(self.requests, "the second box does not ask", second.daemon, second.log_file)
        self.box("answer")
        used = "the join file shop-7 was used before: shop-7 joined by it on"
        second.says(f"refused this box: {used}")
        self.assertIn(used, second.doctor())
        self.assertIsNone(second.certificate())
        self.assertIn("a request with its join file came again", self.box_list())
        self.assertIn(used, self.box_list())

    def test_a_file_that_two_boxes_use_at_the_same_time(self):
        file = self.invited("shop-7")
        boxes = [self.new_box(name) for name in ("first", "second")]
        for box in boxes:
            box.join(file, self.fingerprint)
            box.start()
        until(lambda: len(self.requests()) == 2, "a request is missing", log=boxes[1].log_file)
        self.box("answer")
        until(lambda: any(box.certificate() for box in boxes), "no box is a member", log=boxes[0].log_file)
        first, second = sorted(boxes, key=lambda box: box.certificate() is None)
        second.says("refused this box: the join file shop-7 was used before")
        self.assertIsNone(second.certificate())
        self.assertIn("refused shop-7: the join file shop-7 was used before", second.doctor())
        self.assertIn("shop-7 is a member of example", first.doctor())
        listed = self.box_list()
        self.assertIn("refused in the last", listed)
        self.assertIn("the join file shop-7 was used before", listed)
        self.assertIn("member", self.row("shop-7"))

    def test_a_box_that_contradicts_the_file(self):
        settings = {
            "device.id": '[device]\nid = "till-1"\n',
            "updates.repository": '[updates]\nrepository = "https://updates.example.com"\nroot_file = "/etc/ledge/root.json"\n'
                                  '[[egress.allow]]\nhost = "updates.example.com:443"\nregion = "eu"\nsend = ["requests"]\n',
            "egress.residency": '[egress]\nresidency = ["ae"]\n',
        }
        file = self.invited("shop-7")
        for number, (key, text) in enumerate(settings.items()):
            with self.subTest(key=key):
                box = self.new_box(f"box-{number}", text)
                # 78: the configuration, as it would be, is wrong.
                ends = 78 if key == "egress.residency" else 1
                self.refused(box, key, "--fingerprint", self.fingerprint, file, ends=ends)
                self.assertFalse((box.root / "membership").exists())
        # The file is good for the box that removed the setting.
        (box.root / "ledge.toml").write_text('[http]\nlisten = ["unix:ledge.sock"]\n')
        box.join(file, self.fingerprint)
        box.start()
        self.answered(box)

    def test_a_name_and_a_file_that_do_not_fit(self):
        box, file = self.new_box("shop-7"), self.invited("shop-7")
        given = ("--fingerprint", self.fingerprint)
        self.refused(box, "is for shop-7, and not for shop-8", *given, "--name", "shop-8", file)
        self.box("add", "--batch", "shops", "--count", 2, "--out", file.parent)
        self.refused(box, "--name", *given, file.with_name("shops.join"))
        self.refused(box, "compare the fingerprint", file)

    def test_a_killed_join_can_be_run_again(self):
        file = self.invited("shop-7")
        box, chance = self.new_box("shop-7"), random.Random(20)
        clean = box.tree()
        command = [ledge(), "join", "--wait", "0", "--fingerprint", self.fingerprint, str(file), "--root", str(box.root)]

        def run():
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                    env=daemon_environment())
        began = time.monotonic()
        self.assertEqual(run().wait(60), 0)
        lasts = time.monotonic() - began
        counts = {"not joined": 0, "joined": 0}
        for _ in range(KILLS):
            for path in box.root.glob("membership*"):
                subprocess.run(["rm", "-r", path], check=True)
            process = run()
            time.sleep(chance.uniform(0, lasts * 1.1))
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            there = set(box.tree()) - set(clean)
            joined = (box.root / "membership/membership.json").exists()
            counts["joined" if joined else "not joined"] += 1
            if joined:
                self.assertIn("not a member of example yet", box.doctor(), there)
                self.assertIn("is a member of example as shop-7 already", box.join(file, self.fingerprint, ends=1))
            else:
                # The box is as before, and joins.
                self.assertFalse((box.root / "membership").exists(), there)
                self.assertEqual(box.doctor(), "")
                box.join(file, self.fingerprint)
                self.assertFalse((box.root / "membership.new").exists())
        self.assertTrue(all(counts.values()), counts)
        box.start()
        self.answered(box)

    def test_a_killed_replacement_leaves_one_of_both_or_can_be_run_again(self):
        box, chance = self.member("shop-7"), random.Random(21)
        box.stop()
        file = self.invited("shop-8")
        subprocess.run(["cp", "-a", box.root, self.folder / "saved"], check=True)
        command = [ledge(), "join", "--wait", "0", "--replace", "--fingerprint", self.fingerprint, str(file), "--root",
                   str(box.root)]
        for _ in range(KILLS):
            subprocess.run(["rm", "-r", box.root], check=True)
            subprocess.run(["cp", "-a", self.folder / "saved", box.root], check=True)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env=daemon_environment())
            time.sleep(chance.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            if not (box.root / "membership/membership.json").exists():
                self.assertTrue((box.root / "membership.before/identity.pem").exists())
            else:
                self.assertRegex(box.doctor(), "shop-7 is a member of example|shop-8 is not a member of example yet")
            box.join(file, self.fingerprint, "--replace")
        box.start()
        self.answered(box)

    def test_a_stolen_file_is_worth_nothing_after_again(self):
        old = self.invited("shop-7").rename(self.folder / "old.join")
        new = self.invited("shop-7", "--again")
        thief, box = self.new_box("thief"), self.new_box("shop-7")
        thief.join(old, self.fingerprint)
        thief.start()
        until(self.requests, "no request came", thief.daemon, thief.log_file)
        self.box("answer")
        thief.says("it was replaced")
        box.join(new, self.fingerprint)
        box.start()
        self.answered(box)
        self.assertIsNone(thief.certificate())


if __name__ == "__main__":
    unittest.main()
