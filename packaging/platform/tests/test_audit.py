"""Audit logs of a fleet: what is whole is accepted, and what somebody did to it is told for what it is."""
import json
import logging
import os
import random
import shutil
import subprocess
import threading
import time
import unittest
from unittest import mock

from logs import Log, Signer, digest, inclusion, root_of
from support import Verbs, bucket_server, ledge
from ledge_platform import files
from ledge_platform.audit import notes, proofs, sources, tree

TAMPERED, FORK, GAP, FAILED, STALE = 5, 4, 3, 2, 6


class Fleet(Verbs):
    """Boxes that sync into `served`; what the platform knows of them is in `state`."""

    def setUp(self):
        super().setUp()
        self.served, self.state = self.folder / "served", self.folder / "state"
        self.served.mkdir()
        # No test cuts the power, and a busy disk takes its time.
        syncs = mock.patch.object(os, "fsync")
        syncs.start()
        self.addCleanup(syncs.stop)

    def box(self, device="box-1", size=0):
        """An enrolled box with a log that is synced."""
        signer = Signer(device)
        self.done("audit", "enroll", device, signer.verifier_key, "--state", self.state)
        log = Log(signer).grow(size)
        log.sync(self.served)
        return log

    def verify(self, *words, status=0, source=None):
        found, said = self.run_verb("audit", "verify", source or self.served, "--state", self.state, *words)
        self.assertEqual(found, status, said)
        return said

    def told(self, says, status, *words):
        self.assertIn(says, self.verify(*words, status=status))

    def state_of(self, device="box-1"):
        return json.loads((self.state / f"{device}.json").read_bytes())

    def reads_of(self, *words, status=0):
        """The files that a run reads."""
        read, paths = sources.Folder.read, []

        def listed(source, path, limit):
            paths.append(path)
            return read(source, path, limit)

        with mock.patch.object(sources.Folder, "read", listed):
            self.verify(*words, status=status)
        return paths


class Whole(Fleet):
    def test_logs_of_all_sizes_are_whole_at_once_and_as_they_grow(self):
        rng = random.Random(7)
        sizes = {1, 2, 255, 256, 257, 511, 512, 513, 700, *(rng.randrange(1, 2000) for _ in range(12))}
        log = self.box()
        before = 1
        for size in sorted(sizes):
            log.grow(size).sync(self.served, before)
            before = size
            self.told(f"{size:,} records", 0)
        self.assertIn(f"{before:,} records, 0 new", self.verify("--full"))
        shutil.rmtree(self.state)
        self.done("audit", "enroll", "box-1", log.signer.verifier_key, "--state", self.state)
        self.told(f"{before:,} records, {before:,} new", 0)

    def test_a_log_grows_over_the_border_of_the_third_level(self):
        log = self.box(size=65_535)
        self.told("65,535 new", 0)
        before = 65_535
        for size in (65_536, 65_537, 65_793, 66_000):
            log.grow(size).sync(self.served, before)
            self.told(f"{size - before:,} new", 0)
            before = size
        self.assertTrue((self.served / "box-1/1/tile/2/000.p/1").exists())
        self.told("0 new", 0, "--full")

    def test_a_second_run_reads_what_is_new(self):
        log = self.box(size=5000)
        self.verify()
        log.grow(5200).sync(self.served, 5000)
        entries = [path for path in self.reads_of() if "entries" in path]
        self.assertEqual(entries, ["box-1/1/tile/entries/019", "box-1/1/tile/entries/020.p/80"])
        self.assertEqual(sum("entries" in path for path in self.reads_of("--full")), 21)

    def test_a_root_is_that_of_the_definition(self):
        leaves = [digest(bytes([number % 251])) for number in range(1500)]
        built = tree.Tree()
        for tile in range(5):
            built.add(tree.fold(b"".join(leaves[tile * 256:tile * 256 + 256])))
        for rest in (0, 1, 2, 3, 100, 219):
            size = 1280 + rest
            self.assertEqual(built.root(b"".join(leaves[1280:size])), root_of(leaves[:size]))
            for index in {0, 1, 255, 256, 1279, size - 1}:
                path = inclusion(index, leaves[:size])
                root = root_of(leaves[:size])
                self.assertTrue(tree.includes(index, size, leaves[index], path, root))
                self.assertFalse(tree.includes(index ^ 1, size, leaves[index], path, root))
                self.assertFalse(tree.includes(index, size, leaves[index], path[:-1], root))
                self.assertFalse(tree.includes(index, size, leaves[index], [*path, root], root))
        self.assertEqual(tree.Tree().root(), digest())

    def test_a_partial_tile_may_have_made_room_for_the_whole_one(self):
        log = self.box(size=300)
        head = (self.served / "box-1/1/checkpoint").read_bytes()
        log.grow(600).sync(self.served, 300)
        (self.served / "box-1/1/checkpoint").write_bytes(head)  # read before the rest came
        self.assertIn("2 partial tiles removed", self.done("audit", "tidy", self.served))
        self.told("300 records, 300 new", 0)
        self.assertFalse(any(self.served.rglob("001.p")))

    def test_boxes_that_upload_meanwhile_raise_no_alarm(self):
        log, stop = self.box(size=10), threading.Event()
        folder = self.served / "box-1/1"

        def upload():
            old, rng = 10, random.Random(3)
            while not stop.is_set():
                log.grow(old + rng.randrange(1, 200))
                for path, content in log.files(old).items():
                    files.write(folder / path, content)
                old = len(log.records)
                for path in list(folder.rglob("*.p/*")):  # as `tidy` at any moment
                    if path.parent.with_suffix("").exists():
                        path.unlink()

        box = threading.Thread(target=upload)
        box.start()
        try:
            sizes, deadline = set(), time.monotonic() + 60
            while len(sizes) < 10 and time.monotonic() < deadline:
                self.verify()
                sizes.add(self.state_of()["logs"]["1"]["size"])
        finally:
            stop.set()
            box.join()
        self.assertEqual(len(sizes), 10)
        self.verify("--full")

    def test_what_is_worth_knowing_is_summed_up(self):
        log = self.box()
        log.add({"action": "records_lost", "cause": "queue", "since_ms": 1, "calls": 1200, "events": 3})
        log.add({"action": "records_lost", "cause": "quota", "since_ms": 1, "calls": 34, "events": 0})
        log.add({"action": "clock_jumped", "by_ms": -5000}).add({"action": "tag_key_destroyed", "period": 3})
        log.add({"action": "records_pruned", "below": 256, "synced": True}).grow(700).sync(self.served, 1)
        said = self.verify()
        self.assertIn("the box lost 1,234 calls and 3 other events", said)
        self.assertIn("1 clock jumps", said)
        self.assertIn("1 tag keys destroyed", said)
        log.grow(900).sync(self.served, 700)
        self.assertIn("the box lost 1,234 calls", self.verify())
        found = json.loads(self.verify("--json"))
        self.assertEqual(found["boxes"][0]["logs"][0]["actions"]["inference"], 894)
        self.assertEqual((found["status"], found["boxes"][0]["state"]), (0, "whole"))

    def test_a_run_that_is_killed_loses_nothing(self):
        self.box(size=600)
        before = self.state_of()
        with mock.patch.object(files.os, "replace", side_effect=KeyboardInterrupt):
            self.assertEqual(self.run_verb("audit", "verify", self.served, "--state", self.state)[0], 130)
        self.assertEqual(self.state_of(), before)
        self.told("600 new", 0)


