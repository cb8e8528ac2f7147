"""A fleet that does not exist, whose boxes report as real ones do: for the tests of what shows many of them.

`python3 packaging/platform/tests/simulated.py FOLDER [BOXES]` writes its page, with three days of a rollout, to be
looked at.
"""
import json
import random
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True

from logs import Signer  # noqa: E402
from ledge_platform import moments, waves  # noqa: E402
from ledge_platform.audit.findings import GAP, Finding  # noqa: E402
from ledge_platform.audit.notes import VerifierKey  # noqa: E402
from ledge_platform.audit.store import Box, Log, Store  # noqa: E402

GROUPS = ("warehouse", "kitchen", "checkout", "office", "workshop")
STAGES = (("downloading", 600), ("verified", 120), ("staged", 180), ("shadow", 1_800), ("canary", 1_800), ("active", 3_600))
MACHINES = (("Dell Inc. OptiPlex 3060", "Intel(R) Core(TM) i5-8500 CPU @ 3.00GHz", "x86_64", "amd64"),
            ("LENOVO 11JN002MGE", "AMD Ryzen 5 PRO 5650GE with Radeon Graphics", "x86_64", "amd64"),
            ("Raspberry Pi 5 Model B Rev 1.0", "Cortex-A76", "aarch64", "arm64"))
SYSTEMS = ("Debian GNU/Linux 12 (bookworm)", "Ubuntu 24.04.2 LTS", "Debian GNU/Linux 13 (trixie)")
CAUSES = (("golden", "staged", "5 of 6 golden inputs answered right"),
          ("latency", "shadow", "p95 41 ms, 2.4 times that of version 6"),
          ("memory", "staged", "912 MB, 640 MB are free"))


