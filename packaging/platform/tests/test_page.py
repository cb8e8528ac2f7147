"""The fleet page: what it shows, that boxes cannot write into it, and how it is in a real Chromium."""
import csv
import functools
import html.parser
import http.server
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from datetime import timedelta
from pathlib import Path
from unittest import mock

from browser import Browser
from simulated import Fleet
from support import HERE, REPOSITORY, Kit, document, moments
from ledge_platform import reports, watch, waves
from ledge_platform.audit.findings import GAP, STALE, Finding
from ledge_platform.audit.notes import VerifierKey
from ledge_platform.audit.store import Box, Log, Store
from ledge_platform.boxes.store import Certificate, Invitation, Member, State
from ledge_platform.boxes.store import Store as JoinStore
from ledge_platform.broker import Broker
from ledge_platform.errors import Failure
from ledge_platform.page import Page, Watched, boxes, history, inventory, rollouts, script
from logs import Signer

NOW = moments.parse("2026-11-20T12:00:00Z")
FILES = {".lock", "console.css", "fleet.css", "fleet.js", "fleet.json", "history.json", "icon.svg",
         "index.html", "inventory.csv"}
HOSTILE = (
    "<img src=x onerror=document.title=1>", "</script><script>document.title=2</script>", "..%2f..%2fetc%2fpasswd", "..",
    "\u202egnp.exe", "<!--", "javascript:document.title=3", "fleet.json", '"\'&amp;', "constructor", "a" * 5_000)