class Attacked(Fleet):
    """One log of 700 records, verified at 600."""

    def setUp(self):
        super().setUp()
        self.log = self.box(size=600)
        self.verify()
        self.log.grow(700)
        self.path = self.log.sync(self.served, 600)

    def change(self, path, change):
        file = self.path / path
        file.write_bytes(change(file.read_bytes()))

    def flip(self, path, at):
        def flipped(content):
            content = bytearray(content)
            content[at] ^= 1
            return bytes(content)
        self.change(path, flipped)

    def test_untouched_it_is_whole(self):
        self.told("100 new", 0)

    def test_a_flipped_bit_in_a_record_is_told_with_its_place(self):
        self.flip("tile/entries/002.p/188", 5000)
        self.told("its records do not lead to the root that was signed at size 700: record 5", TAMPERED)
        self.assertEqual(self.state_of()["logs"]["1"]["size"], 600)

    def test_a_flipped_bit_in_what_was_verified_before_is_found_by_a_full_run(self):
        self.flip("tile/entries/000", 700)
        self.told("whole", 0)
        self.told("record 4 is not what tile/0/000 says", TAMPERED, "--full")

    def test_every_byte_of_a_short_log_counts(self):
        shutil.rmtree(self.served / "box-1")
        (self.state / "box-1.json").unlink()
        self.log = self.box(size=3)
        self.path = self.served / "box-1/1"
        for name in ("tile/entries/000.p/3", "tile/0/000.p/3", "checkpoint"):
            whole = (self.path / name).read_bytes()
            for at in range(0, len(whole), 7):
                self.flip(name, at)
                self.verify(status=TAMPERED)
                (self.path / name).write_bytes(whole)
        self.verify()

    def test_a_flipped_bit_in_a_tile_of_hashes_is_told_and_told_again(self):
        for path in ("tile/0/002.p/188", "tile/1/000.p/2"):
            self.flip(path, 33)
            for _ in range(2):
                self.told(f"{path} does not have the hashes of what is below it", TAMPERED)
            self.flip(path, 33)
        self.verify()

    def test_a_tile_of_another_length_is_told(self):
        self.change("tile/0/002.p/188", lambda content: content + b"x")
        self.told("has 6017 bytes, and not 6016", TAMPERED)

    def test_a_cut_bundle_is_told(self):
        self.change("tile/entries/002.p/188", lambda content: content[:-1])
        self.told("it breaks off within a record", TAMPERED)
        self.change("tile/entries/002.p/188", lambda content: content[:-200])
        self.verify(status=TAMPERED)

    def test_a_forged_signature_is_told(self):
        other = Signer("box-1")
        self.log.signer.private, kept = other.private, self.log.signer.private
        self.log.sync(self.served, 600)
        self.told("the signature of ledge.audit/box-1 is not of this text", TAMPERED)
        self.log.signer.private = kept
        self.log.sync(self.served, 600)
        self.verify()

    def test_history_rewritten_and_signed_with_another_key_is_told(self):
        other = Log(Signer("box-1")).grow(700, "another")
        other.sync(self.served)
        self.told("signed by another key of ledge.audit/box-1, and not with the enrolled key", TAMPERED)
        self.assertEqual(self.state_of()["logs"]["1"]["size"], 600)

    def test_history_rewritten_and_signed_with_the_key_is_a_fork(self):
        Log(self.log.signer).grow(700, "another").sync(self.served)
        self.told("fork: log 1: the first 600 records are others than those that were verified", FORK)
        self.told("fork: log 1", FORK, "--full")
        self.log.sync(self.served)
        self.verify()

    def test_a_rewrite_of_the_last_tile_is_a_fork(self):
        other = Log(self.log.signer).grow(700)
        other.records[599] = other.records[598].replace(b'"seq":598', b'"seq":599').replace(b'"us":7', b'"us":8')
        other.sync(self.served)
        self.told("the first 600 records are others", FORK)

    def test_two_heads_of_one_size_are_a_fork(self):
        self.verify()
        other = Log(self.log.signer).grow(699)
        other.add({"action": "stopped"})
        other.sync(self.served)
        self.told("fork: log 1: two heads of size 700 were signed", FORK)

    def test_an_older_checkpoint_is_told(self):
        self.verify()
        (self.path / "checkpoint").write_text(self.log.head(600))
        self.told("tampered: log 1: its checkpoint does not count: it is an old one: the log was turned back from "
                  "700 records to 600", TAMPERED)
        status, said = self.run_verb("audit", "show", self.served, "box-1", "--state", self.state)
        self.assertEqual(status, TAMPERED, said)

    def test_a_cut_tail_is_told(self):
        self.verify()
        shutil.rmtree(self.served)
        Log(self.log.signer).grow(400).sync(self.served)
        self.told("the log was turned back from 700 records to 400", TAMPERED)

    def test_records_that_are_gone_are_a_gap_until_they_are_back(self):
        (self.path / "tile/entries/002.p/188").rename(self.folder / "kept")
        for _ in range(2):
            self.told("gap: log 1: records 512 to 699 are not there", GAP)
        self.assertEqual(self.state_of()["logs"]["1"]["size"], 700)
        (self.folder / "kept").rename(self.path / "tile/entries/002.p/188")
        self.verify()

    def test_records_that_are_gone_with_their_hashes_are_bridged_by_the_level_above(self):
        for name in ("entries", "0"):
            (self.path / f"tile/{name}/001").unlink()
        said = self.verify("--full", status=GAP)
        self.assertIn("records 256 to 511 are not there", said)
        self.assertIn("tile/0/001 is not there", said)
        self.flip("tile/1/000.p/2", 40)
        self.told("do not lead to the root", TAMPERED, "--full")

    def test_without_the_level_above_the_rest_cannot_be_checked(self):
        shutil.rmtree(self.path / "tile")
        self.told("neither the records from 512 on nor their hashes are there", GAP)
        self.assertEqual(self.state_of()["logs"]["1"]["size"], 600)

    def test_a_gap_does_not_hide_what_else_is_wrong(self):
        (self.path / "tile/entries/001").unlink()
        self.flip("tile/entries/002.p/188", 5000)
        self.told("record 5", TAMPERED, "--full")

    def test_a_missing_tile_of_hashes_is_a_gap(self):
        (self.path / "tile/1/000.p/2").unlink()
        self.told("gap: log 1: tile/1/000.p/2 is not there", GAP)

    def test_a_log_that_is_gone_is_a_gap(self):
        shutil.rmtree(self.served / "box-1")
        self.told("gap: log 1: its checkpoint is gone, and 600 records were verified", GAP)
        status, said = self.run_verb("audit", "show", self.served, "box-1", "--state", self.state)
        self.assertEqual(status, GAP, said)

    def test_the_log_of_another_box_is_told(self):
        other = self.box("box-2", 700)
        shutil.rmtree(self.served / "box-1")
        shutil.copytree(self.served / "box-2", self.served / "box-1")
        said = self.verify(status=TAMPERED)
        self.assertIn("signed by ledge.audit/box-2, and not with the enrolled key of ledge.audit/box-1", said)
        self.assertIn("box-2: whole", said)
        self.assertEqual(len(other.records), 700)

    def test_a_log_in_the_place_of_another_generation_is_told(self):
        shutil.copytree(self.served / "box-1/1", self.served / "box-1/2")
        self.told("log 2: its checkpoint does not count: it is of the log ledge.audit/box-1/1", TAMPERED)

    def test_what_somebody_acknowledged_counts_no_more_and_stays_visible(self):
        (self.path / "tile/entries/002.p/188").unlink()
        self.verify(status=GAP)
        said = self.done("audit", "acknowledge", "box-1", "--state", self.state, "--reason", "a broken disk")
        self.assertIn("acknowledged: gap: log 1: records 512 to 699", said)
        self.assertIn("(acknowledged)", self.verify())
        self.assertEqual(self.state_of()["acknowledged"][0]["reason"], "a broken disk")
        (self.path / "tile/0/002.p/188").unlink()
        self.verify(status=GAP)

    def test_a_quiet_run_says_only_what_is_not_whole(self):
        self.box("box-2", 20)
        self.assertEqual(self.verify("--quiet"), "")
        (self.served / "box-2/1/tile/entries/000.p/20").unlink()
        said = self.verify("--quiet", status=GAP)
        self.assertIn("box-2: gap", said)
        self.assertNotIn("box-1", said)

    def test_the_worst_of_all_boxes_is_the_exit_status(self):
        worse = self.box("box-2", 20)
        (self.served / "box-2/1/tile/entries/000.p/20").unlink()
        self.done("audit", "enroll", "box-3", Signer("box-3").verifier_key, "--state", self.state)
        said = self.verify(status=GAP)
        self.assertIn("3 boxes: 1 whole, 1 gap, 1 stale", said)
        self.flip("tile/0/002.p/188", 1)
        said = self.verify(status=TAMPERED)
        self.assertEqual([one["state"] for one in json.loads(self.verify("--json", status=TAMPERED))["boxes"]],
                         ["tampered", "gap", "stale"])
        self.assertEqual(len(worse.records), 20)


