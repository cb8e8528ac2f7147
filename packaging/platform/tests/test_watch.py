"""What boxes report, and when a rollout is paused by itself."""
import json
import random
import unittest

from support import document, moments, reported
from ledge_platform import reports, watch
from ledge_platform.errors import Failure

POLICY = watch.Policy("r-42")


def box(number, *words, online=True, offline_since=None, **fields):
    device = reports.Device(f"box-{number}")
    device.apply(document(device.device, *words, **fields))
    device.online, device.offline_since = online, offline_since
    return device


def fleet(committed=0, failed=0, trying=0, idle=0, silent=0):
    boxes = [box(0, "r-42", version=2) for _ in range(committed)]
    boxes += [box(1, "r-42", cause="golden") for _ in range(failed)]
    boxes += [box(2, "r-42", stage="canary") for _ in range(trying)]
    boxes += [box(3) for _ in range(idle)]
    return boxes + [box(4, "r-42", stage="staged", online=False, offline_since=0.0) for _ in range(silent)]


class Decisions(unittest.TestCase):
    def decide(self, policy=POLICY, now_s=10_000.0, **counts):
        return watch.decide(fleet(**counts), policy, now_s)

    def test_a_release_that_fails_everywhere_is_stopped_at_its_third_failure(self):
        self.assertFalse(self.decide(failed=2).pause)
        decision = self.decide(failed=3, idle=9_997)
        self.assertTrue(decision.pause)
        self.assertIn("3 of 3 boxes that tried it failed (100.0 %, limit 2 %)", decision.reason)
        self.assertEqual(decision.causes, {"golden": 3})
        self.assertEqual(decision.examples["golden"], "box-1: golden at staged: 2 of 6 golden inputs answered right")

    def test_one_broken_box_of_five_stops_nothing(self):
        self.assertFalse(self.decide(failed=1, committed=4).pause)

    def test_what_could_be_chance_stops_nothing(self):
        for tried, most in ((41, 2), (100, 5), (300, 10), (1_000, 28)):
            self.assertFalse(self.decide(failed=most, committed=tried - most).pause, tried)
            self.assertTrue(self.decide(failed=most + 1, committed=tried - most - 1).pause, tried)

    def test_boxes_on_trial_count_as_tried(self):
        self.assertTrue(self.decide(failed=3).pause)
        self.assertFalse(self.decide(failed=3, trying=97).pause)

    def test_boxes_that_only_fetch_do_not_count(self):
        boxes = [*fleet(failed=3), *[box(5, "r-42", stage="downloading") for _ in range(500)]]
        decision = watch.decide(boxes, POLICY, 0)
        self.assertTrue(decision.pause)
        self.assertEqual((decision.tried, decision.under_way), (3, 500))

    def test_what_the_platform_or_the_owner_ended_is_no_failure(self):
        boxes = [box(number, "r-42", cause=cause) for number, cause in enumerate(sorted(watch.NO_FAULT) * 5)]
        decision = watch.decide(boxes, POLICY, 0)
        self.assertEqual((decision.pause, decision.tried), (False, 0))

    def test_other_rollouts_do_not_count(self):
        self.assertEqual(watch.decide([box(1, "r-41", cause="golden")] * 10, POLICY, 0).tried, 0)

    def test_boxes_that_fall_silent_during_the_trial_stop_it(self):
        decision = self.decide(silent=3, committed=10)
        self.assertTrue(decision.pause)
        self.assertIn("fell silent", decision.reason)
        self.assertFalse(self.decide(silent=3, committed=10, now_s=899.0).pause)
        offline_before = [
            box(number, "r-42", stage="downloading", online=False, offline_since=0.0) for number in range(10)
        ]
        self.assertFalse(watch.decide(offline_before, POLICY, 10_000).pause)

    def test_a_fleet_of_two_can_be_watched(self):
        self.assertTrue(watch.decide(fleet(failed=2), watch.Policy("r-42", min_failures=2, min_reports=2), 0).pause)

    def test_a_good_release_is_hardly_ever_stopped(self):
        # One box in two hundred is broken in itself; the limit is one in fifty. Judged after every report, as in life.
        draw = random.Random(1)
        stopped = 0
        for _ in range(300):
            failed = 0
            for tried in range(1, 301):
                failed += draw.random() < 0.005
                decision = watch.Decision(tried=tried, failed=failed)
                watch.judge(decision, POLICY)
                if decision.pause:
                    stopped += 1
                    break
        self.assertLessEqual(stopped, 6)

    def test_a_bad_release_is_stopped_early(self):
        draw = random.Random(2)
        for rate in (0.1, 0.3, 1.0):
            at = []
            for _ in range(200):
                failed = tried = 0
                decision = watch.Decision()
                while not decision.pause and tried < 1_000:
                    tried += 1
                    failed += draw.random() < rate
                    decision = watch.Decision(tried=tried, failed=failed)
                    watch.judge(decision, POLICY)
                at.append(tried)
            self.assertLessEqual(sorted(at)[190], 98, rate)  # 98 boxes: the first wave of 10,000

    def test_the_bound_is_the_number_of_boxes_that_pauses(self):
        for tried in (*range(0, 60), 300, 1_000):
            bound = watch.bound(tried, POLICY.max_failures, POLICY)
            for failed in range(0, min(tried, 40) + 1):
                decision = watch.Decision(tried=tried, failed=failed)
                watch.judge(decision, POLICY)
                self.assertEqual(decision.pause, bound is not None and failed >= bound, (tried, failed))
        self.assertEqual([watch.bound(tried, 0.02, POLICY) for tried in (2, 3, 41, 100, 1_000)], [None, 3, 3, 6, 29])

    def test_the_tail_is_that_of_a_binomial_distribution(self):
        self.assertAlmostEqual(watch.tail(3, 2, 0.5), 0.5)
        self.assertAlmostEqual(watch.tail(10, 1, 0.1), 1 - 0.9 ** 10)
        self.assertAlmostEqual(watch.tail(4, 4, 0.02), 0.02 ** 4)
        self.assertEqual([watch.tail(5, 0, 0.1), watch.tail(5, 1, 0), watch.tail(5, 1, 1)], [1.0, 0.0, 1.0])