class Shown(Kit):
    """A page of boxes that report at NOW what a test makes them."""

    def setUp(self):
        super().setUp()
        self.shown, self.state, self.members = self.folder / "page", self.folder / "audit", self.folder / "members"
        self.broker = Broker("mqtt://localhost", clock=mock.Mock(return_value=0.0))
        self.now = NOW
        clock = mock.patch("ledge_platform.moments.now", side_effect=lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def take(self, name, *words, online=b"online", **fields):
        """A box reports a minute before; `change` is what its report has besides."""
        report = {**document(name, *words, **fields), "at": moments.text(self.now - timedelta(minutes=1))}
        report.update(fields.get("change", {}))
        self.broker.take(name, "reported", json.dumps(report).encode())
        self.broker.take(name, "online", online)

    def write(self, watched=None, **options):
        Page(self.shown, self.repository, self.state, **options).write(self.broker, watched)
        return json.loads((self.shown / "fleet.json").read_text())

    def watched(self, **limits):
        return Watched("default", watch.Policy("r-42", **limits))

    def keep_log(self, name, size=500, hours=1, findings=()):
        key = Signer(name).verifier_key
        log = {1: Log(key, size, bytes(32), "")} if size else {}
        Store(self.state).save(Box(name, VerifierKey.of(name, key), moments.text(NOW), logs=log, findings=list(findings),
                                   verified=moments.text(NOW - timedelta(hours=hours)) if size else None))

    def keep_members(self, **state):
        JoinStore(self.members).save(State(**state))

    def joined(self, name, days, **fields):
        begun = moments.text(self.now - timedelta(days=days))
        until = moments.text(self.now + timedelta(days=90 - days))
        return name, Member(name, begun, [Certificate("1", name, name, begun, until)], **fields)

    def invited(self, name, days, **fields):
        begun, ends = (moments.text(self.now + timedelta(days=shift - days)) for shift in (0, 14))
        return name, Invitation(name, name, "", "", begun, ends, boxes=[name], **fields)

    def begin(self, days, *more):
        """The rollout r-42 of version 2, that began so many days ago."""
        self.add(2)
        self.start("r-42", "models/wine/2", "--start", moments.text(self.now - timedelta(days=days)), *more)


class Joined(Shown):
    """What `box list` knows of boxes."""

    def boxes(self):
        return {box["device"]: box for box in self.write(members_folder=self.members)["boxes"]}

    def findings(self):
        return {name: [(finding["kind"], finding["text"]) for finding in box["findings"]] for name, box in self.boxes().items()}

    def test_boxes_that_are_expected_or_do_not_renew_are_there(self):
        self.keep_members(members=dict([self.joined("box-1", 1), self.joined("box-2", 80), self.joined("box-3", 1, fleet="night"),
                                        self.joined("box-4", 1, state="revoked", since="2026-11-20T00:00:00Z")]),
                          invitations=dict([self.invited("new", 1), self.invited("late", 20)]))
        for name in ("box-1", "box-2", "box-4"):
            self.take(name)
        self.assertEqual(self.findings(), {
            "box-1": [], "box-2": [("member", "it has not renewed its certificate, which ends in 10 d")],
            "box-3": [("seen", "it joined, and has never reported")], "box-4": [("member", "it is revoked, and connected to the broker")],
            "new": [], "late": [("member", "never came; its join file expired 6 d ago")]})
        found = self.boxes()
        self.assertEqual((found["new"]["membership"]["state"], found["box-3"]["fleet"]), ("expected", "night"))
        self.assertIsNone(self.write()["boxes"][0]["membership"], "no folder was named")

    def test_the_last_answer_of_a_box_is_shown(self):
        self.keep_members(members=dict([self.joined("box-1", 1), self.joined("box-2", 1)]))
        checks = [{"check": "camera", "level": "failure", "count": 2}]
        answer = {"id": "ab", "question": "doctor", "at": "2026-11-25T00:00:00Z", "ledge": "0.1.0", "checks": checks}
        asked = {"id": "cd", "question": "doctor", "inbox": "0a", "made": "-", "expires": "-", "answer": answer}
        (self.members / "questions").mkdir()
        (self.members / "questions" / "box-1.json").write_text(json.dumps(asked))
        (self.members / "questions" / "box-2.json").write_text("{")
        found = self.boxes()
        self.assertEqual((found["box-1"]["answer"], found["box-2"]["answer"]), (answer, None))

    def test_a_forgotten_box_is_gone_though_the_broker_remembers_it(self):
        self.take("box-1")
        self.assertIn("box-1", self.boxes())
        self.keep_members(forgotten={"box-1": "2026-11-20T00:00:00Z"})
        self.assertNotIn("box-1", self.boxes())
        self.keep_members(forgotten={"box-1": "2026-11-20T00:00:00Z"}, members=dict([self.joined("box-1", 1)]))
        self.assertIn("box-1", self.boxes())

    def test_a_state_that_cannot_be_read_does_not_stop_the_page(self):
        self.members.mkdir()
        (self.members / "boxes.json").write_text("{")
        self.take("box-1")
        self.assertEqual(self.findings(), {"box-1": []})


class Findings(Shown):
    def found(self, name="box-1", **options):
        box, = [box for box in self.write(**options)["boxes"] if box["device"] == name]
        return [(finding["kind"], finding["level"], finding["text"]) for finding in box["findings"]]

    def test_a_box_that_is_well_has_none(self):
        self.take("box-1")
        self.assertEqual(self.found(), [])

    def test_a_box_that_is_not_seen_is_late(self):
        for ago, online, level, text in (
            ({"minutes": 20}, b"offline", "warn", "not connected; its last report came 20 min ago"),
            ({"minutes": 20}, b"online", "warn", "its last report is 20 min old, though it is connected"),
            ({"days": 3}, b"offline", "fail", "not connected; its last report came 3 d ago"),
            ({"hours": -2}, b"online", "warn", "its clock is 2 h ahead"),
        ):
            self.take("box-1", online=online, change={"at": moments.text(NOW - timedelta(**ago))})
            self.assertEqual(self.found(), [("seen", level, text)])
        self.take("box-1", online=b"offline", change={"at": moments.text(NOW - timedelta(minutes=20))})
        self.assertEqual(self.found(late_s=3_600), [])

    def test_a_box_without_a_report_is_told(self):
        self.broker.take("box-1", "online", b"online")
        self.assertEqual(self.found(), [("seen", "warn", "it is known to the broker, and has not reported yet")])
        self.broker.take("box-1", "reported", b"[]")
        self.assertEqual(self.found(), [("seen", "fail", "its last report is left out: it is not of schema 1")])
        self.keep_log("box-2")
        self.assertEqual(self.found("box-2")[0], ("seen", "warn", "it has never reported, and its log is verified here"))

    def test_a_release_that_is_not_committed_a_day_after_its_wave_is_late(self):
        self.begin(2, "--waves", "all")
        late = "models/wine 2 is not committed a day after its wave"
        self.take("box-1")
        self.assertEqual(self.found(), [("release", "warn", f"{late}, and the box has not begun")])
        self.take("box-1", "r-42", stage="canary")
        self.assertEqual(self.found(), [("release", "warn", late)])
        self.take("box-1", "r-42")
        self.assertEqual(self.found(), [])
        self.take("box-1", "r-42", cause="golden")
        self.assertEqual(self.found(), [
            ("release", "fail", "r-42 was rolled back: golden at staged: 2 of 6 golden inputs answered right")])
        self.take("box-1", "r-42", cause="operator")
        self.assertEqual(self.found(), [])
        self.take("box-1")
        self.now = NOW - timedelta(hours=30)
        self.assertEqual(self.found(late_s=1e9), [("seen", "warn", "its clock is 29 h ahead")])

    def test_a_box_that_waits_says_for_what(self):
        self.begin(2, "--waves", "all")
        report = document("box-1")
        report["updates"]["subjects"][0]["waiting"] = {"rollout": "r-42", "version": 2, "reason": "needs Ledge 9.0.0"}
        self.take("box-1", change={"updates": report["updates"]})
        self.assertIn("not committed a day after its wave: needs Ledge 9.0.0", self.found()[0][2])

    def test_a_paused_rollout_and_a_pinned_box_are_not_late(self):
        self.begin(2, "--waves", "all")
        self.take("box-1")
        self.steer("pause", "--id", "r-42")
        self.assertEqual(self.found(), [])
        self.steer("resume", "--id", "r-42")
        self.steer("pin", "box-1", "models/wine", "1")
        self.assertEqual(self.found(), [])

    def test_an_audit_log_that_lags_or_is_not_whole_is_told(self):
        audit = {"log": "ledge.audit/box-1/1", "size": 40_000, "synced": 39_990, "lost": {"calls": 0, "events": 0}}
        self.take("box-1", change={"audit": audit})
        self.assertEqual(self.found(), [], "no log is verified on this machine")
        self.keep_log("box-2")
        self.assertEqual(self.found(), [("audit", "warn", "its audit log is not verified: its key is not pinned")])
        self.keep_log("box-1")
        self.assertEqual(self.found(), [])
        self.keep_log("box-1", hours=60)
        self.assertEqual(self.found(), [("audit", "warn", "its audit log was last verified 2 d ago")])
        self.keep_log("box-1", findings=[Finding(GAP, "records are gone", 1), Finding(STALE, "silent"),
                                         Finding(GAP, "known", 1, acknowledged=True)])
        self.assertEqual(self.found(), [("audit", "fail", "its audit log: gap: log 1: records are gone"),
                                        ("audit", "warn", "its audit log: stale: silent")])
        self.keep_log("box-1", size=0)
        self.assertEqual(self.found(), [("audit", "warn", "its audit log was never verified")])
        self.keep_log("box-1")
        (self.state / "box-1.json").write_text("{")
        self.assertIn("cannot be read", self.found()[0][2])
        self.keep_log("box-1")
        self.take("box-1", change={"audit": {**audit, "synced": 5, "alarm": "the disk has another log", "lost": {"calls": 7}}})
        self.assertEqual([text for _, _, text in self.found()], [
            "its audit log: the disk has another log", "its audit log lost 7 records",
            "39,995 of its 40,000 records are not copied to the platform yet"])

    def test_the_time_of_a_run_of_verify_is_kept(self):
        from ledge_platform.audit.fleet import Verification
        self.keep_log("box-1", hours=60)
        source = mock.Mock()
        source.generations.side_effect = Failure("the server does not answer")
        Verification(source, Store(self.state)).verify("box-1")
        self.assertEqual(Store(self.state).load("box-1").verified, moments.text(NOW - timedelta(hours=60)))
        source = mock.Mock(**{"generations.return_value": [1], "read.return_value": None, "modified.return_value": None})
        Verification(source, Store(self.state)).verify("box-1")
        self.assertEqual(Store(self.state).load("box-1").verified, moments.text(NOW))

    def test_a_degraded_box_names_its_model(self):
        versions = [{"version": 1, "state": "UNAVAILABLE", "reason": "unloaded"},
                    {"version": 2, "state": "UNAVAILABLE", "reason": "no such operator"}]
        self.take("box-1", change={"health": "degraded", "models": [{"name": "wine", "versions": versions}]})
        self.assertEqual(self.found(), [("health", "fail", "wine 2: no such operator")])


GB = 10**9
KNOWN = {
    "package": {"name": "ledge-slim", "version": "0.2.0-1", "format": "deb", "architecture": "amd64"},
    "os": "Debian GNU/Linux 12 (bookworm)",
    "hardware": {"model": "Dell Inc. OptiPlex 3060", "cpu": "Intel(R) Core(TM) i5-8500", "architecture": "x86_64"},
    "certificate": {"from": "2026-11-01T00:00:00Z", "until": "2027-01-30T00:00:00Z"},
    "models": [{"name": "press", "origin": "own", "versions": []}, {"name": "wine", "origin": "updates", "versions": []},
               {"name": "faces", "origin": "added", "versions": []}],
}


def loaded(total=64 * GB, free=40 * GB):
    machine = {"cores": 4, "cpu_ratio": 0.5, "memory_total_bytes": 8 << 30, "memory_available_bytes": 3 << 30}
    return {"machine": machine, "disk": {"total_bytes": total, "available_bytes": free}}


class InventoryOfBoxes(Shown):
    """What the keys of the report for the inventory become. Findings have them in `Findings` for the other keys."""

    def known(self, name="box-1", free=40 * GB, total=64 * GB, **change):
        self.take(name, group="kitchen", change={**KNOWN, "load": loaded(total, free), **change})

    def box(self, name="box-1", **options):
        return next(box for box in self.write(**options)["boxes"] if box["device"] == name)

    def found(self, **options):
        return [(finding["kind"], finding["level"], finding["text"]) for finding in self.box(**options)["findings"]]

    def cells(self):
        with open(self.shown / "inventory.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_a_box_says_what_it_is(self):
        self.known()
        self.assertEqual(self.box()["inventory"], {
            "package": {"name": "ledge-slim", "version": "0.2.0-1", "format": "deb"},
            "os": "Debian GNU/Linux 12 (bookworm)", "model": "Dell Inc. OptiPlex 3060", "cpu": "Intel(R) Core(TM) i5-8500",
            "architecture": "x86_64", "disk": {"total": 64 * GB, "free": 40 * GB}, "certificate": KNOWN["certificate"]})
        self.assertEqual(self.found(), [])
        row, = self.cells()
        self.assertEqual(row, {
            "box": "box-1", "fleet": "default", "group": "kitchen", "findings": "0", "hardware": "Dell Inc. OptiPlex 3060",
            "cpu": "Intel(R) Core(TM) i5-8500", "cores": "4", "architecture": "x86_64",
            "os": "Debian GNU/Linux 12 (bookworm)", "ledge": "0.1.0", "package": "ledge-slim",
            "package_version": "0.2.0-1", "package_format": "deb", "own_models": "press faces",
            "memory_bytes": str(8 << 30), "memory_available_bytes": str(3 << 30), "disk_bytes": str(64 * GB),
            "disk_available_bytes": str(40 * GB), "certificate_until": "2027-01-30T00:00:00Z", "membership": "",
            "last_report": "2026-11-20T11:59:00Z"})

    def test_a_box_of_an_earlier_version_has_no_inventory_and_no_finding(self):
        self.take("box-1")
        self.broker.take("box-2", "online", b"online")
        self.assertIsNone(self.box()["inventory"])
        self.assertEqual(self.found(), [])
        self.assertEqual([(row["box"], row["os"], row["package_version"]) for row in self.cells()],
                         [("box-1", "", ""), ("box-2", "", "")])

    def test_what_is_of_another_type_is_left_out(self):
        for odd in (5, [], {}, "x", "", None, True, -1, 1e308, [[]], {"total_bytes": "9", "name": 5, "from": [], "until": 7},
                    {"total_bytes": 5, "available_bytes": 6, "from": "2026-11-02T00:00:00Z", "until": "2026-11-01T00:00:00Z"}):
            origins = [{"name": "a", "origin": odd, "versions": []}]
            self.take("box-1", change={"package": odd, "hardware": odd, "certificate": odd, "load": {"disk": odd},
                                       "models": origins})
            box = self.box()
            self.assertIsNone(box["inventory"], odd)
            self.assertEqual([model["origin"] for model in box["models"]], [None])
            self.take("box-1", change={"os": odd})
            self.assertEqual((self.box()["inventory"] or {}).get("os"), "x" if odd == "x" else None)

    def test_a_disk_is_nearly_full_by_its_share_and_its_bytes(self):
        for total, free, said in (
            (1_000 * GB, 6 * GB, []),  # 0.6 %, but enough for years
            (16 * GB, 2 * GB, []),  # a small disk with an eighth of it free
            (64 * GB, 2 * GB, [("room", "warn", "the disk of its state folder is nearly full: 2.0 GB of 64 GB are free")]),
            (2 * GB, 500 << 20, [("room", "fail", "the disk of its state folder is full, and it takes no release: "
                                                  "524 MB of 2.0 GB are free")]),
        ):
            self.known(total=total, free=free)
            self.assertEqual(self.found(), said)

    def test_a_certificate_in_its_last_sixth_is_late_and_one_that_ended_is_a_failure(self):
        def has(days, begun=75):
            begin, end = (moments.text(NOW + timedelta(days=shift)) for shift in (-begun, days))
            self.known(certificate={"from": begin, "until": end})
            return self.found(members_folder=self.members)

        self.assertEqual(has(16), [])
        self.assertEqual(has(14), [("member", "warn", "the certificate that it uses ends in 14 d, and it has not renewed it")])
        self.assertEqual(has(-3), [("member", "fail", "the certificate that it uses ended 3 d ago")])
        # `box list` judges the newest certificate, and the box may use an older one.
        name, member = self.joined("box-1", 80)
        self.keep_members(members={name: member})
        self.assertEqual(has(10, begun=80), [("member", "warn", "it has not renewed its certificate, which ends in 10 d")])
        name, member = self.joined("box-1", 5)
        self.keep_members(members={name: member})
        self.assertEqual(has(10, begun=80), [
            ("member", "warn", "the certificate that it uses ends in 10 d, and it has not renewed it, and it has not taken "
                               "the newer one that the platform issued")])

    def test_a_report_from_before_its_certificate_shows_a_clock_that_is_behind(self):
        self.known(at="2026-11-20T11:59:00Z", certificate={"from": "2026-11-20T13:59:00Z", "until": "2027-02-18T00:00:00Z"})
        self.assertEqual(self.found(), [
            ("seen", "warn", "its clock is at least 2 h behind: its last report is older than its certificate")])

    def test_a_box_that_moved_to_another_group_or_fleet_has_a_note(self):
        name, member = self.joined("box-1", 1, fleet="default", group="kitchen")
        self.keep_members(members={name: member})
        self.known()
        self.assertEqual(self.box(members_folder=self.members)["notes"], [])
        self.known(group="office", fleet="night")
        self.assertEqual(self.box(members_folder=self.members)["notes"], [
            "it reports fleet night, and was invited for default", "it reports group office, and was invited for kitchen"])
        self.known(group=None)
        self.assertEqual(self.box(members_folder=self.members)["notes"], ["it reports group none, and was invited for kitchen"])
        # A join file without a group leaves it to the owner of the box.
        name, member = self.joined("box-1", 1)
        self.keep_members(members={name: member})
        self.assertEqual(self.box(members_folder=self.members)["notes"], [])

    def test_a_box_with_another_machine_has_a_note_for_a_month(self):
        self.known()
        self.assertNotIn("notes", self.box())
        self.known(hardware={**KNOWN["hardware"], "model": "LENOVO 11JN002MGE"})
        noted = ["since 2026-11-20 it has another machine; before it was Dell Inc. OptiPlex 3060, Intel(R) Core(TM) i5-8500, "
                 "x86_64, 4 cores"]
        self.assertEqual(self.box()["notes"], noted)
        self.take("box-1")  # a report of an earlier version says nothing about it
        self.assertEqual(self.box()["notes"], noted)
        self.now = NOW + timedelta(days=31)
        self.assertNotIn("notes", self.box())
        self.broker.take("box-1", "reported", b"")
        self.broker.take("box-1", "online", b"")
        self.write()
        kept = json.loads((self.shown / "history.json").read_text())
        self.assertEqual(kept["machines"], {})
        for odd in ([], {"box-1": 5}, {"box-1": ["x"]}, {"box-1": ["x", "y", "z"]}, 7):
            (self.shown / "history.json").write_text(json.dumps({**kept, "machines": odd}))
            self.write()

    def test_no_cell_of_the_table_is_a_formula(self):
        formulas = ("=1+1", "+1", "-1", "@SUM(A1)", "  =1+1", "\t=1+1", "＝1+1", 'x";=1+1', "a,=1+1", "=cmd|' /C calc'!A0\r\n=2")
        for number, text in enumerate(formulas):
            self.known(f"box-{number}", os=text, ledge_version=text, group=text,
                       package={"name": text, "version": text, "format": text},
                       hardware={"model": text, "cpu": text, "architecture": text},
                       models=[{"name": text, "origin": "own", "versions": []}])
        self.take("=1+2")
        self.write()
        rows = self.cells()
        self.assertEqual(len(rows), len(formulas) + 1)
        for row in rows:
            for column, cell in row.items():
                self.assertFalse(cell.lstrip().startswith(inventory.FORMULA), (column, cell))
        self.assertEqual(next(row["os"] for row in rows if row["box"] == "box-0"), "'=1+1")
        self.assertEqual(next(row["os"] for row in rows if row["box"] == "box-7"), 'x",=1+1')
        # Also where a spreadsheet separates by semicolons, which it does in many countries.
        for line in csv.reader((self.shown / "inventory.csv").read_text().splitlines(), delimiter=";"):
            self.assertFalse([cell for cell in line if cell.lstrip().startswith(inventory.FORMULA)], line)


class Rollouts(Shown):
    def test_a_rollout_is_shown_with_its_counts_over_time_and_the_limits_of_its_watcher(self):
        self.begin(0, "--waves", "50%@0s,100%@2h")
        for number in range(200):
            self.take(f"box-{number}")
        names = sorted((f"box-{number}" for number in range(200)), key=lambda name: waves.seed(name, "r-42"))
        self.write(self.watched())
        for number, name in enumerate(names[:90]):
            self.take(name, "r-42", **({"cause": "golden"} if number < 3 else {}))
        self.now = NOW + timedelta(minutes=5)
        self.write(self.watched())
        self.now = NOW + timedelta(minutes=10)
        rollout, = self.write(self.watched())["rollouts"]
        below_half = sum(waves.seed(name, "r-42") < 1_024 for name in names)
        self.assertEqual(rollout["counts"], {"meant": below_half, "under_way": 0, "tried": 90, "committed": 87, "failed": 3,
                                             "silent": 0})
        self.assertEqual(rollout["causes"][0]["count"], 3)
        self.assertEqual([wave["reached"] for wave in rollout["waves"]], [True, False])
        plot = rollout["plot"]
        self.assertEqual((plot["interval"], plot["length"], plot["end"]), (60, 11, "2026-11-20T12:10:00Z"))
        self.assertEqual(plot["columns"]["tried"], [0] * 5 + [90] * 6)
        self.assertEqual(plot["columns"]["failed"], [0] * 5 + [3] * 6)
        limit = watch.bound(90, 0.02, watch.Policy("r-42"))
        self.assertEqual(plot["columns"]["failed_limit"], [None] * 5 + [limit] * 6)

    def test_the_limits_of_the_watcher_stay_when_the_page_is_written_by_hand(self):
        self.begin(1)
        self.write(self.watched(max_failures=0.1, min_failures=7))
        rollout, = self.write()["rollouts"]
        self.assertEqual((rollout["pauses"]["failures"], rollout["pauses"]["least"]), (0.1, 7))
        self.assertIsNone(rollout["counts"]["silent"], "nobody has waited for a box to be silent")

    def test_a_time_without_samples_is_a_gap(self):
        self.begin(1)
        self.write()
        self.now = NOW + timedelta(hours=3)
        plot = self.write()["rollouts"][0]["plot"]
        self.assertEqual(plot["columns"]["tried"][0], 0)
        self.assertEqual(plot["columns"]["tried"][-1], 0)
        self.assertIn(None, plot["columns"]["tried"])

    def test_the_reason_of_a_pause_is_kept_until_it_goes_on(self):
        self.begin(1)
        self.steer("pause", "--id", "r-42")
        self.write(Watched("default", watch.Policy("r-42"), "3 of 3 boxes failed"))
        rollout, = self.write()["rollouts"]
        self.assertEqual((rollout["state"], rollout["reason"]), ("paused", "3 of 3 boxes failed"))
        self.steer("resume", "--id", "r-42")
        self.assertIsNone(self.write()["rollouts"][0]["reason"])

    def test_a_rollout_that_is_gone_is_kept_as_it_was(self):
        self.begin(1)
        self.take("box-1", "r-42")
        self.write()
        self.steer("stop", "--id", "r-42")
        self.now = NOW + timedelta(hours=5)
        rollout, = self.write()["rollouts"]
        self.assertEqual((rollout["state"], rollout["since"]), ("ended", "2026-11-20T17:00:00Z"))
        self.assertEqual((rollout["counts"]["committed"], rollout["plot"]["end"]), (1, "2026-11-20T12:00:00Z"))

    def test_a_history_that_cannot_be_read_begins_again(self):
        self.begin(1)
        for content in (b"{", b"[]", b'{"form": 1, "rollouts": [{"fleet": 5}]}', b'{"form": 9}'):
            self.write()
            (self.shown / "history.json").write_bytes(content)
            self.assertEqual(self.write()["rollouts"][0]["plot"]["length"], 1, content)

    def test_a_rollout_of_three_months_has_some_thousand_samples(self):
        entry = history.Entry("default", "r-42", "models/wine/2/model.onnx", moments.text(NOW), watch.Policy("r-42"))
        decision = watch.Decision(tried=500)
        for minute in range(0, 90 * 1_440):
            entry.add(NOW + timedelta(minutes=minute), decision, 500)
        self.assertLess(len(entry.samples), 7_000)
        end = entry.samples[-1][0]
        plot = rollouts.plot(entry, end)
        self.assertEqual(end, int((NOW + timedelta(minutes=90 * 1_440 - 1)).timestamp()))
        self.assertNotIn(None, plot["columns"]["tried"][1:])
        self.assertLessEqual(plot["length"], rollouts.PLOT_ROWS)

    def test_a_box_stands_where_its_seed_its_group_and_its_pins_put_it(self):
        self.begin(0.5, "--waves", "1%@0s,100%@1d", "--groups", "kitchen")
        names = sorted((f"box-{number}" for number in range(300)), key=lambda name: waves.seed(name, "r-42"))
        for name in names:
            self.take(name, group="kitchen" if name != names[1] else "office")
        self.steer("pin", names[-1], "models/wine", "2")
        shown = {box["device"]: box["rollouts"] for box in self.write()["boxes"]}
        self.assertEqual([(one["state"], one["wave"]) for one in shown[names[0]]], [("nothing", 1)])
        self.assertEqual(shown[names[1]], [])
        self.assertEqual([(one["state"], one["wave"]) for one in shown[names[150]]], [("later", 2)])
        self.assertEqual([(one["state"], one["wave"]) for one in shown[names[-1]]], [("nothing", 1)])


class Parser(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.elements = []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))


class Files(Shown):
    def test_a_hostile_box_adds_no_file_and_no_element(self):
        self.take("box-1")
        self.write()
        clean = self.elements()
        self.begin(2, "--waves", "all")
        for name in HOSTILE:
            report = document("x", "r-42", cause=name[:80])
            report["updates"]["subjects"][0]["last"]["detail"] = name
            versions = [{"version": 1, "state": "UNAVAILABLE", "reason": name}]
            self.take(name, group=name, change={"health": name, "ledge_version": name, "updates": report["updates"],
                                                "models": [{"name": name, "versions": versions}],
                                                "audit": {"log": name, "alarm": name, "error": name}})
        data = self.write()
        self.assertEqual({path.name for path in self.shown.iterdir()}, FILES)
        self.assertEqual({path.name for path in self.folder.iterdir()} & {"etc", "passwd"}, set())
        self.assertEqual(self.elements(), clean)
        self.assertEqual({box["device"] for box in data["boxes"]}, {"box-1", *HOSTILE})
        for path in self.shown.iterdir():
            self.assertNotIn("\u202e", path.read_text(), path)
        box = next(box for box in data["boxes"] if box["device"].startswith("\u202e"))
        self.assertEqual(box["name"], "?gnp.exe")
        self.assertLessEqual(max(len(finding["text"]) for box in data["boxes"] for finding in box["findings"]), 300)

    def elements(self):
        parser = Parser()
        parser.feed((self.shown / "index.html").read_text())
        return parser.elements

    def test_what_is_of_another_type_is_left_out(self):
        for odd in (5, [], {}, "x", None, True, 1e308, [[]], [{"name": [], "versions": [{"version": {}}, 7]}]):
            self.take("box-1", change={"models": odd, "load": odd, "requests": odd, "started": odd,
                                       "audit": {"size": odd, "synced": 3, "lost": {"calls": "9"}}, "versions_left_out": odd})
            box, = self.write()["boxes"]
            self.assertEqual(box["requests"], {"ok": None, "failed": None, "refused": None})

    def test_the_folder_has_no_key(self):
        self.begin(1)
        key = Signer("box-1").verifier_key
        _, _, public = key.split("+", 2)  # base64 has a plus sign of its own now and then
        self.take("box-1", change={"audit": {"log": "ledge.audit/box-1/1", "verifier_key": key, "checkpoint": "HEAD"}})
        self.keep_log("box-1")
        self.write()
        for path in self.shown.iterdir():
            content = path.read_text()
            for secret in (key, public, "HEAD", "PRIVATE KEY", str(self.online), str(self.state)):
                self.assertNotIn(secret, content, path)

    def test_only_a_folder_of_its_own_is_written(self):
        self.take("box-1")
        with self.assertRaisesRegex(Failure, "every box may read"):
            Page(self.repo / "page", self.repository, self.state)
        self.shown.mkdir()
        (self.shown / "index.html").write_text("somebody's")
        with self.assertRaisesRegex(Failure, "not of this page"):
            self.write()
        self.assertEqual((self.shown / "index.html").read_text(), "somebody's")

    def test_a_file_that_has_not_changed_is_not_written_again(self):
        self.write()
        before = {path.name: path.stat().st_ino for path in self.shown.iterdir()}
        self.now = NOW + timedelta(minutes=1)
        self.write()
        after = {path.name: path.stat().st_ino for path in self.shown.iterdir()}
        self.assertEqual({name for name in FILES if before[name] != after[name]}, {"fleet.json", "index.html"})

    def test_the_page_names_no_address_and_has_no_markup_in_its_code(self):
        self.write()
        for name in ("fleet.js", "fleet.css", "console.css"):
            content = (self.shown / name).read_text().replace("http://www.w3.org/2000/svg", "")
            for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:", "https:",
                              "localStorage", "document.cookie", "@import"):
                self.assertNotIn(forbidden, content, name)

    def test_an_installed_copy_has_the_files_of_the_console(self):
        loader = importlib.machinery.SourceFileLoader("setup_of_platform", str(HERE.parent / "setup"))
        setup = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(setup)
        place = self.folder / "installed"
        libraries = place / "lib" / "python3.x" / "site-packages"
        libraries.mkdir(parents=True)
        (place / "bin").mkdir()
        setup.install_package(place)
        self.assertFalse([path for path in libraries.rglob("*") if path.is_symlink()])
        program = (f"import sys; sys.path.insert(0, {str(libraries)!r}); from ledge_platform import page; "
                   "print(len(page.script.bundle(page.read, 'app.js')), len(page.read('console.css')), page.__file__)")
        said = subprocess.run([sys.executable, "-IBc", program], capture_output=True, text=True, check=True).stdout.split()
        self.assertGreater(int(said[0]), 20_000)
        self.assertEqual(int(said[1]), (HERE.parents[2] / "src/console/page/console.css").stat().st_size)
        self.assertTrue(said[2].startswith(str(libraries)), said)

    def test_a_module_in_a_form_that_is_not_known_is_an_error(self):
        files = {"a.js": b"import { b as c } from './b.js';\nc();\n", "b.js": b"export function b() {}\nexport const d = 1;\n"}
        text = script.bundle(files.__getitem__, "a.js")
        self.assertLess(text.index("return { b, d };"), text.index("const { b: c } = modules['b.js'];"))
        for odd in (b"export default 5;\n", b"import * as b from './b.js';\n", b"export { b };\n", b"import('./b.js');\n",
                    b"import { a } from './a.js';\n"):
            with self.assertRaises(Failure, msg=odd):
                script.bundle({"a.js": odd, "b.js": b""}.__getitem__, "a.js")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def axe():
    """The script of axe-core, which `make setup-axe` gets."""
    root = Path(os.environ.get("LEDGE_TEST_ROOT") or REPOSITORY / ".ledge") / "peers" / "axe" / "lib"
    found = [*root.glob("python*/site-packages/axe_playwright_python/axe.min.js")]
    if not found:
        raise AssertionError(f"axe-core is missing in {root}: `make setup-axe` gets it")
    return found[0].read_text()


