#!/usr/bin/env python3
"""Ten thousand boxes and their platform over days, in minutes: the daemon's own state machine, manifest and waves on the one
side (main.rs), ledge-platform's own manifests and `watch` on the other, and a clock that is not there.

usage: .ledge/platform/bin/python3 benches/fleet/simulate.py [--boxes N] [--debug] [--json FILE] [--plot FILE.svg] [SCENARIO...]

Boxes hear of news only when they ask, every five minutes or so: without MQTT hints, which is the worst case. The status is
not 0 when a promise is broken: shares within 1 % of the plan, a failing rollout stopped below 2 % of the fleet with the
waves `default` and before the second wave with the others.
"""
import argparse
import contextlib
import json
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
    """The manifest, what boxes reported, and `watch`."""

    def __init__(self, schedule, count):
        self.manifest, self.notes, self.count = form.empty("default", START), {}, count
        rollout = {"id": ROLLOUT, "target": "models/m/2/model.onnx", "start": moments.text(START), "waves": schedule, "paused": False,
                   "gate": {"golden_min": 0.9}, "shadow": {"share": 0.1, "min_requests": 20, "max_s": 900}, "soak": {"min_s": 600, "max_s": 900}}
        rollouts.start(self.manifest, self.notes, rollout)
        self.devices, self.news = {}, True

    def published(self, moment):
        """The manifest if it is news, in the form that is signed."""
        if not self.news:
            return None
        self.news = False
        self.manifest["published"] = moments.text(moment)
        form.check(self.manifest)
        return json.loads(form.encode(self.manifest))

    def hear(self, documents, now_s):
        for document in documents:
            device = self.devices.setdefault(document["device"], reports.Device(document["device"]))
            device.apply(document)
            device.set_online(document["online"], now_s)

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
            if heard or now_s % 3_600 == 0:
                found["curve"].append((now_s / 3_600, *platform.shares()))
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


class Closing:
    def __init__(self, boxes):
        self.close = boxes.end


def last(schedule):
    return waves.schedule(schedule)[-1][0]


def good(program, count, schedule):
    """Each wave reaches its share, and a few broken boxes stop nothing."""
    found = run(program, schedule, count, last(schedule) + 7_200, broken=0.003)
    problems = [f"paused after {found['paused_s']} s: {found.get('reason')}"] if found["paused_s"] is not None else []
    found["shares"] = []
    for after, percent in waves.PRESETS[schedule]:
        upto = [begun for hour, begun, _ in found["curve"] if hour * 3_600 <= after + SETTLE_S]
        found["shares"].append((after, percent, upto[-1] if upto else 0.0))
        if abs(found["shares"][-1][2] - percent) > 1:
            problems.append(f"after {moments.spoken(after)} {found['shares'][-1][2]:.2f} % instead of {percent} %")
    return found, problems


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
    """A pause of three hours: nothing begins meanwhile, and everything comes three hours later."""
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
        if abs(begun(moved + SETTLE_S) - percent) > 1:
            problems.append(f"after {moments.spoken(moved)} {begun(moved + SETTLE_S):.2f} % instead of {percent} %")
    if found["committed"] < 99.9:
        problems.append(f"only {found['committed']:.2f} % committed it in the end")
    return found, problems


PRESETS = ("default", "accelerated", "ohno")
SCENARIOS = {
    **{f"good-{preset}": lambda program, count, preset=preset: good(program, count, preset) for preset in PRESETS},
    "paused": paused,
    **{f"failing-{preset}": lambda program, count, preset=preset: failing(program, count, preset, failing=0.3, fails_in="shadow", cause="latency")
       for preset in PRESETS},
    **{f"failing-everywhere-{preset}": lambda program, count, preset=preset: failing(program, count, preset, failing=1.0) for preset in PRESETS},
    **{f"silent-{preset}": lambda program, count, preset=preset: failing(program, count, preset, failing=0.5, fails_in="verified", cause="silent")
       for preset in ("default", "accelerated")},
}


def built(debug):
    """The path of the program with the boxes, compiled."""
    command = ["cargo", "build", "--locked", "--bench", "fleet", "--message-format=json-render-diagnostics", *([] if debug else ["--release"])]
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
            lines.append(("began, with a pause", 3, False, [(h, b) for h, b, _ in results["paused"][0]["curve"] if h <= hours]))
        yield f"waves {preset}", hours, 100, lines
    broken = [(preset, results[f"failing-{preset}"][0]) for preset in PRESETS if f"failing-{preset}" in results]
    if broken:
        hours = max(found["curve"][-1][0] for _, found in broken)
        yield ("a release that fails on 30 % of the boxes: began", hours, 6,
               [(f"{preset}, paused after {found['paused_s'] // 60 if found['paused_s'] is not None else '-'} min", number, False,
                 [(h, b) for h, b, _ in found["curve"]]) for number, (preset, found) in enumerate(broken)])


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
    print(f"{'scenario':<30} {'began':>8} {'ran it':>8} {'committed':>10} {'paused':>8}  of {given.boxes} boxes")
    for name in given.scenarios or SCENARIOS:
        found, problems = results[name] = SCENARIOS[name](program, given.boxes)
        pause = "-" if found["paused_s"] is None else f"{found['paused_s'] // 60} min"
        print(f"{name:<30} {found['begun']:>7.2f}% {found['ran_it']:>7.2f}% {found['committed']:>9.2f}% {pause:>8}  {found.get('reason', '')}",
              flush=True)
        for after, percent, share in found.get("shares", []):
            print(f"    {moments.spoken(after):>5}: {share:6.2f} % of {percent} %")
        for problem in problems:
            print(f"    BROKEN: {problem}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({name: {**found, "problems": problems} for name, (found, problems) in results.items()}, indent=1))
    if given.plot:
        given.plot.write_text(plot(f"{given.boxes:,} simulated boxes", list(panels(results))))
    return 1 if any(problems for _, problems in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
