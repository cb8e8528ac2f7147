"""A hostile process of models in the container: what it attempts, under the lists of system calls of several engines.

The model "faulty" attacks when its input asks for it (src/isolation/child/faults.rs), as in tests/it/isolation.rs.
"""
import contextlib
import errno
import json
import os
import socket
import unittest

from podman import LEDGE, LIMIT, Box, Podman, fill_volume, until

# The list that Podman's package installs.
PODMANS_LIST = "/usr/share/containers/seccomp.json"
# Numbers of a call of wine_mlp.
NUMBERS = 13 * 4
# What a process of models could want: the state, the keys of callers in it, and a way to the daemon.
STATE = "/var/lib/ledge/device-id"
# Copies of models, and their compiled forms.
OWN_FILES = "/var/lib/ledge/cache/"
ATTEMPTS_MIN = 50
ATTEMPTS = (
    "read a file outside", "truncate a file outside without access", "list /", "mem of its parent", "environ of its parent", "signal its parent",
    "signal process 1", "make a socket", "abstract socket", "user namespace", "mount namespace", "change a mount", "more threads", "programs",
    "another program")


def list_of_calls(name, *denied):
    """Podman's list without some system calls, which are answered as Docker answers them."""
    with open(PODMANS_LIST) as file:
        rules = {**json.load(file), "defaultErrno": "EPERM", "defaultErrnoRet": errno.EPERM}
    for rule in rules["syscalls"]:
        rule["names"] = [call for call in rule["names"] if call not in denied or rule["action"] != "SCMP_ACT_ALLOW"]
    file = Podman.folder / "share" / f"{name}.json"
    file.write_text(json.dumps(rules))
    return ["--security-opt", f"seccomp={file}"]


class Attacks(unittest.TestCase):
    def start(self, *options):
        wine = Podman.shared(LEDGE / "models/wine_mlp", "healthy")
        fill_volume(wine, Podman.shared(wine, "faulty"))
        self.box = Box(Podman.loaded(os.environ["LEDGE_IMAGE"]), '[log]\nformat = "json"\n', options)
        self.addCleanup(self.box.remove, volume=True)
        self.box.start()

    def attack(self, order):
        head = json.dumps({"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 13], "parameters": {"binary_data_size": NUMBERS}}]})
        assert len(order) <= NUMBERS, f"{order} is too long"
        return self.box.call("/v2/models/faulty/infer", head.encode() + order.ljust(NUMBERS, b"\0"), Inference_Header_Content_Length=str(len(head)))

    def said(self, message):
        """The lines of JSON with this message that processes of models wrote to their standard error."""
        lines = []
        for line in self.box.log().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                said = json.loads(entry["said"]) if entry.get("process") == "worker" and "said" in entry else {}
                if said.get("message") == message:
                    lines.append(said)
        return lines

    def seal(self):
        report = json.loads(self.box.ledge("doctor", "--json", check=False).stdout)
        found, = (check for check in report["checks"] if check["name"] == "seal of models")
        return found

    def all_attempts_are_denied(self):
        with socket.socket(socket.AF_UNIX) as outside:
            # The container has the network of the machine, and so its abstract sockets.
            outside.bind(b"\0" + STATE.encode())
            outside.listen()
            status, answer = self.attack(b"!FAULT:p" + STATE.encode())
            self.assertEqual(status, 200, answer)
            until("all is attempted", lambda: self.said("probed"))
        attempts = self.said("probe")
        self.assertGreater(len(attempts), ATTEMPTS_MIN, "the program has no fault-injection" if not attempts else attempts)
        self.assertEqual([attempt for attempt in attempts if "denied" not in attempt["outcome"]], [])
        for words in ATTEMPTS:
            self.assertTrue(any(words in attempt["attempt"] for attempt in attempts), f"no attempt of {words}: {attempts}")

    def test_under_podmans_list_every_mechanism_is_in_force_and_every_attempt_is_denied(self):
        self.start()
        self.all_attempts_are_denied()
        found = self.seal()
        # An older kernel has fewer rules of Landlock, which is for information.
        self.assertIn(found["status"], ("ok", "info"), found)
        self.assertNotIn("namespace", found["detail"])

    def test_under_a_list_without_namespaces_as_dockers_every_attempt_is_denied(self):
        self.start(*list_of_calls("dockers", "unshare", "setns", "mount", "umount", "umount2"), "--ulimit", "nproc=2048")
        self.all_attempts_are_denied()
        found = self.seal()
        self.assertEqual(found["status"], "info", found)
        self.assertIn("user namespace", found["detail"])

    def test_under_a_list_without_landlock_the_doctor_warns(self):
        self.start(*list_of_calls("old", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"))
        found = self.seal()
        self.assertEqual(found["status"], "warn", found)
        self.assertIn("andlock", found["detail"])

    def test_under_a_list_without_the_handles_of_processes_no_model_runs_and_the_doctor_names_the_call(self):
        for call in ("pidfd_open", "pidfd_send_signal"):
            with self.subTest(call):
                fill_volume()
                box = Box(Podman.loaded(os.environ["LEDGE_IMAGE"]), options=list_of_calls(call, call))
                self.addCleanup(box.remove, volume=True)
                Podman.run(*box.command())
                until("the daemon lives", lambda: box.ledge("health", check=False).returncode == 0)
                report = Podman.run("timeout", LIMIT, "podman", "exec", Box.NAME, "/usr/bin/ledge", "doctor", "--json", check=False)
                self.assertEqual(report.returncode, 1, report.stderr)
                found, = (check for check in json.loads(report.stdout)["checks"] if check["name"] == "seal of models")
                self.assertEqual(found["status"], "fail", found)
                self.assertIn(f"{call}: ", found["detail"])
                self.assertNotEqual(box.ledge("health", "--ready", check=False).returncode, 0)
                box.remove(volume=True)

    def test_its_open_files_are_none_of_the_daemons(self):
        self.start()
        self.assertEqual(self.attack(b"!FAULT:d")[0], 200)
        until("its files are listed", lambda: self.said("files"))
        targets = [file["target"] for file in self.said("file")]
        self.assertGreater(len(targets), 3)
        daemons = ("/var/lib/ledge/", "/run/ledge/", "/etc/ledge/")
        self.assertEqual([target for target in targets if target.startswith(daemons) and not target.startswith(OWN_FILES)], [])

    def test_threads_without_end_leave_the_daemon_and_other_models_their_own(self):
        self.start()
        self.assertEqual(self.attack(b"!FAULT:t")[0], 200)
        until("it has its threads", lambda: self.said("threads"))
        self.assertEqual(self.box.ledge("health", "--ready").returncode, 0)
        self.box.infer("efficientnet_lite0", LEDGE / "models/efficientnet_lite0/golden/coffee.png")


if __name__ == "__main__":
    unittest.main()
