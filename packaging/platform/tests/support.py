"""What the tests share: a repository in a temporary folder, and the verbs as people type them."""
import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True

from ledge_platform import __main__ as program  # noqa: E402
from ledge_platform import files, fleets, moments  # noqa: E402
from ledge_platform.repository import Repository  # noqa: E402

MODEL_TOML = """\
release = "2.1.0"

[[output]]
name = "probabilities"
labels = "labels.txt"

[[golden]]
file = "golden/rows.json"
tolerance = 0.001
"""


PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"  # where Debian puts servers, which are not on every user's PATH
PACKAGES = {"nginx": "nginx-light", "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux",
            "setpriv": "util-linux", "systemd-sysusers": "systemd", "systemd-tmpfiles": "systemd",
            "systemd-analyze": "systemd", "sleep": "coreutils", "apt-ftparchive": "apt-utils", "apt-get": "apt",
            "createrepo_c": "createrepo-c", "dpkg-deb": "dpkg", "rpmsign": "rpm", "rpmbuild": "rpm", "systemd-nspawn": "systemd-container"}
REPOSITORY = HERE.parents[2]


def installed(name):
    """A program that the tests need. None is left out for want of one: what did not run would look like what passed."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise AssertionError(f"{name} is not installed: `tests/peers/setup`, or apt install {PACKAGES.get(name, name)}")
    return found


def ledge():
    """The daemon's program: LEDGE_BINARY, else what cargo built last in this checkout."""
    named = os.environ.get("LEDGE_BINARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
    built = [path for path in (target / "debug" / "ledge", target / "release" / "ledge") if path.is_file()]
    found = Path(named) if named else max(built, key=lambda path: path.stat().st_mtime, default=None)
    if found is None or not found.is_file():
        missing = f"LEDGE_BINARY={named} is no file" if named else f"there is no ledge in {target}"
        raise AssertionError(f"{missing}: `cargo build --locked` makes one, or set LEDGE_BINARY to one")
    return str(found.resolve())


def daemon_environment(**more):
    """The environment of a daemon without the variables of these tests: what begins like this is a setting of the daemon."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("LEDGE_")}, **more}


def bucket_server():
    """boto3 and moto's server, which packaging/platform/setup --test installs."""
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise AssertionError(f"{error.name} is not installed: packaging/platform/setup --s3 --test") from None
    return boto3, ThreadedMotoServer


def model_folder(parent, weights=b"weights", version=1):
    """A model folder as in a model repository. The kit does not load models, so its bytes may be anything."""
    folder = parent / f"model-{len(list(parent.iterdir()))}"
    (folder / str(version)).mkdir(parents=True)
    (folder / "golden").mkdir()
    (folder / str(version) / "model.onnx").write_bytes(weights)
    (folder / "model.toml").write_text(MODEL_TOML)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "golden" / "rows.json").write_text('{"inputs": [], "outputs": []}')
    (folder / "README.md").write_text("not for boxes\n")
    return folder


class Verbs(unittest.TestCase):
    """A folder for each test, and the verbs as people type them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ledge-platform-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def give_passphrase(self):
        """A passphrase for all keys, at little cost: test_repository.py sees to the cost that people get."""
        words = mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE": "open sesame, please"})
        words.start()
        self.addCleanup(words.stop)
        cost = mock.patch("ledge_platform.pkcs8.COST", 2**4)
        cost.start()
        self.addCleanup(cost.stop)

    def run_verb(self, *words):
        """(exit status, what was printed) of one verb."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                status = program.main([str(word) for word in words])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue()

    def done(self, *words):
        status, text = self.run_verb(*words)
        self.assertEqual(status, 0, text)
        return text

    def failed(self, says, *words, status=2):
        """Asserts that a verb ends badly, with one line that says why."""
        found, text = self.run_verb(*words)
        self.assertEqual(found, status, text)
        self.assertIn(says, text)
        self.assertEqual(len(text.strip().splitlines()), 1, text)

    def at(self, seconds):
        """The kit's clock, so many seconds from now."""
        moment = moments.after(moments.now(), seconds)
        return mock.patch("ledge_platform.moments.now", return_value=moment)