class Records(Fleet):
    def check(self, says, status, *change, **fields):
        log = self.box(size=5)
        for old, new in change:
            self.assertIn(old, log.records[3])
            log.records[3] = log.records[3].replace(old, new)
        log.sync(self.served)
        self.told(says, status)

    def test_a_record_of_another_place_is_told(self):
        self.check("record 3: it says that it is record 7", TAMPERED, (b'"seq":3', b'"seq":7'))

    def test_a_record_with_its_number_twice_is_told(self):
        self.check("record 3: it is no audit record", TAMPERED, (b'"seq":3', b'"seq":7'), (b"{", b'{"v":1,'),
                   (b'}}', b'},"seq":3}'))

    def test_a_newer_version_is_no_tampering(self):
        self.check("bring ledge-platform up to date", FAILED, (b'"v":1', b'"v":2'))

    def test_another_form_of_the_moment_is_told(self):
        self.check("record 3: it is no audit record", TAMPERED, (b"06:00:00.250Z", b"06:00:00.250+00:00"))

    def test_what_others_wrote_does_not_steer_the_terminal(self):
        log = self.box(size=5)
        log.add({"action": "model_loaded", "model": "\u009b31m\ud800", "version": 1, "digest": "00"})
        log.sync(self.served, 5)
        self.verify()
        for more in ((), ("--json",)):
            said = self.done("audit", "show", self.served, "box-1", "--state", self.state, *more)
            self.assertNotIn("\u009b", said)

    def test_no_json_is_told(self):
        self.check("record 3: it is no JSON", TAMPERED, (b"}}", b"}"))

    def test_deep_json_is_told(self):
        self.check("record 3: it is no JSON", TAMPERED, (b'"event":', b'"event":' + b"[" * 60_000))