class Fleet:
    """COUNT boxes with one rollout of version 7. What happens to a box follows from its number."""

    def __init__(self, count, start, rollout="wine-7", schedule="default"):
        self.start, self.rollout, self.schedule = start, rollout, schedule
        self.names = [f"box-{number:04}" for number in range(count)]

    def report(self, name, now):
        """The bytes of a report, or None for a box that has not reported."""
        draw = random.Random(name)
        number = int(name.rpartition("-")[2])
        if number % 250 == 249:
            return None
        late = timedelta(days=2) if number % 97 == 1 else timedelta(hours=3) if number % 61 == 1 else timedelta()
        at = now - late - timedelta(seconds=draw.randrange(60))
        is_bad = number % 83 == 2
        size = 4_000 + draw.randrange(60_000) + int((at - self.start).total_seconds() // 20)
        has_inventory = number % 20 != 7  # the others have an earlier version of Ledge
        model, cpu, architecture, debian = MACHINES[number % len(MACHINES)]
        disk = 32_000_000_000 << (number % 5)
        free = disk // 40 if number % 71 == 3 else int(disk * (0.2 + 0.6 * draw.random()))
        issued = at - timedelta(days=number % 58)
        box = {
            "package": {"name": "ledge-slim", "version": "0.1.0-1" if number % 6 == 5 else "0.2.0-1", "format": "deb",
                        "architecture": debian},
            "os": SYSTEMS[number % len(SYSTEMS)],
            "hardware": {"model": model, "cpu": cpu, "architecture": architecture},
            "certificate": {"from": moments.text(issued), "until": moments.text(issued + timedelta(days=90))},
        } if has_inventory else {}
        models = [
            {"name": "wine", "versions": [{"version": 6, "state": "READY", "runtime": "openvino", "digest": "ab" * 32}]},
            {"name": "coco_detector", "versions": [
                {"version": 3, "state": "UNAVAILABLE", "reason": "the output `scores` has 3 dimensions, and 2 are needed"}
                if is_bad else {"version": 3, "state": "READY", "runtime": "onnxruntime", "digest": "cd" * 32}]},
            {"name": "all_minilm_l6_v2", "versions": [{"version": 1, "state": "UNAVAILABLE", "reason": "unloaded"}]},
        ]
        if has_inventory:
            for model, origin in zip(models, ("updates", "updates", "own" if number % 9 == 4 else "package")):
                model["origin"] = origin
        return json.dumps({
            "schema": 1, "device": name, "group": GROUPS[number % len(GROUPS)], "fleet": None,
            "ledge_version": "0.1.0" if number % 6 == 5 else "0.2.0", **box, "started": moments.text(at - timedelta(hours=draw.randrange(900))),
            "at": moments.text(at), "health": "degraded" if is_bad else "ok", "models": models, "versions_left_out": 0,
            "load": {"machine": {"cores": 4, "cpu_ratio": round(draw.random(), 3), "memory_total_bytes": 8 << 30,
                                 "memory_available_bytes": draw.randrange(1 << 30, 7 << 30)},
                     **({"disk": {"total_bytes": disk, "available_bytes": free}} if has_inventory else {}),
                     "process": {"cpu_seconds": 812.4, "memory_bytes": draw.randrange(200 << 20, 900 << 20), "threads": 19}},
            "requests": {"ok": draw.randrange(900_000), "failed": draw.randrange(40), "refused": draw.randrange(9)},
            "updates": {"checked": moments.text(at), "error": None, "metadata": {"root": 1, "timestamp": 41},
                        "subjects": [self.subject(name, draw, at), self.other("models/coco_detector", 3)],
                        "subjects_left_out": 0},
            "audit": {"log": f"ledge.audit/{name}/1", "verifier_key": f"ledge.audit/{name}+f1d7d4be+AUa3", "checkpoint": "…",
                      "size": size, "synced": size - (25_000 if number % 143 == 4 else draw.randrange(40)),
                      "lost": {"calls": 0, "events": 0}, "error": None, "alarm": None},
        }).encode()

    def other(self, subject, version):
        return {"subject": subject, "version": version, "digest": "00", "previous": None, "pinned": False,
                "stage": "idle", "trial": None, "waiting": None, "error": None, "last": None}

    def subject(self, name, draw, at):
        """How it stands with the rollout."""
        entry = self.other("models/wine", 6)
        seed = waves.seed(name, self.rollout)
        after = next((after for after, bound in waves.schedule(self.schedule) if seed < bound), None)
        since = (at - self.start).total_seconds() - after - draw.randrange(3_600) if after is not None else -1
        if since < 0 or seed % 173 == 5:  # some never begin
            return entry
        fails = draw.random() < 0.006
        for stage, seconds in STAGES:
            if fails and stage == "canary":
                cause, failed_stage, detail = draw.choice(CAUSES)
                entry["last"] = {"rollout": self.rollout, "version": 7, "result": "rolled_back", "stage": failed_stage,
                                 "cause": cause, "detail": detail}
                return entry
            if since < seconds or (stage == "shadow" and seed % 311 == 7):
                entry.update(stage=stage, trial={"rollout": self.rollout, "version": 7, "since_s": int(since), "held": None,
                                                 "fault": None})
                return entry
            since -= seconds
        entry.update(version=7, previous=6, last={"rollout": self.rollout, "version": 7, "result": "committed",
                                                  "stage": None, "cause": None, "detail": None})
        return entry

    def online(self, name, now):
        """Whether it is connected then."""
        number = int(name.rpartition("-")[2])
        return not (number % 97 == 1 or number % 61 == 1)

    def tell(self, broker, now):
        """Gives the broker's client what it would get."""
        for name in self.names:
            payload = self.report(name, now)
            if payload:
                broker.take(name, "reported", payload)
            broker.take(name, "online", b"online" if self.online(name, now) else b"offline")

    def keep_logs(self, folder, now):
        """What `audit verify` keeps of each box: most are whole, some are not, some are not enrolled."""
        store = Store(folder)
        for number, name in enumerate(self.names):
            if number % 211 == 6:
                continue
            key, hours = Signer(name).verifier_key, 50 if number % 307 == 8 else 5
            size = json.loads(self.report(name, now) or b'{"audit": {"size": 7000}}')["audit"]["size"] - 900
            box = Box(name, VerifierKey.of(name, key), moments.text(self.start),
                      logs={1: Log(key, size, bytes(32), "")}, verified=moments.text(now - timedelta(hours=hours)))
            if number % 401 == 9:
                box.findings = [Finding(GAP, "records 768 to 1023 are not there", 1)]
            store.save(box)


def main(folder, boxes="1000"):
    from ledge_platform import watch
    from ledge_platform.broker import Broker
    from ledge_platform.page import Page, Watched
    from support import Kit

    class Shown(Kit):
        def runTest(self):
            now = moments.now()
            fleet = Fleet(int(boxes), now - timedelta(days=3))
            clock = mock.Mock(return_value=0.0)
            broker = Broker("mqtt://localhost", clock=clock)
            fleet.keep_logs(self.folder / "audit", now)
            page = Page(Path(folder), self.repository, self.folder / "audit")
            self.add(7)
            with mock.patch("ledge_platform.moments.now", return_value=fleet.start):
                self.start("wine-7", "models/wine/7", "--waves", "default")
            for step in range(0, 3 * 96 + 1):
                moment = fleet.start + timedelta(minutes=15 * step)
                clock.return_value = (moment - fleet.start).total_seconds()
                fleet.tell(broker, moment)
                with mock.patch("ledge_platform.moments.now", return_value=moment):
                    page.write(broker, Watched("default", watch.Policy("wine-7")))

    result = Shown().run()
    for _, text in [*result.errors, *result.failures]:
        print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
