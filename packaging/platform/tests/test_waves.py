"""The arithmetic that boxes and platform share, and what is made of what people type."""
import json
import unittest

from support import HERE  # noqa: F401 (puts the package on the path)
from ledge_platform import manifest, moments, waves
from ledge_platform.errors import Failure

VECTORS = json.loads((HERE / "seeds.json").read_text())


class Waves(unittest.TestCase):
    def test_seeds_are_those_that_boxes_compute(self):
        for vector in VECTORS["seeds"]:
            self.assertEqual(waves.seed(vector["device"], vector["rollout"]), vector["seed"], vector)

    def test_presets_are_those_that_boxes_know(self):
        self.assertEqual({name: waves.listed(name) for name in waves.PRESETS}, VECTORS["presets"])

    def test_ten_thousand_boxes_come_in_the_shares_that_are_promised(self):
        seeds = [waves.seed(f"box-{number}", "r-42") for number in range(10_000)]
        for name, preset in waves.PRESETS.items():
            for after, percent in preset:
                reached = sum(seed < waves.reached(name, after) for seed in seeds)
                self.assertAlmostEqual(reached / 100, percent, delta=1, msg=f"{name} after {after} s")

    def test_nobody_is_reached_before_the_first_wave(self):
        self.assertEqual([waves.reached("default", after) for after in (-1, 0, 3_599, 3_600)], [0, 0, 0, 20])

    def test_a_schedule_can_be_typed(self):
        self.assertEqual(
            waves.parse("1%@1h,20%@1d,100%@3d"),
            [
                {"seed_below": 20, "after_s": 3_600},
                {"seed_below": 409, "after_s": 86_400},
                {"seed_below": 2_048, "after_s": 259_200},
            ],
        )
        self.assertEqual(waves.parse("ohno"), "ohno")
        self.assertEqual(waves.parse('[{"seed_below": 5, "after_s": 0}]'), [{"seed_below": 5, "after_s": 0}])

    def test_schedules_that_make_no_sense_are_refused(self):
        for text in (
            "never",
            "1%",
            "5%@1h,1%@2h",
            "1%@2h,5%@1h",
            "0%@1h",
            "101%@1h",
            "1%@soon",
            "[]",
            "[{}]",
            '[{"seed_below": 0, "after_s": 0}]',
            '[{"seed_below": 1, "after_s": 1.5}]',
            '[{"seed_below": 1, "after_s": 99999999}]',
            "[",
        ):
            with self.assertRaises(Failure, msg=text):
                waves.parse(text)


class Forms(unittest.TestCase):
    def test_durations_have_units(self):
        self.assertEqual([moments.duration(text) for text in ("90s", "30m", "4h", "7d")], [90, 1_800, 14_400, 604_800])
        for text in ("7", "d", "1w", "-1h", "1.5h"):
            with self.assertRaises(Failure, msg=text):
                moments.duration(text)

    def test_a_window_is_typed_as_people_say_it(self):
        self.assertEqual(
            manifest.parse_window("Asia/Dubai mon,tue 22:00-05:00"),
            {"timezone": "Asia/Dubai", "from": "22:00", "to": "05:00", "days": ["mon", "tue"]},
        )
        for text in (
            "Asia/Dubai",
            "Nowhere/Land 01:00-02:00",
            "UTC someday 01:00-02:00",
            "UTC 25:00-26:00",
            "UTC 01:00-01:00",
            "UTC 1:00-2:00",
        ):
            with self.assertRaises(Failure, msg=text):
                manifest.parse_window(text)

    def test_steps_and_gates_are_checked_as_boxes_check_them(self):
        self.assertEqual(
            manifest.parse_fields("share=0.1,min_requests=100,min_s=2h,quiet=roll_back", manifest.STEP, "shadow"),
            {"share": 0.1, "min_requests": 100, "min_s": 7_200, "quiet": "roll_back"},
        )
        for text, form in (
            ("share=2", manifest.STEP),
            ("share", manifest.STEP),
            ("soon=1", manifest.STEP),
            ("min_requests=1.5", manifest.STEP),
            ("quiet=maybe", manifest.STEP),
            ("golden_min=1.1", manifest.GATE),
            ("psi_max=0", manifest.GATE),
            ("psi_max=nan", manifest.GATE),
            ("p95_ratio_max=-1", manifest.GATE),
        ):
            with self.assertRaises(Failure, msg=text):
                manifest.parse_fields(text, form, "it")


if __name__ == "__main__":
    unittest.main()
