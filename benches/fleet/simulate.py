#!/usr/bin/env python3
"""Simulates ten thousand boxes and their platform over days, in minutes: with the daemon's own state machine, manifest,
waves and reports (main.rs), with the manifests and `watch` of ledge-platform, and with a simulated clock.

usage: .ledge/platform/bin/python3 benches/fleet/simulate.py [--boxes N] [--debug] [--json FILE] [--plot FILE.svg]
                                                             [SCENARIO...]

Boxes poll every five minutes or so, without MQTT hints, which is the worst case. The exit status is not 0 when a
promise is broken: shares within 1 % of the plan; a failing rollout stopped below 2 % of the fleet with the waves
`default`, and before the second wave with the others.

The boxes of a wave depend only on the names of box and rollout, so a share is random: with 10,000 boxes its standard
deviation is 0.5 % of the fleet halfway and 0.1 % in a first wave of 1 %. The rollout here is r-42; the table says how
many of the names r-1 to r-200 keep each wave within 1 %, too.
"""
import argparse
import bisect
import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(CHECKOUT / "packaging" / "platform"))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from ledge_platform import manifest as form  # noqa: E402
from ledge_platform import moments, reports, rollouts, watch, waves  # noqa: E402
from plot import plot  # noqa: E402

START = moments.parse("2026-11-20T00:00:00Z")
STEP_S = 60
SETTLE_S = 1_800  # after a wave: a poll of up to 375 s and a download of up to 15 minutes
ROLLOUT = "r-42"
OTHER_NAMES = [f"r-{number}" for number in range(1, 201)]
DEVIATION_MAX = 1.0  # percent of the fleet
MS = 1_000