class Reports(unittest.TestCase):
    def test_a_document_without_updates_is_a_box_that_is_not_looked_after(self):
        device = reports.Device("box-1")
        device.apply(reports.parse(b'{"schema": 1, "device": "box-1"}'))
        self.assertEqual((device.fleet, device.subjects), ("default", []))

    def test_what_is_no_report_is_told(self):
        for payload in (
            b"",
            b"[]",
            b"{",
            b'{"schema": 2}',
            b'{"schema": 1, "updates": {"subjects": [{}]}}',
            b'{"schema": 1, "updates": 5}',
            b"\xff",
            b'{"schema": 1, "device": "box-1", "at": 5}',
            b'{"schema": 1, "fleet": ["default"]}',
            b'{"schema": 1, "health": "\\ud800"}',
            b'{"schema": 1, "updates": {"subjects": [{"subject": "models/a", "last": {"cause": []}}]}}',
            b'{"schema": 1, "updates": {"subjects": [{"subject": "models/a", "version": "2"}]}}',
            b'{"schema": 1, "updates": {"subjects": [{"subject": null}]}}',
            b'{"schema": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"schema": 1, "x": "' + b"x" * reports.MOST_BYTES + b'"}',
        ):
            with self.assertRaises(Failure, msg=payload[:200]):
                reports.parse(payload)

    def test_the_table_has_a_row_for_each_subject(self):
        boxes = [
            box(2, "r-42", cause="golden", group="kitchen"),
            box(1, "r-42", stage="canary"),
            reports.Device("box-3", online=False),
        ]
        text = reports.table(reports.HEAD, reports.rows(boxes, moments.parse("2026-11-20T00:10:00Z")))
        lines = text.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertRegex(lines[1], r"^box-1 +default +- +models/wine +1 +canary 2 +r-42 +under way +- +online 10m ago$")
        self.assertRegex(
            lines[2], r"^box-2 +default +kitchen .* rolled back +golden at staged: 2 of 6 .* online 10m ago$"
        )
        self.assertRegex(lines[3], r"^box-3 .*offline never$")

    def test_the_table_says_why_a_box_tries_again(self):
        document_of_box = document("box-1", "r-42", stage="downloading")
        document_of_box["updates"]["subjects"][0]["error"] = "disk: 5 bytes free"
        device = reports.Device("box-1")
        device.apply(reports.parse(json.dumps(document_of_box)))
        text = reports.table(reports.HEAD, reports.rows([device], moments.now()))
        self.assertIn("under way  again after disk: 5 bytes free", text)

    def test_a_box_cannot_draw_on_the_terminal(self):
        hostile = document("box-1", "r-42", cause="golden")
        hostile["updates"]["subjects"][0]["last"]["detail"] = "\x1b[2Jgone\nnew line"
        device = reports.Device("box-1")
        device.apply(reports.parse(json.dumps(hostile)))
        text = reports.table(reports.HEAD, reports.rows([device], moments.now()))
        self.assertNotIn("\x1b", text)
        self.assertEqual(len(text.splitlines()), 2)

    def test_a_report_is_read_from_its_bytes(self):
        self.assertEqual(reports.parse(reported("box-1"))["device"], "box-1")


if __name__ == "__main__":
    unittest.main()
