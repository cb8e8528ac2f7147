"""The image as docs/containers.md runs it: calls, other makers' clients, health, a kill, an upgrade, a stop under load."""
import http.client
import json
import os
import re
import subprocess
import sys
import time
import unittest

from podman import CHECKOUT, LEDGE, LIMIT, Box, Podman, fill_volume, free_port, kill, until

CLIENTS = CHECKOUT / "tests/peers/clients"
# The first answers of the golden files of both models.
PHOTOGRAPH, DOCUMENT = "models/efficientnet_lite0/golden/coffee.png", "models/document_reader/golden/receipt.png"
# Calls at a stop, of some 30 ms each.
CALLS = 100


def client(environment, script, *arguments, **variables):
    """A script of tests/peers/clients or tests/clients, which says "ok" in the end."""
    if environment == "tools/python-test":
        python, variables = sys.executable, {"PYTHONPATH": str(LEDGE / environment), **variables}
    else:
        python = LEDGE / environment / "bin/python3"
        assert python.exists(), f"{python} is missing: `make setup-{environment.rsplit('/')[-1]}` gets it"
    done = subprocess.run([python, "-B", script, *map(str, arguments)], env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("ok"), done.stdout + done.stderr


class Running(unittest.TestCase):
    def setUp(self):
        fill_volume(LEDGE / "test-models/slow")
        # Less than the --stop-timeout of the page, and enough for all calls on a busy machine.
        self.box = Box(Podman.loaded(os.environ["LEDGE_IMAGE"]), "[shutdown]\ngrace_ms = 50000\n")
        self.addCleanup(self.box.remove, volume=True)
        self.box.start()

    def answers(self):
        """A photograph and a document are answered rightly."""
        labels = self.box.infer("efficientnet_lite0", LEDGE / PHOTOGRAPH)["labels"]
        self.assertEqual(labels[0]["label"], "espresso", labels)
        self.assertIn("13.70", json.dumps(self.box.infer("document_reader", LEDGE / DOCUMENT)))

    def test_the_doctor_finds_the_container_in_order(self):
        report = json.loads(self.box.ledge("doctor", "--json").stdout)
        self.assertEqual([check for check in report["checks"] if check["status"] not in ("ok", "info")], [])

    def test_health_fails_while_the_daemon_does_not_answer(self):
        self.assertEqual(self.box.ledge("health").returncode, 0)
        Podman.podman("kill", "--signal", "STOP", Box.NAME)
        self.assertNotEqual(self.box.ledge("health", check=False).returncode, 0)
        Podman.podman("kill", "--signal", "CONT", Box.NAME)
        until("it answers again", lambda: self.box.ledge("health", check=False).returncode == 0)

    def test_a_killed_container_continues_with_its_state(self):
        before = self.box.ledge("keys", "list").stdout
        self.box.ledge("keys", "create", "till-7", "--role", "infer")
        kill(Box.NAME)
        self.box.wait_until_ready(starts=2)
        self.answers()
        self.assertNotIn("till-7", before)
        self.assertIn("till-7", self.box.ledge("keys", "list").stdout)
        self.box.ledge("audit", "verify")

    def test_a_newer_image_continues_with_the_volume(self):
        self.box.ledge("keys", "create", "till-7", "--role", "infer")
        self.box.remove()
        newer = Podman.loaded(os.environ["LEDGE_IMAGE_NEWER"])
        self.assertNotEqual(newer, self.box.image)
        self.box.image = newer
        self.box.start()
        self.answers()
        self.assertIn("till-7", self.box.ledge("keys", "list").stdout)
        self.box.ledge("audit", "verify")

    def test_a_stop_answers_the_calls_in_flight(self):
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}]})
        connections = [http.client.HTTPConnection("127.0.0.1", self.box.port, timeout=LIMIT) for _ in range(CALLS)]
        for connection in connections:
            connection.request("POST", "/v2/models/slow/infer", body)
        until("all calls wait or are answered", lambda: self.figure("queue_depth") + self.figure("inference_queue_duration_seconds_count") > CALLS - 4)
        waiting, started = self.figure("queue_depth"), time.monotonic()
        Podman.podman("stop", Box.NAME)
        print(f"stopped in {time.monotonic() - started:.1f} s with {waiting:.0f} of {CALLS} calls waiting", file=sys.stderr)
        self.assertGreater(waiting, 0)
        self.assertEqual([connection.getresponse().status for connection in connections], [200] * CALLS)
        self.assertEqual(Podman.podman("inspect", "--format", "{{.State.ExitCode}}", Box.NAME), "0")

    def figure(self, metric):
        """A metric of the model slow."""
        metrics = self.box.call("/metrics")[1].decode()
        return sum(float(value) for value in re.findall(rf'^ledge_{metric}\{{model="slow"[^}}]*\}} (\S+)$', metrics, re.MULTILINE))