class Generations(Fleet):
    def follow(self, first, **more):
        before = first.previous(more.pop("size", None), more.pop("found", None))
        before.update(more.pop("says", {}))
        cause = more.pop("cause", "damaged")
        log = Log(first.signer, first.generation + 1, cause, before).grow(10)
        log.sync(self.served)
        return log

    def test_a_log_that_follows_another_is_an_alarm_until_it_is_acknowledged(self):
        first = self.box(size=300)
        second = self.follow(first)
        self.told("tampered: log 2: the box found the log before this one damaged", TAMPERED)
        self.told("tampered: log 2", TAMPERED)
        self.done("audit", "acknowledge", "box-1", "--state", self.state)
        self.told("box-1: whole, log 2, 310 records", 0)
        second.grow(400).sync(self.served, 10)
        self.told("390 new", 0)

    def test_a_log_that_was_forked_here_is_told_as_a_fork(self):
        self.follow(self.box(size=300), cause="forked")
        self.told("fork: log 2: the box found another history of its log here", FORK)

    def test_a_box_that_was_restored_from_a_backup_is_no_fork(self):
        first = self.box(size=300)
        self.told("box-1: whole", 0)
        self.follow(first, cause="restored", says=first.previous(120))
        self.told("notice: log 2: its backup has 120 records of the log before it, and 300 were verified here", 0)
        self.told("notice: log 2: the box was restored from a backup, and began another", 0)

    def test_old_hardware_that_still_runs_after_a_restore_is_a_fork(self):
        first = self.box(size=300)
        self.follow(first, cause="restored", says=first.previous(120))
        self.told("notice: log 2", 0)
        first.grow(310).sync(self.served, 300)
        self.told("fork: log 1: it grew after the box was restored from a backup", FORK)

    def test_a_backup_of_another_history_is_a_fork(self):
        first = self.box(size=300)
        self.follow(first, cause="restored", says={**first.previous(120), "root": first.previous(119)["root"]})
        self.told("fork: log 2: the log before it had other records on the box than here", FORK)

    def test_records_that_never_came_are_a_gap(self):
        first = self.box(size=300)
        first.grow(350)
        self.follow(first, cause="renamed")
        self.told("gap: log 2: the log before it has 350 signed records, and 300 of them came here", GAP)

    def test_the_rest_of_a_log_may_come_while_it_is_verified(self):
        first = self.box(size=300)
        first.grow(350)
        self.follow(first, cause="renamed")
        read = sources.Folder.read

        def late(source, path, limit):
            if path == "box-1/2/checkpoint":
                first.sync(self.served, 300)
            return read(source, path, limit)

        with mock.patch.object(sources.Folder, "read", late):
            self.told("360 new", 0)

    def test_a_box_that_was_set_back_is_told(self):
        first = self.box(size=300)
        self.follow(first, size=200)
        self.told("fork: log 2: the box knows only 200 signed records of the log before it, and 300", TAMPERED)

    def test_a_box_that_remembers_other_records_is_told(self):
        for size in (200, 256, 300):
            with self.subTest(size=size):
                first = self.box(f"box-{size}", 300)
                other = Log(first.signer).grow(300, "another")
                self.follow(first, cause="renamed", size=size, says=other.previous(size))
                self.assertIn(f"the log before it had other records on the box than here, within the first {size}",
                              self.verify("--device", f"box-{size}", status=FORK))
                same = self.box(f"same-{size}", 300)
                self.follow(same, cause="renamed", size=size)
                self.assertNotIn("other records on the box", self.verify("--device", f"same-{size}",
                                                                        status=0 if size == 300 else FORK))

    def test_records_that_the_box_lost_are_told(self):
        self.follow(self.box(size=300), found=120, cause="renamed")
        self.told("gap: log 2: the box had only 120 records left of the log before it, and 300 were verified", GAP)

    def test_a_log_that_is_left_out_is_a_gap(self):
        first = self.box(size=300)
        second = Log(first.signer, 2, "renamed", first.previous()).grow(20)
        self.follow(second, cause="renamed")
        self.told("log 3: the log before it, ledge.audit/box-1/2, was never verified here (it has 20 records)", GAP)

    def test_a_log_that_claims_to_be_the_first_is_a_fork(self):
        first = self.box(size=300)
        Log(first.signer, 2).sync(self.served)
        self.told("fork: log 2: it says that it is the first, and others were before it", FORK)

    def test_a_log_begins_by_saying_so(self):
        first = self.box(size=2)
        log = Log(first.signer, 2)
        log.records.clear()
        log.grow(3).sync(self.served)
        self.told("tampered: log 2: its first record does not say that a log begins", TAMPERED)

    def test_a_box_that_lost_the_head_of_the_log_before_is_told_so_and_no_more(self):
        self.follow(self.box(size=300), size=0, says={"root": "", "found": 300})
        said = self.verify(status=TAMPERED)
        self.assertIn("the box knows only 0 signed records of the log before it, and 300 were verified", said)
        self.assertNotIn("other records on the box", said)

    def test_nonsense_about_the_log_before_is_told(self):
        first = self.box(size=2)
        for says in ({"origin": "x"}, {"size": "1"}, {"found": None}, {"origin": 7}, {"origin": "ledge.audit/../x/1"},
                     {"origin": "ledge.audit/box-1/\u00b2"}, {"size": True}):
            self.follow(first, cause="renamed", says=says)
            self.assertIn("what it says of the log before it cannot be read", self.verify(status=TAMPERED))
            (self.state / "box-1.json").unlink()
            self.done("audit", "enroll", "box-1", first.signer.verifier_key, "--state", self.state)

    def test_a_box_that_was_renamed_goes_on_under_its_new_name(self):
        first = self.box("old-name", 300)
        signer = Signer("new-name")
        self.done("audit", "enroll", "new-name", signer.verifier_key, "--state", self.state)
        Log(signer, 2, "renamed", first.previous()).grow(5).sync(self.served)
        self.verify("--device", "old-name")
        self.told("notice: log 2: it goes on under another name", 0)

    def test_a_log_that_is_still_on_its_way_is_no_alarm(self):
        first = self.box(size=300)
        second = self.follow(first, cause="renamed")
        (self.served / "box-1/2/checkpoint").unlink()
        self.told("log 1, 300 records", 0)
        second.sync(self.served)
        self.told("log 2, 310 records", 0)


