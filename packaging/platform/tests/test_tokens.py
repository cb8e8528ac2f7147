"""Keys in PKCS #11 tokens, of SoftHSM 2: a token is one of the three holders, and its PIN is tried once."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from support import Kit, Verbs, daemon_environment, installed, ledge, model_folder

from ledge_platform import tokens
from ledge_platform.errors import Failure

PIN, WRONG, SO_PIN = "135790", "246801", "87654321"
MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so", "/usr/lib64/softhsm/libsofthsm2.so")
scratch = None


def setUpModule():
    """A process loads a module once, so all tests share the folder of its tokens."""
    global scratch
    scratch = tempfile.TemporaryDirectory(prefix="ledge-platform-tokens-")
    Path(scratch.name, "tokens").mkdir()
    Path(scratch.name, "conf").write_text(f"directories.tokendir = {scratch.name}/tokens\nobjectstore.backend = file\n")


def tearDownModule():
    scratch.cleanup()


class Tokens:
    """Tokens as a holder has them, all out at first."""

    def prepare_tokens(self):
        found = [path for path in MODULES if Path(path).exists()]
        if not found:
            raise AssertionError("the module of SoftHSM 2 is not installed: `tests/peers/setup`, or apt install softhsm2")
        environment = {"SOFTHSM2_CONF": f"{scratch.name}/conf", "PYKCS11LIB": found[0], "LEDGE_PLATFORM_PIN": PIN}
        patched = mock.patch.dict(os.environ, environment)
        patched.start()
        self.addCleanup(patched.stop)
        self.take_out()

    def take_out(self):
        for path in Path(scratch.name, "tokens").iterdir():
            shutil.rmtree(path)
        self.look_again()

    def look_again(self):
        tokens.library()[1].reinitialize()

    def token(self, label):
        self.softhsm("--init-token", "--free", "--label", label, "--pin", PIN, "--so-pin", SO_PIN)

    def softhsm(self, *words):
        subprocess.run([installed("softhsm2-util"), *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)
        self.look_again()

    def brought(self, label, private, number="02"):
        """A key that was made elsewhere and put into a token."""
        file = self.folder / "private.pem"
        file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.softhsm("--import", file, "--token", label, "--label", "key", "--id", number, "--pin", PIN)


class Importing(Tokens, Verbs):
    def setUp(self):
        super().setUp()
        self.prepare_tokens()
        self.holder = self.folder / "anna"

    def bring(self, *more):
        return "key", "import-token", "anna", "--keys", self.holder, *more

    def failed_without_files(self, says, *words):
        self.failed(says, *words)
        self.assertFalse(self.holder.exists())

    def test_a_key_is_made_in_a_token_or_taken_from_one(self):
        self.token("anna's stick")
        self.done("key", "generate", "anna", "--keys", self.holder, "--token", "anna's stick")
        self.assertEqual((self.holder / "anna.hsm").read_text(), "hsm:2?label=anna%27s+stick\n")
        self.assertEqual(sorted(path.name for path in self.holder.iterdir()), ["anna.hsm", "anna.pub.pem"])
        public = (self.holder / "anna.pub.pem").read_text()
        self.failed("a key is never overwritten", *self.bring())
        self.failed("has a key 2 already", "key", "generate", "ben", "--keys", self.holder, "--token", "anna's stick")
        shutil.rmtree(self.holder)
        self.done(*self.bring())
        self.assertEqual((self.holder / "anna.pub.pem").read_text(), public)

    def test_what_is_missing_is_said(self):
        self.failed_without_files("no token is here", *self.bring())
        self.token("anna")
        self.failed_without_files("the token 'ben' is not here (there is: 'anna')", *self.bring("--token", "ben"))
        self.failed_without_files("the token 'anna': could not find ECDSA key", *self.bring())
        with mock.patch.dict(os.environ, {"PYKCS11LIB": "/nonexistent.so"}):
            self.failed_without_files("the PKCS #11 module /nonexistent.so (PYKCS11LIB) cannot be used", *self.bring())
        with mock.patch.dict(os.environ):
            del os.environ["PYKCS11LIB"]
            self.failed_without_files("set PYKCS11LIB to the PKCS #11 module", *self.bring())
        with mock.patch.dict(sys.modules, {"pkcs11": None}):
            self.failed_without_files("`packaging/platform/setup --pkcs11`", *self.bring())

    def test_of_several_tokens_one_is_named(self):
        self.token("anna")
        self.token("ben")
        self.failed_without_files("there are several tokens ('anna', 'ben'): name one with --token", *self.bring())
        self.token("anna")
        self.failed_without_files("there are 2 tokens called 'anna': leave one in", *self.bring("--token", "anna"))

    def test_boxes_accept_p_256_only(self):
        self.token("anna")
        self.brought("anna", ec.generate_private_key(ec.SECP384R1()))
        self.failed_without_files("key 2 is not an ECDSA P-256 key, which boxes accept", *self.bring())
        self.brought("anna", rsa.generate_private_key(65537, 2048), "03")
        self.failed_without_files("could not find ECDSA key", *self.bring("--id", "3"))
        self.brought("anna", ec.generate_private_key(ec.SECP256R1()), "0a")
        self.done(*self.bring("--id", "10"))

    def test_a_wrong_pin_is_tried_once_and_one_from_the_environment_not_again(self):
        self.token("anna")
        self.brought("anna", ec.generate_private_key(ec.SECP256R1()))
        opened = []
        real = tokens.Session.__enter__
        with mock.patch.object(tokens.Session, "__enter__", lambda session: opened.append(1) or real(session)):
            with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PIN": WRONG}):
                status, text = self.run_verb(*self.bring())
                self.assertEqual((status, len(opened)), (2, 1), text)
                self.assertIn("the PIN is wrong. It was tried once", text)
                self.assertNotIn(WRONG, text)
            for pin in (WRONG, PIN):
                with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PIN": pin}):
                    self.failed_without_files("the last PIN of the token 'anna' was wrong", *self.bring())
            self.assertEqual(len(opened), 1)
            # A person may try again; the right PIN clears the count.
            with mock.patch.dict(os.environ), mock.patch("sys.stdin.isatty", return_value=True), \
                    mock.patch("getpass.getpass", return_value=PIN):
                del os.environ["LEDGE_PLATFORM_PIN"]
                self.done(*self.bring())
        shutil.rmtree(self.holder)
        self.done(*self.bring())

    def test_a_locked_token_is_not_tried(self):
        from pkcs11 import PinLocked, TokenFlag
        locked = SimpleNamespace(label="anna", flags=TokenFlag.USER_PIN_LOCKED)
        with self.assertRaisesRegex(Failure, "the token 'anna' is locked: its PIN was wrong too often"):
            tokens.pin_of(locked, "anna")
        with self.assertRaisesRegex(Failure, "the token 'anna': it is locked"), tokens.Errors(locked):
            raise PinLocked
        last = SimpleNamespace(label="anna", flags=TokenFlag.USER_PIN_FINAL_TRY)
        with self.assertRaisesRegex(Failure, "type the PIN of anna"):
            tokens.pin_of(last, "anna")

    def test_the_pin_of_a_key_goes_before_the_general_one_and_is_asked_for_otherwise(self):
        self.token("anna")
        self.brought("anna", ec.generate_private_key(ec.SECP256R1()))
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PIN": WRONG, "LEDGE_PLATFORM_PIN_ANNA": PIN}):
            self.done(*self.bring())
        shutil.rmtree(self.holder)
        with mock.patch.dict(os.environ):
            del os.environ["LEDGE_PLATFORM_PIN"]
            with mock.patch("sys.stdin.isatty", return_value=False):
                self.failed_without_files(
                    "the key anna is under a PIN: set LEDGE_PLATFORM_PIN_ANNA or LEDGE_PLATFORM_PIN", *self.bring())

    def test_a_file_that_names_no_token_is_refused(self):
        self.holder.mkdir()
        for content in (b"", b"hsm:2", b"hsm:x?label=a", b"file:/etc/passwd", b"hsm:2?label=\xff", b"hsm:2?label=a\nhsm:3?label=b"):
            (self.holder / "anna.hsm").write_bytes(content)
            with self.assertRaisesRegex(Failure, "names no key of a token"):
                tokens.read(self.holder / "anna.hsm")


class Platform(Tokens, Kit):
    def setUp(self):
        super().setUp()
        self.prepare_tokens()
        self.token("anna")
        self.anna, self.ben = self.folder / "anna", self.folder / "ben"
        self.done("key", "generate", "anna", "--keys", self.anna, "--token", "anna")
        self.done("key", "generate", "ben", "--keys", self.ben)

    def two_of_three(self, role):
        public = [word for name in ("anna", "ben") for word in ("--public", self.folder / name / f"{name}.pub.pem")]
        words = "key", "threshold", self.repo, role, "2/3", *public, "--keys", self.online, "--keys", self.offline
        return self.done(*words, "--keys", self.anna)

    def stage(self, version=1, *folders):
        words = "model", "add", self.repo, "wine", version, model_folder(self.models, version=version)
        status, text = self.run_verb(*words, *(word for folder in folders for word in ("--keys", folder)))
        self.assertEqual(status, 1, text)
        return text


class Signing(Platform):
    def test_a_token_is_one_of_three_keys_of_each_role(self):
        for role in ("models", "targets", "packages"):
            self.two_of_three(role)
            self.accepted()
        self.stage(1, self.anna)
        self.done("sign", self.repo, "models", "--yes", "--keys", self.ben, "--keys", self.online)
        self.stage(2, self.ben)
        text = self.done("sign", self.repo, "models", "--yes", "--keys", self.anna, "--keys", self.online)
        self.assertIn("models 4 is complete", text)
        self.assertIn("2 releases", self.accepted())
        signed = {signature.keyid for signature in self.repository.load("models").signatures.values()}
        kinds = sorted(self.repository.delegation("models")[0][keyid].keytype for keyid in signed)
        self.assertEqual(kinds, ["ecdsa", "ed25519"])

    def test_a_version_that_waits_may_name_a_key_in_a_token(self):
        self.two_of_three("targets")
        self.two_of_three("models")
        status, text = self.run_verb("key", "threshold", self.repo, "models", "1/3", "--keys", self.anna)
        self.assertEqual(status, 1, text)
        text = self.done("sign", self.repo, "targets", "--yes", "--keys", self.ben, "--keys", self.online)
        self.assertIn("CHANGED models is signed by 1 of 3 keys (before: 2 of 3)", text)
        self.accepted()

    def test_a_token_is_one_of_the_root_keys(self):
        words = "key", "rotate", self.repo, "root3", "--public", self.anna / "anna.pub.pem"
        self.done(*words, "--keys", self.offline, "--keys", self.online)
        self.accepted()
        for half in ("root2.pem", "root2.pub.pem"):
            (self.offline / half).unlink()
        self.done("renew", self.repo, "root", "--keys", self.offline, "--keys", self.online, "--keys", self.anna)
        self.accepted()

    def test_without_its_token_a_key_is_not_here_and_others_sign(self):
        self.two_of_three("models")
        self.take_out()
        absent = "in the token 'anna': the token 'anna' is not here (there is: none)"
        self.assertIn(absent, self.done("key", "list", self.repo, "--keys", self.anna))
        self.failed(absent, "renew", self.repo, "models", "--keys", self.anna)
        self.stage(1, self.anna, self.ben)
        self.done("sign", self.repo, "models", "--yes", "--keys", self.offline, "--keys", self.online, "--keys", self.anna)
        self.assertIn("1 releases", self.accepted())

    def test_a_wrong_pin_changes_nothing(self):
        self.two_of_three("models")
        self.stage(1, self.ben)
        before = {path: path.read_bytes() for path in self.repo.rglob("*.json")}
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PIN": WRONG}):
            status, text = self.run_verb("sign", self.repo, "models", "--yes", "--keys", self.anna)
        self.assertEqual(status, 2)
        self.assertIn("the PIN is wrong", text)
        self.assertNotIn(WRONG, text)
        self.assertEqual({path: path.read_bytes() for path in self.repo.rglob("*.json")}, before)

    def test_another_token_of_the_same_name_signs_nothing(self):
        self.two_of_three("models")
        self.take_out()
        self.token("anna")
        self.brought("anna", ec.generate_private_key(ec.SECP256R1()))
        text = self.run_verb("renew", self.repo, "models", "--keys", self.anna)[1]
        self.assertIn("its key 2 is not the one of the public half", text)
        self.assertFalse((self.repo / "staged").exists() and list((self.repo / "staged").glob("*.json")))


class RealBox(Platform):
    """The daemon itself, which looks into the folder of the repository."""

    def box(self):
        box = self.folder / "box"
        (box / "models").mkdir(parents=True)
        (box / "ledge.toml").write_text(
            f'[device]\nid = "box-1"\n[http]\nlisten = ["unix:{box}/ledge.sock"]\n'
            f'[updates]\nrepository = "file://{self.repo}"\nroot_file = "{self.repo}/metadata/1.root.json"\n'
            'min_free_mb = 0\npoll_interval_s = 3600\n')
        with open(self.log, "w") as file:
            daemon = subprocess.Popen(
                [ledge(), "serve", "--root", box], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=daemon_environment())
        self.addCleanup(daemon.wait, 30)
        self.addCleanup(daemon.terminate)
        self.until((box / "ledge.sock").exists)
        return box

    def until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline, self.log.read_text())
            time.sleep(0.1)

    @property
    def log(self):
        return self.folder / "ledge.log"

    def check(self, box):
        """(exit status, what it says) of a look into the repository."""
        done = subprocess.run([ledge(), "update", "check", "--root", box], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=daemon_environment())
        return done.returncode, done.stdout + done.stderr

    def trusted(self, box):
        """{role: version} of the metadata that the box trusts."""
        done = subprocess.run([ledge(), "update", "trust", "--json", "--root", box], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=daemon_environment(), check=True)
        return {role: found["version"] for role, found in json.loads(done.stdout)["roles"].items()}

    def test_it_takes_what_a_token_and_a_file_signed_and_nothing_that_one_key_signed(self):
        for role in ("targets", "models"):
            self.two_of_three(role)
        self.stage(1, self.anna)
        self.done("sign", self.repo, "models", "--yes", "--keys", self.ben, "--keys", self.online)
        self.start("r-1", "models/wine/1", "--waves", "all")  # for which the box fetches what models signed
        box = self.box()
        status, text = self.check(box)
        self.assertEqual(status, 0, text)
        self.until(lambda: "models" in self.trusted(box))
        before = self.trusted(box)
        self.assertEqual((before["root"], before["targets"], before["models"]), (2, 3, 3), before)

        # The thief of one key and of everything on the platform's machine.
        self.stage(2, self.anna)
        shutil.copy(self.repo / "staged" / "4.models.json", self.repo / "metadata" / "4.models.json")
        shutil.copytree(self.repo / "staged" / "targets", self.repo / "targets", dirs_exist_ok=True)
        with mock.patch("ledge_platform.repository.Repository.is_signed", return_value=True):
            self.start("r-2", "models/wine/2", "--waves", "all")
        self.check(box)
        self.until(lambda: '"action":"metadata_refused","cause":"signature"' in self.log.read_text())
        self.assertIn("signature threshold not met for role models: 1/2", self.log.read_text())
        self.assertEqual(self.trusted(box)["models"], 3)

        # What the second holder signs, boxes take again.
        (self.repo / "metadata" / "4.models.json").unlink()
        self.done("renew", self.repo, "models", "--keys", self.ben, "--keys", self.anna, "--keys", self.online)
        self.check(box)
        self.until(lambda: '"action":"metadata_accepted","role":"models","version":4' in self.log.read_text())


if __name__ == "__main__":
    unittest.main()