class Boxes:
    """The process with the boxes."""

    def __init__(self, program, **fleet):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.send({"now_ms": ms(START), "poll_s": 300, "luck": 1, **fleet})

    def send(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def step(self, moment, manifest):
        self.send({"now_ms": ms(moment), "manifest": manifest})
        return json.loads(self.process.stdout.readline())["reports"]

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def ms(moment):
    return int(moment.timestamp()) * MS


class Platform:
    """The manifest, the reports of the boxes, and `watch`."""

    def __init__(self, schedule, count):
        self.manifest, self.notes, self.count = form.empty("default", START), {}, count
        rollout = form.completed({
            "id": ROLLOUT, "target": "models/m/2/model.onnx", "start": moments.text(START), "waves": schedule,
            "paused": False, "gate": {"golden_min": 0.9},
            "shadow": {"share": 0.1, "min_requests": 20, "max_s": 900},
            "soak": {"min_s": 600, "min_requests": 0, "max_s": 900}})
        rollouts.start(self.manifest, self.notes, rollout)
        self.devices, self.news = {}, True

    def published(self, moment):
        """The manifest if it has changed, in the form that is signed."""
        if not self.news:
            return None
        self.news = False
        self.manifest["published"] = moments.text(moment)
        form.check(self.manifest)
        return json.loads(form.encode(self.manifest))

    def hear(self, documents, now_s):
        for heard in documents:
            device = self.devices.setdefault(heard["device"], reports.Device(heard["device"]))
            if heard["reported"] is not None:
                device.apply(reports.parse(heard["reported"]))
            device.set_online(heard["online"], now_s)

    def change(self, change, *more, **options):
        change(self.manifest, self.notes, ROLLOUT, *more, **options)
        self.news = True

    def decide(self, now_s):
        return watch.decide(self.devices.values(), watch.Policy(ROLLOUT), now_s)

    def shares(self):
        """Percent of the fleet that has begun, and that has committed."""
        entries = [entry for device in self.devices.values() for entry in device.subjects]
        begun = sum(ROLLOUT in (entry.trial_rollout, entry.last_rollout) for entry in entries)
        committed = sum(entry.last_rollout == ROLLOUT and entry.result == "committed" for entry in entries)
        return 100 * begun / self.count, 100 * committed / self.count


def run(program, schedule, count, until_s, watched=True, actions=(), **faults):
    """Plays a rollout. Returns its figures, with a curve of (hour, begun, committed)."""
    fleet = {"boxes": count, "broken": 0.0, "failing": 0.0, "fails_in": "verified", "cause": "golden", **faults}
    boxes, platform = Boxes(program, **fleet), Platform(schedule, count)
    found = {"waves": schedule, "curve": [], "paused_s": None, "faults": faults}
    actions = dict(actions)
    with contextlib.closing(Closing(boxes)):
        for now_s in range(0, until_s + 1, STEP_S):
            moment = moments.after(START, now_s)
            if now_s in actions:
                actions[now_s](platform, moment)
            heard = boxes.step(moment, platform.published(moment))
            platform.hear(heard, now_s)
            if heard or now_s in (0, until_s):
                extend(found["curve"], now_s, platform.shares())
            if watched and found["paused_s"] is None and platform.devices:
                decision = platform.decide(now_s)
                if decision.pause:
                    platform.change(rollouts.pause, moment)
                    found.update(paused_s=now_s, reason=decision.reason)
    found["decision"] = str(platform.decide(until_s))
    found["begun"], found["committed"] = platform.shares()
    found["ran_it"] = 100 * sum(entry.version == 2 or entry.stage in watch.TRIED[1:] or
                                (entry.last_rollout == ROLLOUT and entry.failed_stage in watch.TRIED)
                                for device in platform.devices.values() for entry in device.subjects) / count
    return found


def extend(curve, now_s, shares):
    """Adds a point, and before it the previous value one step earlier."""
    if curve and curve[-1][0] < (now_s - STEP_S) / 3_600:
        curve.append(((now_s - STEP_S) / 3_600, *curve[-1][1:]))
    curve.append((now_s / 3_600, *shares))


class Closing:
    def __init__(self, boxes):
        self.close = boxes.end


def last(schedule):
    return waves.schedule(schedule)[-1][0]


def good(program, count, schedule):
    """Each wave reaches its share, and a few broken boxes do not stop the rollout."""
    found = run(program, schedule, count, last(schedule) + 7_200, broken=0.003)
    problems = [f"paused after {found['paused_s']} s: {found.get('reason')}"] if found["paused_s"] is not None else []
    found["shares"] = []
    for (after, percent), (_, bound) in zip(waves.PRESETS[schedule], waves.schedule(schedule)):
        upto = [begun for hour, begun, _ in found["curve"] if hour * 3_600 <= after + SETTLE_S]
        share, meant = upto[-1] if upto else 0.0, bound / waves.SEEDS
        chance = 100 * math.sqrt(meant * (1 - meant) / count)
        found["shares"].append({"after": after, "percent": percent, "began": share, "deviation": chance})
        if abs(share - percent) > DEVIATION_MAX:
            problems.append(f"after {moments.spoken(after)} {share:.2f} % instead of {percent} %")
    found["names_within"] = sum(worst(name, schedule, count) <= DEVIATION_MAX for name in OTHER_NAMES)
    return found, problems


def worst(rollout, schedule, count):
    """The largest deviation of the waves of a rollout of this name from their shares, in percent of the fleet."""
    seeds = sorted(waves.seed(f"box-{number}", rollout) for number in range(count))
    pairs = zip(waves.PRESETS[schedule], waves.schedule(schedule))
    return max(abs(100 * bisect.bisect_left(seeds, bound) / count - percent) for (_, percent), (_, bound) in pairs)


def failing(program, count, schedule, **faults):
    """`watch` stops it in the first wave."""
    found = run(program, schedule, count, waves.schedule(schedule)[1][0] + 7_200, broken=0.003, **faults)
    problems = []
    if found["paused_s"] is None or found["paused_s"] >= waves.schedule(schedule)[1][0]:
        problems.append("not stopped before the second wave")
    if schedule == "default" and found["begun"] >= 2:
        problems.append(f"{found['begun']:.2f} % of the fleet began it, 2 % at most")
    if found["begun"] > 100 * waves.schedule(schedule)[0][1] / waves.SEEDS + 1:
        problems.append(f"{found['begun']:.2f} % of the fleet began it, more than the first wave")
    return found, problems


def paused(program, count, schedule="accelerated"):
    """A pause of three and a half hours: no box begins during it, and later waves are delayed by it."""
    pause_s, resume_s = 5 * 3_600, 8 * 3_600 + 1_800
    actions = {pause_s: lambda platform, moment: platform.change(rollouts.pause, moment),
               resume_s: lambda platform, moment: platform.change(rollouts.resume, moment)}
    found = run(program, schedule, count, last(schedule) + resume_s - pause_s + 7_200, actions=actions)
    problems = []

    def begun(at_s):
        return [begun for hour, begun, _ in found["curve"] if hour * 3_600 <= at_s][-1]

    if begun(resume_s) != begun(pause_s + 400):
        problems.append(f"{begun(resume_s) - begun(pause_s + 400):.2f} % began it during the pause")
    for after, percent in waves.PRESETS[schedule]:
        moved = after + (resume_s - pause_s if after > pause_s else 0)
        if abs(begun(moved + SETTLE_S) - percent) > DEVIATION_MAX:
            problems.append(f"after {moments.spoken(moved)} {begun(moved + SETTLE_S):.2f} % instead of {percent} %")
    if found["committed"] < 99.9:
        problems.append(f"only {found['committed']:.2f} % committed it in the end")
    return found, problems


PRESETS = ("default", "accelerated", "ohno")


def of(scenario, preset, **faults):
    return lambda program, count: scenario(program, count, preset, **faults)


SCENARIOS = {
    **{f"good-{preset}": of(good, preset) for preset in PRESETS},
    "paused": paused,
    **{f"failing-{preset}": of(failing, preset, failing=0.3, fails_in="shadow", cause="latency") for preset in PRESETS},
    **{f"failing-everywhere-{preset}": of(failing, preset, failing=1.0) for preset in PRESETS},
    **{f"silent-{preset}": of(failing, preset, failing=0.5, fails_in="verified", cause="silent")
       for preset in ("default", "accelerated")},
}


def built(debug):
    """The path of the program with the boxes, compiled."""
    command = ["cargo", "build", "--locked", "--bench", "fleet", "--message-format=json-render-diagnostics"]
    if not debug:
        command.append("--release")
    lines = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    artifacts = [message for line in lines if (message := json.loads(line)).get("executable")]
    return next(message["executable"] for message in artifacts if message["target"]["name"] == "fleet")


def planned(schedule, hours):
    points = [(0, 0.0)]
    for after, bound in waves.schedule(schedule):
        points += [(after / 3_600, points[-1][1]), (after / 3_600, 100 * bound / waves.SEEDS)]
    return [*points, (hours, points[-1][1])]


def panels(results):
    for preset in PRESETS:
        if f"good-{preset}" not in results:
            continue
        found = results[f"good-{preset}"][0]
        hours = (last(preset) + 7_200) / 3_600
        lines = [("plan", 4, True, planned(preset, hours)), ("began", 0, False, [(h, b) for h, b, _ in found["curve"]]),
                 ("committed", 2, False, [(h, c) for h, _, c in found["curve"]])]
        if preset == "accelerated" and "paused" in results:
            curve = results["paused"][0]["curve"]
            hours = max(hours, curve[-1][0])
            lines.append(("began, with a pause", 3, False, [(h, b) for h, b, _ in curve]))
        yield f"waves {preset}", hours, 100, lines
    broken = [(preset, results[f"failing-{preset}"][0]) for preset in PRESETS if f"failing-{preset}" in results]
    if broken:
        hours = max(found["curve"][-1][0] for _, found in broken)
        began = [(f"{preset}, paused after {spoken_pause(found)}", found["curve"]) for preset, found in broken]
        lines = [(label, number, False, [(h, b) for h, b, _ in curve]) for number, (label, curve) in enumerate(began)]
        yield "a release that fails on 30 % of the boxes: began", hours, 6, lines


def spoken_pause(found):
    return "-" if found["paused_s"] is None else f"{found['paused_s'] // 60} min"


def table(results, count):
    """The results of each scenario, and of each wave."""
    rows = [[name, *(f"{found[key]:.2f} %" for key in ("begun", "ran_it", "committed")), spoken_pause(found),
             found.get("reason", "-")] for name, (found, _) in results.items()]
    yield reports.table(("SCENARIO", "BEGAN", "RAN IT", "COMMITTED", "PAUSED", "WHY"), rows)
    shares = [[found["waves"], moments.spoken(wave["after"]), f"{wave['percent']} %", f"{wave['began']:.2f} %",
               f"{wave['began'] - wave['percent']:+.2f} %", f"{wave['deviation']:.2f} %"]
              for found, _ in results.values() for wave in found.get("shares", [])]
    if shares:
        yield "\n" + reports.table(("WAVES", "AFTER", "PLAN", "BEGAN", "OFF BY", "CHANCE (1 SD)"), shares)
    for found, _ in results.values():
        if "names_within" in found:
            names = f"{found['names_within']} of {len(OTHER_NAMES)} rollout names"
            yield f"waves {found['waves']}: {names} keep each wave within {DEVIATION_MAX:g} % of {count} boxes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, default=10_000)
    parser.add_argument("--debug", action="store_true", help="compile without optimization")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    given = parser.parse_args()
    unknown = set(given.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    program, results = built(given.debug), {}
    for name in given.scenarios or SCENARIOS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = SCENARIOS[name](program, given.boxes)
    print("\n".join(table(results, given.boxes)))
    for name, (_, problems) in results.items():
        for problem in problems:
            print(f"BROKEN: {name}: {problem}")
    if given.json:
        found = {name: {**found, "problems": problems} for name, (found, problems) in results.items()}
        given.json.write_text(json.dumps(found, indent=1))
    if given.plot:
        given.plot.write_text(plot(f"{given.boxes:,} simulated boxes", list(panels(results))))
    return 1 if any(problems for _, problems in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