class Keys(Fleet):
    def test_a_key_is_pinned_and_another_is_refused(self):
        log = self.box(size=5)
        again = ("audit", "enroll", "box-1", log.signer.verifier_key, "--state", self.state)
        self.assertIn("already enrolled", self.done(*again))
        other = Signer("box-1").verifier_key
        self.failed("has another key than the one that is pinned", *again[:3], other, *again[4:], status=1)
        self.verify()
        self.assertIn("with another key", self.done(*again[:3], other, *again[4:], "--replace"))
        listed = self.done("audit", "keys", "--state", self.state)
        self.assertIn(other, listed)
        self.assertNotIn(log.signer.verifier_key, listed)

    def test_after_a_new_key_the_old_log_stands_and_must_not_grow(self):
        log = self.box(size=5)
        self.verify()
        signer = Signer("box-1")
        self.done("audit", "enroll", "box-1", signer.verifier_key, "--state", self.state, "--replace")
        Log(signer, 2, "renamed", log.previous()).grow(5).sync(self.served)
        self.told("10 records", 0)
        log.grow(7).sync(self.served, 5)
        self.told("it grew although the key that signs it was replaced", TAMPERED)

    def test_what_is_no_key_is_refused(self):
        key = Signer("box-1").verifier_key
        name, number, public = key.split("+", 2)
        for wrong, says in ((f"{name}+{number}", "no verifier key"), (f"{name}+00000000+{public}", "not copied whole"),
                            (f"{name}+{number}+{public[:-4]}", "no Ed25519 key"),
                            (f"{name} x+{number}+{public}", "not of the form"),
                            (Signer("box-2").verifier_key, "the key of ledge.audit/box-2, and not of")):
            self.failed(says, "audit", "enroll", "box-1", wrong, "--state", self.state)
        self.failed("no dot in front", "audit", "enroll", "../x", key, "--state", self.state)
        self.failed("give a device and its verifier key", "audit", "enroll", "box-1", "--state", self.state)
        file = self.folder / "box-1.vkey"
        file.write_text(key + "\n")
        self.done("audit", "enroll", "box-1", f"@{file}", "--state", self.state)

    def test_a_box_can_be_taken_out(self):
        self.box(size=5)
        self.box("box-2", 5)
        self.done("audit", "forget", "box-1", "--state", self.state)
        said = self.verify()
        self.assertIn("1 boxes: 1 whole", said)
        self.assertIn("not enrolled, and not looked at: box-1", said)

    def test_what_the_platform_keeps_is_damaged_and_the_other_boxes_are_verified(self):
        self.box(size=5)
        self.box("box-2", 5)
        (self.state / "box-1.json").write_text("{}")
        said = self.verify(status=FAILED)
        self.assertIn("restore it from a backup", said)
        self.assertIn("box-2: whole", said)

    def test_without_a_box_there_is_nothing_to_verify(self):
        self.failed("no box is enrolled", "audit", "verify", self.served, "--state", self.state)


