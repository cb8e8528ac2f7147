"""The script of docs/fleet.md, with fifty real boxes on this machine: members, a rollout in three waves, one box stolen, one lost.

Programs that stand in for others make a trial of it: `ledge-platform` adds the root and the ports, `scp` and `ssh` reach
boxes that are folders, `systemctl` starts what the units of `init` name, and timers fire every few seconds.
"""
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from real import RUNTIMES, RealBox, end
from sites import Client, Site, answers, free_port, until
from support import REPOSITORY, Verbs, daemon_environment, installed, ledge

from ledge_platform import waves
from ledge_platform.boxes.store import Store
from ledge_platform.site.layout import Layout

sys.path.append(str(REPOSITORY / "tests"))
from pages import fences  # noqa: E402

COUNT, STOLEN, LOST = 50, "shop-13", "shop-37"
LINES_MAX = 15
MODEL = REPOSITORY / ".ledge/test-models/release_good"
# Seconds between two runs of a timer, and of the others as well when they would fire in the hour of the script.
TIMERS = {"boxes": 5, "servers": 10, "page": 30, "refresh": 60, "quota": 60}
LONGEST_S = 3_600


class Fifty(Site):
    def setUp(self):
        Verbs.setUp(self)
        self.root, self.ports, self.servers = self.folder / "root", (free_port(), free_port()), {}
        self.layout, self.stick, self.began = Layout(self.root), self.folder / "stick", time.monotonic()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        shutil.copytree(MODEL, self.folder / "minilm")
        self.stand_in()
        self.environment = daemon_environment(
            PATH=f"{self.bin}:{os.environ['PATH']}:/usr/sbin:/sbin", PYTHONPATH=str(REPOSITORY / "packaging/platform"),
            LEDGE_PLATFORM_PASSPHRASE="open sesame, please", ORT_DISABLE_TELEMETRY="1")
        self.boxes = {}
        for number in range(1, COUNT + 1):
            name = f"shop-{number:02}"
            self.boxes[name] = box = RealBox(self.folder / "boxes" / name)
            self.addCleanup(self.kill, box)

    # --- programs that stand in for others ---

    def stand_in(self):
        """Programs for a PATH."""
        here, python = self.folder, sys.executable
        self.program("ledge-platform", f"""
case "$1" in
  init) options="--root {self.root} --https-port {self.ports[0]} --mqtt-port {self.ports[1]} --address 127.0.0.1";;
  box | hint | fleet | doctor) options="--root {self.root}";;
  *) options=;;
esac
[ "$1" = init ] || exec {python} -B -m ledge_platform "$@" $options
{python} -B -m ledge_platform "$@" $options || exit
# The servers and timers run once `init` has ended.
touch {here}/initialized
until [ -e {here}/serving ]; do sleep 0.1; done
""")
        self.program("ledge", f'exec {ledge()} --set runtimes.dir={RUNTIMES} "$@"\n')
        self.program("runuser", 'shift 3\nexec "$@"\n')
        self.program("scp", f'box=${{2#admin@}}\nexec cp "$1" "{here}/boxes/${{box%:}}/"\n')
        # As the service: it is started again when the box has joined.
        self.program("ssh", f"""
box={here}/boxes/${{1#admin@}}
shift 3
cd "$box" && {ledge()} "$@" --root "$box" || exit
kill "$(cat "$box.pid")"
until grep -qs "^State:.Z" "/proc/$(cat "$box.pid")/status" || [ ! -e "/proc/$(cat "$box.pid")" ]; do sleep 0.05; done
{ledge()} serve --root "$box" < /dev/null >> "$box.log" 2>&1 &
echo $! > "$box.pid"
""")
        self.program("systemctl", f"""
echo "$*" >> {here}/systemctl.log
case "$*" in
  "is-active --quiet "*) exit 0;;
  "start ledge-watch@"*)
    rollout=${{2#ledge-watch@}}
    command=$(sed -n "s/^ExecStart=[^ ]*/ledge-platform/p" "{self.layout.units}/ledge-watch@.service" | sed "s/%i/$rollout/")
    $command < /dev/null > {here}/watch.log 2>&1 &
    echo $! > {here}/watch.pid
    exit 0;;
  "reload ledge-platform-web.service") exec {installed("nginx")} -e stderr -c {self.layout.nginx_conf} -s reload;;
  "reload ledge-platform-broker.service") exec kill -HUP "$(cat {here}/mosquitto.pid)";;
  "restart ledge-platform-broker.service") exec kill -TERM "$(cat {here}/mosquitto.pid)";;
esac
exit 4
""")

    def program(self, name, script):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)

    def run_box(self, box):
        log = open(box.log_file, "a")
        process = subprocess.Popen([ledge(), "serve", "--root", box.root], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env=daemon_environment())
        log.close()
        box.daemon = process
        self.pid_file(box).write_text(f"{process.pid}\n")

    def pid_file(self, box):
        return box.root.with_name(box.root.name + ".pid")

    def pid(self, box):
        return int(self.pid_file(box).read_text())

    def kill(self, box):
        kill(self.pid_file(box))
        if box.daemon:
            box.daemon.wait(30)

    # --- what systemd does ---

    def serve(self):
        """The servers and the timers, from the end of `init` on."""
        marker = self.folder / "initialized"
        until(lambda: marker.exists() or self.script.poll() is not None, "init does not end", log=self.output)
        if not marker.exists():
            return
        for name in ("nginx", "mosquitto"):
            self.start(name)
        (self.folder / "mosquitto.pid").write_text(f"{self.servers['mosquitto'].pid}\n")
        (self.folder / "serving").touch()
        due = dict.fromkeys(TIMERS, 0.0)
        while not self.ended.is_set():
            if self.servers["mosquitto"].poll() is not None:
                self.start("mosquitto")
                (self.folder / "mosquitto.pid").write_text(f"{self.servers['mosquitto'].pid}\n")
            for name, at in due.items():
                if time.monotonic() >= at:
                    self.run_unit(name)
                    due[name] = time.monotonic() + TIMERS[name]
            self.ended.wait(0.5)

    def run_unit(self, name):
        text = (self.layout.units / f"ledge-platform-{name}.service").read_text()
        words = re.search(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE)[1].split()
        done = subprocess.run([sys.executable, "-B", "-m", "ledge_platform", *words], env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.runs[name] = self.runs.get(name, 0) + 1
        with open(self.folder / "timers.log", "a") as log:
            log.write(f"{time.monotonic() - self.began:.1f} s {name}: {done.returncode} {done.stdout.strip()}\n")
        if done.returncode:
            self.faults.append(f"{name}: {done.stdout}")

    # --- the page ---

    def script_of_page(self):
        """The script with the roots of this test: everything else is as the page has it."""
        script, = fences("docs/fleet.md", "The script", "sh")
        thieves, = [fence for fence in fences("docs/fleet.md", "When a box is stolen or lost", "sh")]
        commands = [line for line in script.replace("\\\n", " ").splitlines() if line.strip()]
        commands += [line for line in thieves.splitlines() if line.strip()]
        self.assertLessEqual(len(commands), LINES_MAX + 2)
        self.assertLessEqual(len((REPOSITORY / "docs/fleet.md").read_text().splitlines()), 120)
        return self.trial(script), self.trial(thieves)

    def trial(self, script):
        for ours, theirs in (("/media/stick", self.stick), ("/srv/ledge", self.layout.repository),
                             ("/etc/ledge-platform", self.layout.etc), ("/root", self.folder / "join files"),
                             ("platform.example.com", "localhost")):
            script = re.sub(rf"(?<![\w/.]){re.escape(ours)}(?![\w-])", str(theirs).replace(" ", "\\ "), script)
        return script

    def typed(self, script):
        """Starts commands of the page, each of which must succeed."""
        with open(self.output, "a") as log:
            return subprocess.Popen(["sh", "-eux", "-c", script], cwd=self.folder, env=self.environment,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def test_the_page(self):
        script, thieves = self.script_of_page()
        (self.folder / "join files").mkdir()
        self.output, self.ended, self.runs, self.faults = self.folder / "script.log", threading.Event(), {}, []
        self.addCleanup(kill, self.folder / "watch.pid")
        for box in self.boxes.values():
            self.run_box(box)
        for box in self.boxes.values():
            until((box.root / "ledge.sock").exists, "a box does not start", box.daemon, box.log_file)
        marks = {"50 boxes run": self.elapsed()}

        self.script = self.typed(script)
        self.addCleanup(end, self.script)
        systemd = threading.Thread(target=self.serve)
        systemd.start()
        self.addCleanup(systemd.join, 60)
        self.addCleanup(self.ended.set)
        self.wait_for_members(marks)
        for box in self.boxes.values():
            # The daemon of before it joined has ended.
            box.daemon.wait(30)
            box.daemon = None
        self.script_ends(self.script)
        marks["50 boxes committed"] = self.elapsed()
        self.check_members()
        self.check_waves()
        self.assertIn("nothing is wrong", self.kit("doctor"))
        memory = self.memory()

        self.check_revocation(thieves, marks)
        cpu = self.cpu_of_daemons()
        self.ended.set()
        systemd.join()
        self.assertEqual(self.faults, [])
        watch = (self.folder / "watch.log").read_text()
        self.assertIn(f"{COUNT} committed, 0 failed", watch)
        figures = {"seconds": {name: round(at) for name, at in marks.items()}, "wall_s": round(self.elapsed()),
                   "cpu_of_daemons_s": round(cpu, 1), "timers": self.runs, **memory}
        for box in self.boxes.values():
            self.kill(box)
        for who, use in (("of_children_s", resource.RUSAGE_CHILDREN), ("of_test_s", resource.RUSAGE_SELF)):
            used = resource.getrusage(use)
            figures[f"cpu_{who}"] = round(used.ru_utime + used.ru_stime)
        print(f"\n{json.dumps(figures)}", file=sys.stderr)
        self.assertLess(self.elapsed(), LONGEST_S)

    def elapsed(self):
        return time.monotonic() - self.began

    def script_ends(self, process):
        try:
            status = process.wait(LONGEST_S)
        finally:
            process.kill() if process.poll() is None else None
        self.assertEqual(status, 0, self.said())

    def said(self):
        tails = [self.output.read_text()[-6_000:]]
        for name in ("timers.log", "nginx.log", "mosquitto.log", "watch.log"):
            path = self.folder / name
            tails.append(f"== {name}\n{path.read_text()[-2_000:] if path.exists() else ''}")
        return "\n".join(tails)

    def wait_for_members(self, marks):
        while not (self.layout.boxes.is_dir() and len(Store(self.layout.boxes).load().members) == COUNT):
            self.assertIsNone(self.script.poll(), self.said())
            self.assertLess(self.elapsed(), LONGEST_S, self.said())
            if "platform serves" not in marks and (self.folder / "serving").exists():
                marks["platform serves"] = self.elapsed()
            time.sleep(0.5)
        marks["50 members"] = self.elapsed()

    def kit(self, *words, ends=0):
        done = subprocess.run(["ledge-platform", *map(str, words)], env=self.environment, text=True, cwd=self.folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, ends, done.stdout)
        return done.stdout

    def check_members(self):
        found = json.loads(self.kit("box", "list", "--json"))
        self.assertEqual([row["name"] for row in found["boxes"]], sorted(self.boxes))
        self.assertEqual({(row["state"], row["note"]) for row in found["boxes"]}, {("member", None)})
        self.assertEqual((found["refusals"], found["waiting"], found["held"]), ([], [], None))

    def check_waves(self):
        """Each box began in its wave and committed the version, and the waves came one after the other."""
        manifest, = json.loads(self.kit("rollout", "show", self.layout.repository, "--json"))
        rollout, = manifest["rollouts"]
        self.assertFalse(rollout["paused"])
        schedule = waves.schedule(rollout["waves"])
        self.assertEqual(len(schedule), 3)
        start = moment(rollout["start"])
        of_wave = {after: [] for after, _ in schedule}
        for device in json.loads(self.kit("fleet", "status", "--json")):
            subject, = device["subjects"]
            self.assertEqual((subject["version"], subject["last_rollout"], subject["result"]), (1, "first", "committed"), device)
            after = next(after for after, bound in schedule if waves.seed(device["device"], "first") < bound)
            of_wave[after].append(self.committed_at(self.boxes[device["device"]]) - start)
        self.assertEqual(sum(map(len, of_wave.values())), COUNT)
        for after, times in of_wave.items():
            self.assertTrue(times, f"no box is in the wave after {after} s")
            self.assertGreaterEqual(min(times), after)
        print(f"\nwaves: {({after: (len(times), round(min(times)), round(max(times))) for after, times in of_wave.items()})}",
              file=sys.stderr)

    def committed_at(self, box):
        found = re.findall(r"^(\S+) .* update committed subject=models/minilm version=1 rollout=first$", box.log, re.MULTILINE)
        self.assertTrue(found, box.log[-3_000:])
        return moment(found[0])

    def memory(self):
        """MiB that the daemons have for themselves, and what they share."""
        own = shared = 0
        for box in self.boxes.values():
            status = Path(f"/proc/{self.pid(box)}/smaps_rollup").read_text()
            own += sum(map(int, re.findall(r"^Private_\w+: +(\d+) kB", status, re.MULTILINE)))
            shared += int(re.search(r"^Pss: +(\d+) kB", status, re.MULTILINE)[1])
        return {"memory_own_mib": own // 1024, "memory_pss_mib": shared // 1024}

    def cpu_of_daemons(self):
        ticks = 0
        for box in self.boxes.values():
            fields = Path(f"/proc/{self.pid(box)}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    # --- stolen and lost ---

    def identity(self, name):
        """The certificate of a box, as a thief has it."""
        return (self.boxes[name].root / "membership/identity.pem",)

    def check_revocation(self, thieves, marks):
        web = self.connect(self.identity(STOLEN))
        self.addCleanup(web.close)
        web.request("GET", "/metadata/timestamp.json")
        self.assertEqual(web.getresponse().read()[:1], b"{")
        self.assertEqual(self.ask("/metadata/timestamp.json", self.identity(STOLEN))[0], 200)
        self.assertIn(f"{STOLEN} is a member of example", self.boxes[STOLEN].doctor())
        since, runs, began = len(self.boxes[STOLEN].log), self.runs["servers"], self.elapsed()

        self.script_ends(self.typed(thieves))
        web.sock.settimeout(120)
        self.assertEqual(web.sock.recv(1), b"", "the open connection to nginx stays")
        until(lambda: not self.broker_has(STOLEN), "the connection to the broker stays", log=self.folder / "mosquitto.log")
        self.assertLessEqual(self.runs["servers"] - runs, 2)
        marks["revoked, connections ended"] = self.elapsed()
        status, body, _ = self.ask("/metadata/timestamp.json", self.identity(STOLEN))
        self.assertEqual((status, body), (400, b"FAILED:certificate revoked"))
        again = Client(self, self.identity(STOLEN))
        self.addCleanup(again.close)
        self.assertFalse(again.up)
        stolen = self.boxes[STOLEN]
        stolen.says("CertificateRevoked", since)
        marks["the box logs that it is revoked"] = self.elapsed()
        self.assertIn("the certificate of this box is revoked", stolen.run("update", "check", ends=None))
        self.assertIn("revoked", stolen.run("doctor", ends=None).lower())

        rows = {row["name"]: row["state"] for row in json.loads(self.kit("box", "list", "--json"))["boxes"]}
        self.assertEqual((len(rows), rows[STOLEN], rows.get(LOST)), (COUNT - 1, "revoked", None))
        self.assertNotIn(LOST, self.kit("fleet", "status"))
        self.assertEqual(self.ask("/metadata/timestamp.json", self.identity(LOST))[:2], (400, b"FAILED:certificate revoked"))
        self.run_unit("page")
        shown = json.loads((self.layout.fleet_page / "fleet.json").read_text())
        self.assertNotIn(LOST, [box["device"] for box in shown["boxes"]])
        # The inventory is that of real reports: the certificate in use is the one that the platform issued.
        known = {box["device"]: box for box in shown["boxes"] if box["device"] != STOLEN}
        self.assertEqual({name for name, box in known.items()
                          if box["inventory"]["certificate"]["until"] != box["membership"]["until"]}, set())
        # The others go on.
        self.assertEqual(self.ask("/metadata/timestamp.json", self.identity("shop-01"))[0], 200)
        deadline = time.monotonic() + 120
        while len(found := self.online() or ()) < COUNT - 2:
            self.assertLess(time.monotonic(), deadline, f"only {len(found)} boxes connected again")
            time.sleep(2)
        self.assertEqual(set(self.boxes) - found, {STOLEN, LOST})
        marks["the others are connected again"] = self.elapsed()

    def online(self):
        """The boxes that are connected; None while the broker starts again."""
        done = subprocess.run(["ledge-platform", "fleet", "status", "--json"], env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            return None
        return {device["device"] for device in json.loads(done.stdout) if device["online"]}

    def broker_has(self, name):
        online = self.online()
        return online is None or name in online


def moment(text):
    from ledge_platform import moments
    return moments.parse(re.sub(r"\.\d+Z$", "Z", text)).timestamp()


def kill(pid_file):
    """Ends a process that a program of this test has started."""
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.05)


if __name__ == "__main__":
    unittest.main()
