"""A publication that is killed: at every point the clients take what is there, and the next publication ends it."""
import os
import shutil
import signal
import subprocess
import sys
import unittest
from unittest import mock

from packages import Apt, Dnf, Packages, deb, rpm
from support import HERE

# Sends itself a signal instead of the Nth change of a name in the repository; without a number it prints how many there are.
KILLED = """\
import os, signal, sys
from pathlib import Path
from ledge_platform import __main__ as program

last, done = int(sys.argv[1]), 0

def counted(change):
    def changing(source, place, **more):
        global done
        if str(place).startswith(sys.argv[2]):
            done += 1
            if done == last:
                os.kill(os.getpid(), int(sys.argv[3]))
        return change(source, place, **more)
    return changing

os.replace, os.rename, Path.symlink_to = (counted(change) for change in (os.replace, os.rename, Path.symlink_to))
status = program.main(sys.argv[4:])
print(done)
sys.exit(status)
"""


class Kills(Packages):
    def setUp(self):
        super().setUp()
        # What a killed program leaves is removed with this folder.
        self.memory = self.folder / "memory"
        self.memory.mkdir()
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(self.memory), "PYTHONPATH": str(HERE.parent)}))

    def killed(self, point, *words, by=signal.SIGKILL):
        """(exit status, what was printed) of a verb that is killed at its POINTth change."""
        arguments = map(str, (point, self.repo, int(by), *words))
        done = subprocess.run([sys.executable, "-B", "-c", KILLED, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def clients(self, name):
        return [Apt(self.folder / f"apt-{name}", self.repo / "ledge.sources"),
                Dnf(self.folder / f"dnf-{name}", self.repo / "ledge.repo")]

    def test_killed_at_any_point_it_is_accepted_and_continued(self):
        self.publish_tiny()
        olds = self.clients("old")
        self.assertEqual([client.version() for client in olds], ["1.0-1", "1.0-1"])
        self.add(deb(self.folder, "1.1-1"), rpm(self.folder, "1.1-1"))
        before, words = self.folder / "before", ("package", "publish", self.repo, "--keys", self.keys)
        shutil.copytree(self.repo, before, symlinks=True)
        status, text = self.killed(0, *words)
        self.assertEqual(status, 0, text)
        points = int(text.splitlines()[-1])
        self.assertGreater(points, 20)

        seen = set()
        for point in range(1, points + 1, 2):
            with self.subTest(point=point):
                shutil.rmtree(self.repo)
                shutil.copytree(before, self.repo, symlinks=True)
                status, text = self.killed(point, *words)
                self.assertEqual(status, -signal.SIGKILL, text)
                apt, dnf = self.clients(point)
                versions = apt.version(), dnf.version()
                seen.add(versions)
                self.assertEqual(olds[0].version(), versions[0])
                self.publish()
                self.assertEqual((apt.version(), dnf.version()), ("1.1-1", "1.1-1"))
                shutil.rmtree(apt.folder)
                shutil.rmtree(dnf.folder, ignore_errors=True)
        # The points lie on both sides of either moment.
        self.assertEqual(seen, {("1.0-1", "1.0-1"), ("1.1-1", "1.0-1"), ("1.1-1", "1.1-1")})

    def test_killed_in_a_rotation_it_is_continued(self):
        self.publish_tiny()
        words = ("package", "rotate", self.repo, "--keys", self.keys)
        self.done(*words)
        status, text = self.killed(3, *words, "--finish")
        self.assertEqual(status, -signal.SIGKILL, text)
        self.publish()
        self.assertEqual([client.version() for client in self.clients("new")], ["1.0-1", "1.0-1"])

    def test_ended_by_a_signal_it_leaves_no_private_key(self):
        self.publish_tiny()
        status, text = self.killed(10, "package", "publish", self.repo, "--keys", self.keys, by=signal.SIGTERM)
        self.assertEqual(status, 128 + signal.SIGTERM, text)
        self.assertEqual(list(self.memory.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