class Silence(Fleet):
    def test_a_box_that_has_not_synced_is_told(self):
        log = self.box(size=5)
        self.verify()
        old = time.time() - 27 * 3600
        os.utime(self.served / "box-1/1/checkpoint", (old, old))
        self.told("stale: nothing has come for more than 26h, since 20", STALE)
        self.verify("--stale-hours", "30")
        log.grow(6).sync(self.served, 5)
        self.verify()

    def test_a_box_that_never_synced_is_told(self):
        self.done("audit", "enroll", "box-9", Signer("box-9").verifier_key, "--state", self.state)
        self.told("stale: nothing has come from it yet", STALE)


class Shown(Fleet):
    def show(self, *words, status=0):
        found, said = self.run_verb("audit", "show", self.served, "box-1", "--state", self.state, *words)
        self.assertEqual(found, status, said)
        return said.splitlines()

    def test_records_are_filtered_and_raw_lines_are_those_of_the_log(self):
        log = self.box()
        log.add({"action": "model_loaded", "model": "wine", "version": 2, "digest": "00"}, "2026-11-20T07:00:00Z")
        log.grow(300)
        log.add({"action": "update_moved", "subject": "models/wine", "version": 2}, "2026-11-21T07:00:00Z")
        log.sync(self.served, 1)
        self.assertEqual(self.show("--json"), [record.decode() for record in log.records])
        self.assertEqual(self.show("--json", "--model", "wine"), [log.records[1].decode(), log.records[300].decode()])
        self.assertEqual(self.show("--json", "--action", "model_loaded"), [log.records[1].decode()])
        self.assertEqual(self.show("--json", "--since", "2026-11-20T07:00:01Z"), [log.records[300].decode()])
        self.assertEqual(len(self.show("--until", "2026-11-20T07:00:00Z")), 299)
        self.assertRegex(self.show("--model", "wine")[0], r"^ +1 2026-11-20T07:00:00Z local +model_loaded model=wine ")

    def test_what_is_not_whole_is_shown_and_said(self):
        self.box(size=300)
        file = self.served / "box-1/1/tile/entries/000"
        file.write_bytes(file.read_bytes().replace(b"minilm", b"minilx", 1))
        self.assertIn("what is shown proves nothing", self.show(status=TAMPERED)[-1])