# Notes when a table of all rows was painted.
OBSERVED = """
new MutationObserver((_, observer) => {
  if (document.querySelectorAll('main tbody tr').length < 1000) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.paintedAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""


class InChromium(Shown):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.now = self.real = moments.at(int(time.time()))  # the page compares its age with the clock of the browser
        self.browser.complaints()  # those of the test before

    def go(self, fragment="", base=None):
        self.browser.go("about:blank")  # else another fragment would only move within the page
        self.browser.go(f"{base or (self.shown / 'index.html').as_uri()}{fragment}")
        # The page is loaded before it has drawn what it shows.
        self.browser.wait_for("[...document.querySelectorAll('[id^=view-]')].some((view) => !view.hidden && view.innerText.trim())")

    def serve(self):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Quiet, directory=str(self.shown)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/"

    def names(self, view="boxes"):
        self.browser.wait_for(f"document.querySelector('#view-{view} [aria-busy=false]')")
        return self.browser.texts(f"#view-{view} tbody th a")

    def thousand(self):
        """1,000 boxes of which many are in the middle of a rollout, and the real code takes in what they report."""
        self.add(7)
        fleet = Fleet(1_000, self.real - timedelta(days=3))
        self.now = fleet.start
        self.start("wine-7", "models/wine/7", "--waves", "default")
        fleet.keep_logs(self.state, self.real)
        for hour in (20, 50, 72):
            self.now = fleet.start + timedelta(hours=hour)
            fleet.tell(self.broker, self.now)
            self.write(Watched("default", watch.Policy("wine-7")))
        self.assertEqual(self.broker.complaints, {})
        return fleet

    def test_the_membership_of_a_box_is_shown(self):
        self.keep_members(members=dict([self.joined("box-1", 80)]), invitations=dict([self.invited("new", 1)]))
        self.take("box-1")
        self.write(members_folder=self.members)
        self.go()
        self.assertEqual(self.names(), ["box-1", "new"])
        self.assertEqual(self.browser.texts("#view-boxes tbody td:nth-child(2) .badge"), ["warning", "expected"])
        self.browser.click("label[for=show-member]")
        self.assertEqual(self.names(), ["box-1"])
        self.browser.click("#view-boxes tbody th a")
        self.browser.wait_for("document.querySelector('#box-title').innerText === 'box-1'")
        text = self.browser.text("#view-box")
        for words in ("Membership", "Certificate until", "it has not renewed its certificate, which ends in 10 d"):
            self.assertIn(words, text)

    def test_the_last_answer_of_a_box_is_a_table(self):
        self.keep_members(members=dict([self.joined("box-1", 1)]))
        checks = [{"check": "cpu", "level": "ok", "count": 1}, {"check": "state", "level": "failure", "count": 2, "free_bytes": 1 << 30}]
        answer = {"id": "ab", "question": "doctor", "at": moments.text(self.now), "ledge": "0.1.0", "checks": checks}
        asked = {"id": "ab", "question": "doctor", "inbox": "0a", "made": "-", "expires": "-", "answer": answer}
        (self.members / "questions").mkdir()
        (self.members / "questions" / "box-1.json").write_text(json.dumps(asked))
        self.write(members_folder=self.members)
        self.go()
        self.assertEqual(self.names(), ["box-1"])
        self.browser.click("#view-boxes tbody th a")
        self.browser.wait_for("document.querySelector('#box-title').innerText === 'box-1'")
        text = self.browser.text("#view-box")
        self.assertRegex(text, r"Last answer[\s\S]*state\s+failure\s+2\s+1\.?0? GiB free\s+cpu\s+ok\s+1")

    def test_a_thousand_boxes_are_shown_searched_and_sorted(self):
        self.thousand()
        self.browser.size(1280, 900)
        marker = self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=OBSERVED)["identifier"]
        for name, base in (("the disk", None), ("a web server", self.serve())):
            for fragment in ("#boxes", "#inventory"):
                times = []
                for _ in range(3):
                    self.go(fragment, base=base)
                    self.browser.wait_for("window.paintedAt")
                    times.append(f"{self.browser.value('window.paintedAt'):.0f}")
                shown = ", ".join(times)
                print(f"\n1,000 boxes from {name}, {fragment}: navigation to the painted table in {shown} ms", file=sys.stderr)
        self.go()
        self.browser.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=marker)
        self.assertEqual(len(self.names()), 1_000)
        self.assertEqual(self.browser.text("#view-boxes [role=status]"), "1,000 boxes")

        # The worst are at the top.
        self.assertEqual(self.browser.text("#view-boxes tbody .badge"), "failure")
        self.browser.click("#view-boxes thead th:nth-child(1) button")
        self.assertEqual(self.names()[:3], ["box-0000", "box-0001", "box-0002"])
        self.browser.click("#view-boxes thead th:nth-child(1) button")
        self.assertEqual(self.names()[0], "box-0999")
        self.assertEqual(self.browser.value("document.querySelector('th[aria-sort]').innerText.trim()"), "Box")

        # What is typed is searched in names, groups, versions and reasons; the address has it.
        self.browser.type_into("#search", "kitchen 3 dimensions")
        found = self.names()
        self.assertTrue(0 < len(found) < 20, found)
        self.assertIn("q=kitchen+3+dimensions", self.browser.value("location.hash"))
        self.browser.click("label[for=show-audit]")
        self.assertLess(len(self.names()), len(found))

        # A box and back: the choice is still there.
        self.go("#boxes?show=health&sort=name")
        names = self.names()
        self.assertEqual(len(names), 12)
        self.browser.click("#view-boxes tbody th a")
        self.browser.wait_for("!document.querySelector('#view-box').hidden")
        self.assertEqual(self.browser.text("#box-title"), names[0])
        self.assertEqual(self.browser.value("document.activeElement.id"), "box-title")
        self.assertIn("the output `scores` has 3 dimensions", self.browser.text("#view-box"))
        self.assertIn("log 1 up to record", self.browser.text("#view-box"))
        self.browser.click(".back a")
        self.browser.wait_for("!document.querySelector('#view-boxes').hidden")
        self.assertEqual(self.names(), names)

        # The boxes of a rollout by their state.
        self.go("#boxes?rollout=default%2Fwine-7%3Acommitted")
        committed = len(self.names())
        self.browser.click("#to-rollouts")
        self.browser.wait_for("document.querySelector('#view-rollouts .card')")
        self.assertRegex(self.browser.text("#view-rollouts .legend"), rf"committed\s+{committed}\b")
        self.assertEqual(len(self.browser.texts("#view-rollouts .waves li.reached")), 4)
        spoken = self.browser.value("[...document.querySelectorAll('svg.plot')].map((one) => one.getAttribute('aria-label'))")
        self.assertRegex(spoken[1], r"^Failed in boxes, from .*rolled back: now \d+, .*pauses at: now \d+")
        self.assertEqual(self.browser.complaints(), [])
        for width in (390, 1280):
            self.browser.size(width, 844)
            for fragment in ("#boxes", "#inventory", "#box/box-0583", "#rollouts"):
                self.go(fragment)
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width, fragment)
                self.assertEqual(self.browser.value("scrollY"), 0, fragment)

    def test_the_inventory_is_counted_sorted_filtered_and_downloaded(self):
        self.thousand()
        self.browser.size(1280, 900)
        base = self.serve()
        self.go("#inventory", base)
        self.assertEqual(len(self.names("inventory")), 1_000)
        self.assertEqual(self.browser.text("#view-inventory .counts"), "797 boxes 0.2.0-1, 149 boxes 0.1.0-1")
        cells = self.browser.texts("#view-inventory tbody tr:first-child td")
        self.assertEqual(cells[0], "Dell Inc. OptiPlex 3060\nIntel(R) Core(TM) i5-8500 CPU @ 3.00GHz, 4 cores, x86_64")
        self.assertEqual(cells[1:3], ["Debian GNU/Linux 12 (bookworm)", "ledge-slim 0.2.0-1\ndeb, Ledge 0.2.0"])
        # A box of an earlier version has only what its report always had.
        old = self.browser.texts("#view-inventory tbody tr:nth-child(8) td")
        self.assertEqual((old[0], old[1], old[2], old[3], old[5], old[6]), ("–\n4 cores", "–", "–\nLedge 0.2.0", "–", "–", "–"))

        # By the room, with the keyboard.
        self.browser.value("document.querySelector('#view-inventory thead th:nth-child(7) button').focus()")
        self.browser.value("document.activeElement.click()")
        self.assertEqual(self.browser.value("document.querySelector('#view-inventory th[aria-sort]').innerText.trim()"), "Room")
        self.assertIn("nearly full", self.browser.texts("#view-inventory tbody tr:first-child td")[5])
        # Of one version, and of one system.
        self.browser.value("(() => { const one = document.querySelector('#inventory-of-version'); one.value = '0.1.0-1'; "
                           "one.dispatchEvent(new Event('change')); })()")
        self.assertEqual(len(self.names("inventory")), 149)
        self.browser.type_into("#inventory-search", "kitchen")
        found = self.names("inventory")
        self.assertTrue(0 < len(found) < 149, len(found))
        self.assertEqual(self.browser.text("#view-inventory .counts"), f"{len(found)} boxes 0.1.0-1")
        self.assertEqual(self.browser.value("location.hash"), "#inventory?q=kitchen&sort=disk&version=0.1.0-1")

        # A box, and back to the inventory as it was.
        self.browser.click("#view-inventory tbody th a")
        self.browser.wait_for("!document.querySelector('#view-box').hidden")
        self.assertIn("Disk of the state folder", self.browser.text("#view-box"))
        self.assertEqual(self.browser.text(".back"), "Inventory")
        self.browser.click(".back a")
        self.browser.wait_for("!document.querySelector('#view-inventory').hidden")
        self.assertEqual(self.names("inventory"), found)

        link = self.browser.value("document.querySelector('#view-inventory a[download]').href")
        with urllib.request.urlopen(link, timeout=60) as answer:
            rows = list(csv.DictReader(answer.read().decode().splitlines()))
        self.assertEqual(len(rows), 1_000)
        self.assertEqual(sum(row["package_version"] == "0.1.0-1" for row in rows), 149)
        self.assertEqual(self.browser.complaints(), [])

    def test_what_a_box_says_stays_text(self):
        self.begin(2, "--waves", "all")
        for name in HOSTILE:
            report = document("x", "r-42", cause="golden")
            report["updates"]["subjects"][0]["last"]["detail"] = name
            self.take(name, group=name, change={"health": name, "ledge_version": name, "updates": report["updates"],
                                                "os": name, "hardware": {"model": name, "cpu": name, "architecture": name},
                                                "package": {"name": name, "version": name, "format": name},
                                                "models": [{"name": name, "origin": "own",
                                                            "versions": [{"version": 1, "state": name}]}]})
        self.write()
        self.browser.size(390, 844)
        self.go("#boxes?sort=name")
        self.assertEqual(len(self.names()), len(HOSTILE))
        for name in HOSTILE:
            at = self.browser.value("[...document.querySelectorAll('#view-boxes tbody th a')].findIndex((one) => "
                                    "decodeURIComponent(one.hash.slice(5)) === arguments[0])", name)
            self.assertGreaterEqual(at, 0, name)
            self.browser.value("document.querySelectorAll('#view-boxes tbody th a')[arguments[0]].click()", at)
            self.browser.wait_for("!document.querySelector('#view-box').hidden")
            self.assertEqual(self.browser.text("#box-title"), reports.printable(boxes.clean.line(name)))
            self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 390, name)
            self.browser.value("history.back()")
            self.browser.wait_for("!document.querySelector('#view-boxes').hidden")
        self.go("#inventory")
        self.assertEqual(len(self.names("inventory")), len(HOSTILE))
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, main script, main iframe').length"), 0)
        self.go("#rollouts")
        self.browser.wait_for("document.querySelector('#view-rollouts .card')")
        self.assertEqual(self.browser.value("document.title"), "Fleet: Ledge")
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, main script, main iframe').length"), 0)
        self.assertEqual(self.browser.complaints(), [])
        tried = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch { return 'refused'; } })()"
        self.assertEqual(self.browser.value(tried), "refused")

    def test_no_view_has_a_fault_that_keeps_people_out(self):
        self.now -= timedelta(hours=1)  # with the notice that it is old
        self.begin(0, "--waves", "1%@0s,50%@1h,100%@1d")
        for number in range(30):
            states = ({"cause": "golden"}, {"stage": "canary"}, {})
            known = {**KNOWN, "load": loaded(free=(number % 4) * GB)} if number % 5 else {}
            self.take(f"box-{number}", *(["r-42"] if number < 20 else []), change=known, **states[number % 3])
        self.keep_log("box-1", findings=[Finding(GAP, "records are gone", 1)])
        self.write(self.watched())
        self.steer("pause", "--id", "r-42")
        self.write(Watched("default", watch.Policy("r-42"), "7 of 20 boxes failed"))
        script, found = axe(), []
        for width in (1280, 390):
            self.browser.size(width, 900)
            for scheme in ("light", "dark"):
                self.browser.scheme(scheme)
                for fragment in ("#boxes", "#boxes?q=nonesuch", "#inventory", "#inventory?q=nonesuch", "#box/box-1",
                                 "#box/nonesuch", "#rollouts"):
                    self.go(fragment)
                    self.browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                    self.browser.command("execute/sync", {"script": f"{script}; window.axe = axe;", "args": []})
                    faults = self.browser.promised(
                        "axe.run(document).then(({ violations, passes }) => [passes.length, violations.map(({ id, nodes }) => "
                        "`${id}: ${nodes[0].html}`)])")
                    self.assertGreater(faults[0], 20)
                    found += [(width, scheme, fragment, fault) for fault in faults[1]]
        self.assertEqual(found, [])

    def test_a_page_of_a_server_gets_new_data_and_keeps_the_focus(self):
        for number in range(3):
            self.take(f"box-{number}")
        self.write(self.watched())
        self.go("#boxes?sort=name", self.serve())
        self.browser.value("document.querySelectorAll('#view-boxes tbody a')[1].focus()")
        self.now += timedelta(seconds=5)
        self.take("box-3", change={"health": "degraded"})
        self.write(self.watched())
        self.browser.value("document.dispatchEvent(new Event('visibilitychange'))")
        self.browser.wait_for("document.querySelectorAll('#view-boxes tbody tr').length === 4")
        self.assertEqual(self.browser.value("document.activeElement.innerText"), "box-1")
        self.assertEqual(self.browser.complaints(), [])

    def test_an_old_page_says_so(self):
        self.take("box-1")
        self.write(self.watched())
        self.go()
        self.assertEqual(self.browser.text("#stale"), "")
        self.assertRegex(self.browser.text("#age"), r"^as of .*, \d+ s old$")
        self.now = self.real - timedelta(hours=3)
        self.take("box-1")
        self.write(self.watched())
        self.go()
        self.assertRegex(self.browser.text("#stale"), r"This page is of .+: no watcher has written it since\.")
        self.assertIn("60 s ago", self.browser.text("#view-boxes tbody"), "the times are those of the page")
        self.write()
        self.go()
        self.assertIn("it was written by hand", self.browser.text("#stale"))

    def test_a_fleet_without_boxes_says_what_to_do(self):
        self.write()
        self.go()
        self.assertIn("No box has reported yet.", self.browser.text("#view-boxes"))
        self.assertFalse(self.browser.value("document.querySelector('#search').checkVisibility()"))
        self.go("#rollouts")
        self.assertIn("No rollout runs.", self.browser.text("#view-rollouts"))
        self.begin(0)
        self.take("box-1")
        self.write()
        self.go("#boxes?q=nonesuch")
        self.browser.wait_for("document.querySelector('#view-boxes').innerText.includes('No box fits.')")
        self.go("#box/nonesuch")
        self.assertIn("No box of this name is known.", self.browser.text("#view-box"))
        self.go("#box/%E0%A4%A")
        self.assertIn("No box of this name is known.", self.browser.text("#view-box"))
        self.assertEqual(self.browser.complaints(), [])


if __name__ == "__main__":
    unittest.main()