class Clients(unittest.TestCase):
    """Clients of other makers, with the models that their scripts name."""

    def test_the_clients_of_triton_and_kserve_are_answered(self):
        fill_volume(*(LEDGE / "test-models" / name for name in ("add_sub", "identity_string")), LEDGE / "models/wine_mlp")
        box = Box(Podman.loaded(os.environ["LEDGE_IMAGE"]), '[repository]\npackaged = "/var/lib/ledge/none"\n[access]\nloopback = ["operator", "infer"]\n')
        self.addCleanup(box.remove, volume=True)
        box.start()
        http_address, grpc_address = f"127.0.0.1:{box.port}", f"127.0.0.1:{box.grpc_port}"
        client("tools/python-test", CHECKOUT / "tests/clients/triton_http.py", http_address)
        client("peers/kserve", CLIENTS / "kserve_http_calls.py", f"http://{http_address}")
        client("peers/kserve", CLIENTS / "kserve_grpc_calls.py", grpc_address)

        key = box.ledge("keys", "create", "client", "--role", "operator", "--role", "infer").stdout.split()[-1]
        box.remove()
        box.settings.write_text(box.settings.read_text().replace('["operator", "infer"]', "[]"))
        box.start()
        client("peers/grpc", CLIENTS / "triton_grpc_calls.py", grpc_address, key)


class Messages(unittest.TestCase):
    """Ledge and mosquitto, each in a container, in one pod."""

    def test_a_client_of_mqtt_is_answered_before_and_after_a_kill_of_either(self):
        port = free_port()
        broker = Podman.podman("import", "--quiet", Podman.shared(LEDGE / "peers/kubernetes-tools/mosquitto.tar"), "localhost/mosquitto")
        configuration = Podman.folder / "share/mosquitto.conf"
        configuration.write_text("listener 1883\nallow_anonymous true\n")
        fill_volume(LEDGE / "test-models/add_sub")
        box = Box(Podman.loaded(os.environ["LEDGE_IMAGE"]), '[device]\nid = "box"\n[mqtt]\nbroker = "mqtt://127.0.0.1"\n', network=("--pod", "till"))
        self.addCleanup(Podman.podman, "volume", "rm", "--force", "ledge-state")
        Podman.podman("pod", "create", "--name", "till", "-p", f"127.0.0.1:{port}:1883")
        self.addCleanup(Podman.podman, "pod", "rm", "--force", "--time", "60", "till")
        Podman.podman(
            "run", "-d", "--name", "broker", "--pod", "till", "--read-only", "--cap-drop=all", "--security-opt", "no-new-privileges", "--user", "1883:1883",
            "-v", f"{configuration}:/mosquitto.conf:ro", broker, "/usr/sbin/mosquitto", "-c", "/mosquitto.conf")
        Podman.run(*box.command())

        for killed in (None, "broker", Box.NAME):
            if killed:
                kill(killed)
            box.wait_until_ready(starts=2 if killed == Box.NAME else 1)
            online = ["mosquitto_sub", "-p", port, "-t", "ledge/v1/box/online", "-C", "1", "-W", "5", "-F", "%p"]
            until("the broker has the box", lambda: Podman.run(*online, check=False).stdout.strip() == "online")
            client("tools/python-test", CLIENTS / "paho_calls.py", port, CHECKOUT / "tests/data/photos/chelsea.jpg")


if __name__ == "__main__":
    unittest.main()