class Proofs(Fleet):
    def check(self, content, *words, status=0):
        file = self.folder / "proof"
        file.write_text(content)
        found, said = self.run_verb("audit", "check-proof", file, "--device", "box-1", "--state", self.state, *words)
        self.assertEqual(found, status, said)
        return said

    def test_a_proof_of_each_record_holds(self):
        log = self.box(size=300)
        for index, size in ((0, 1), (0, 300), (255, 256), (256, 257), (299, 300), (17, 299)):
            said = self.check(log.proof(index, size))
            self.assertIn(f"record {index} is in ledge.audit/box-1/1, which had {size}", said)

    def test_a_record_may_be_beside_its_proof(self):
        log = self.box(size=300)
        file = self.folder / "record"
        file.write_bytes(log.records[7] + b"\n")
        proof = log.proof(7, extra=False)
        self.check(proof, "--record", file)
        self.assertIn("name a file that has it", self.check(proof, status=TAMPERED))
        file.write_bytes(log.records[8])
        self.check(proof, "--record", file, status=TAMPERED)

    def test_no_flipped_bit_holds(self):
        log = self.box(size=3)
        proof = log.proof(1).encode()
        box = mock.Mock(key=notes.VerifierKey.parse(log.signer.verifier_key), logs={}, device="box-1")
        proofs.check(proof, box)
        for at in range(len(proof)):
            flipped = bytearray(proof)
            flipped[at] ^= 1
            with self.assertRaises(notes.Untrue, msg=at):
                proofs.check(bytes(flipped), box)

    def test_a_proof_of_another_box_or_of_a_forked_head_does_not_hold(self):
        log = self.box(size=300)
        self.verify()
        self.check(Log(Signer("box-2")).grow(300).proof(7), status=TAMPERED)
        said = self.check(Log(log.signer).grow(300, "another").proof(7), status=TAMPERED)
        self.assertIn("another head of size 300: the log was forked", said)

    def test_nonsense_is_told(self):
        log = self.box(size=3)
        for wrong in ("", "c2sp.org/tlog-proof@v1\n", log.proof(1).replace("@v1", "@v2"),
                      log.proof(1).replace("index 1", "index 01"), log.proof(1).replace("index 1\n", "")):
            self.assertIn("the proof does not hold", self.check(wrong, status=TAMPERED))


class Quota(Fleet):
    def test_empty_files_and_folders_take_room_too(self):
        folder = self.served / "box-1" / "1" / "tile" / "0"
        folder.mkdir(parents=True)
        for number in range(100):
            (folder / f"{number:03}").touch()
        quota = ("audit", "quota", self.served, "--full", self.folder / "full", "--most-gb")
        status, said = self.run_verb(*quota, 0.0004)  # less than 100 blocks
        self.assertEqual(status, 1, said)
        self.assertEqual([path.name for path in (self.folder / "full").iterdir()], ["box-1"])
        self.done(*quota, 0.0005)
        self.assertEqual(list((self.folder / "full").iterdir()), [])

    def test_a_box_that_is_gone_is_not_refused_when_it_comes_back(self):
        full = self.folder / "full"
        full.mkdir()
        (full / "box-9").touch()
        self.assertIn("uploads are taken again", self.done(
            "audit", "quota", self.served, "--full", full, "--most-gb", 1, "--quiet"))
        self.assertFalse((full / "box-9").exists())

    def test_what_is_no_size_is_refused(self):
        for size in ("0", "-1", "many", "inf", "nan"):
            self.failed("is no size in gigabytes", "audit", "quota", self.served, "--most-gb", size)