class Kit(Verbs):
    """A new repository `repo` for each test, its online keys in `online` and its offline keys in `offline`."""

    thresholds = ()  # of `repository init`

    def setUp(self):
        super().setUp()
        self.repo, self.online, self.offline = self.folder / "repo", self.folder / "online", self.folder / "offline"
        self.models = self.folder / "models"
        self.models.mkdir()
        self.give_passphrase()
        # The files of the library `onnx` are not there for a model of a few bytes.
        reader = mock.patch("ledge_platform.ports.of_onnx", return_value=None)
        self.of_onnx = reader.start()
        self.addCleanup(reader.stop)
        # Nor would `ledge` load it; test_goldens.py runs the real one.
        row = {"ok": True, "runtime": "onnxruntime", "load_ms": 1.0}
        for name, found in (("program", "ledge"), ("ask", ([row], 0, ""))):
            patched = mock.patch(f"ledge_platform.goldens.{name}", return_value=found)
            setattr(self, f"goldens_{name}", patched)
            patched.start()
            self.addCleanup(patched.stop)
        compared = mock.patch("ledge_platform.agreement.measure", return_value={"agreed": 10, "compared": 10})
        self.agreement_measured = compared
        compared.start()
        self.addCleanup(compared.stop)
        self.done("repository", "init", self.repo, "--keys", self.online, "--offline-keys", self.offline,
                  *(word for each in self.thresholds for word in ("--threshold", each)))

    def accepted(self):
        """Asserts that python-tuf's client takes the repository, and returns what `verify` says."""
        return self.done("verify", self.repo)

    def add(self, version=1, weights=None, *more, name="wine"):
        folder = model_folder(self.models, weights or b"weights %d" % version, version)
        return self.done(
            "model", "add", self.repo, name, version, folder, "--keys", self.online, "--keys", self.offline, *more
        )

    def start(self, rollout="r-1", target="models/wine/1", *more):
        return self.done(
            "rollout", "start", self.repo, "--id", rollout, "--target", target, "--keys", self.online, *more
        )

    def steer(self, action, *more):
        return self.done("rollout", action, self.repo, *more, "--keys", self.online)

    def killed_at_each_write(self, verb, check):
        """Runs VERB() once for each of its writes, killed there, with check() after each; it ends with its first whole run.

        VERB returns the words of one run, which begins in a copy of the repository as it is now.
        """
        real, before, kill = files.write, self.folder / "before", 0
        shutil.copytree(self.repo, before)
        while True:
            kill += 1
            writes = itertools.count(1)

            def write(*words, **more):
                if next(writes) == kill:
                    raise KeyboardInterrupt
                return real(*words, **more)

            with mock.patch("ledge_platform.files.write", write):
                status, text = self.run_verb(*verb())
            if status != 130:
                shutil.rmtree(before)
                return kill - 1, status, text
            check()
            shutil.rmtree(self.repo)
            shutil.copytree(before, self.repo)

    @property
    def repository(self):
        return Repository.open(self.repo)

    def manifest(self, fleet="default"):
        return fleets.load(self.repository, fleet).manifest

    def targets(self, role="models"):
        return self.repository.load(role).signed.targets


def document(device, rollout=None, **fields):
    """What a box reports of the subject models/wine."""
    entry = {"subject": "models/wine", "version": fields.get("version", 1), "digest": "00", "pinned": False,
             "stage": fields.get("stage", "idle"), "trial": None, "last": None}
    if fields.get("stage", "idle") != "idle":
        entry["trial"] = {"rollout": rollout, "version": 2, "since_s": 5, "held": False}
    elif rollout and "cause" in fields:
        entry["last"] = {
            "rollout": rollout,
            "version": 2,
            "result": "rolled_back",
            "stage": "staged",
            "cause": fields["cause"],
            "detail": "2 of 6 golden inputs answered right",
        }
    elif rollout:
        entry["last"] = {
            "rollout": rollout,
            "version": 2,
            "result": "committed",
            "stage": None,
            "cause": None,
            "detail": None,
        }
    return {
        "schema": 1,
        "device": device,
        "group": fields.get("group"),
        "fleet": fields.get("fleet"),
        "ledge_version": "0.1.0",
        "at": "2026-11-20T00:00:00Z",
        "health": "ok",
        "updates": {"checked": None, "error": None, "metadata": {"timestamp": 4}, "subjects": [entry]},
    }


def reported(device, *words, **fields):
    return json.dumps(document(device, *words, **fields)).encode()