class Bucket(Fleet):
    def setUp(self):
        super().setUp()
        boto3, ThreadedMotoServer = bucket_server()
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        words = mock.patch.dict(os.environ, keys)
        words.start()
        self.addCleanup(words.stop)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server.start()
        self.addCleanup(server.stop)
        self.endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        self.s3 = boto3.client("s3", endpoint_url=self.endpoint)
        self.s3.create_bucket(Bucket="logs")

    def upload(self):
        for path in self.served.rglob("*"):
            if path.is_file():
                self.s3.put_object(
                    Bucket="logs", Key=f"fleet/{path.relative_to(self.served)}", Body=path.read_bytes())

    def test_a_bucket_is_verified_and_shown_and_tidied(self):
        log = self.box(size=700)
        self.box("box-2", 20)
        self.upload()
        place = ("--endpoint", self.endpoint)
        said = self.verify(*place, source="s3://logs/fleet")
        self.assertIn("2 boxes: 2 whole; 720 new records", said)
        log.grow(800).sync(self.served, 700)
        self.upload()
        self.assertIn("100 new", self.verify(*place, source="s3://logs/fleet"))
        self.assertIn("2 partial tiles removed", self.done("audit", "tidy", "s3://logs/fleet", *place))
        self.assertIn("0 new", self.verify(*place, "--full", source="s3://logs/fleet"))
        shown = self.done("audit", "show", "s3://logs/fleet", "box-1", "--state", self.state, "--json", *place)
        self.assertEqual(shown.encode().splitlines(), log.records)
        self.s3.delete_object(Bucket="logs", Key="fleet/box-1/1/tile/entries/001")
        said = self.verify(*place, "--full", source="s3://logs/fleet", status=GAP)
        self.assertIn("records 256 to 511 are not there", said)

    def test_boxes_over_their_quota_are_named(self):
        self.box(size=700)
        self.box("box-2", 20)
        self.upload()
        listed = self.s3.list_objects_v2(Bucket="logs", Prefix="fleet/box-1/")["Contents"]
        size = sum(item["Size"] for item in listed)
        quota = ("audit", "quota", "s3://logs/fleet", "--endpoint", self.endpoint, "--most-gb")
        status, said = self.run_verb(*quota, (size - 1) / 1e9)
        self.assertEqual(status, 1, said)
        self.assertIn("take its access key back", said)
        self.assertNotIn("box-2", said)
        self.assertIn("2 boxes: 1 over their quota", said)
        self.assertIn("2 boxes: 0 over their quota", self.done(*quota, size / 1e9))

    def test_a_bucket_that_is_not_there_is_not_an_empty_one(self):
        self.box(size=5)
        status, said = self.run_verb(
            "audit", "verify", "s3://nowhere/x", "--endpoint", self.endpoint, "--state", self.state)
        self.assertEqual(status, FAILED, said)
        self.assertIn("cannot be listed", said)


class RealDaemon(Fleet):
    """What the daemon itself writes, and its own proofs. On the box, a tile that grows has no suffix."""

    def setUp(self):
        super().setUp()
        self.program = ledge()
        self.root = self.folder / "root"
        (self.root / "models").mkdir(parents=True)
        self.settings = ["--root", str(self.root), "--set", 'device.id="box-1"', "--set", 'http.listen=["127.0.0.1:0"]']
        # What begins like this is a setting of the daemon.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGE_")}

    def ledge(self, *words):
        command = [self.program, *map(str, words), *self.settings]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env=self.environment)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return result.stdout

    def run_daemon(self):
        command = [self.program, "serve", *self.settings]
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=self.environment, **pipes) as daemon:
            for line in daemon.stderr:
                if "ready" in line:
                    break
            daemon.terminate()
            daemon.stderr.read()
            self.assertEqual(daemon.wait(60), 0)

    def test_the_log_of_the_daemon_is_whole_and_a_changed_one_is_not(self):
        self.run_daemon()
        (self.served / "box-1").symlink_to(self.root / "audit" / "logs")
        key = self.ledge("audit", "key").strip()
        self.done("audit", "enroll", "box-1", key, "--state", self.state)
        self.told("whole, log 1", 0)
        size = self.state_of()["logs"]["1"]["size"]
        self.run_daemon()
        self.verify()
        self.assertGreater(self.state_of()["logs"]["1"]["size"], size)
        shown = self.done("audit", "show", self.served, "box-1", "--state", self.state, "--json").splitlines()
        self.assertEqual(json.loads(shown[0])["event"]["action"], "log_begun")
        self.assertEqual([json.loads(line)["event"]["action"] for line in shown].count("started"), 2)
        proof = self.folder / "proof"
        self.ledge("audit", "prove", 2, "--out", proof)
        self.done("audit", "check-proof", proof, "--device", "box-1", "--state", self.state)
        entries = self.root / "audit/logs/1/tile/entries/000"
        entries.write_bytes(entries.read_bytes().replace(b"started", b"stopped", 1))
        self.verify("--full", status=TAMPERED)


if __name__ == "__main__":
    unittest.main()
