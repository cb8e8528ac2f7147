"""The script of docs/fleet.md, with fifty real boxes on this machine: members, a model and then a new Ledge in three
waves, one box stolen, one lost.

Three boxes, one for each wave of the new Ledge, are booted Debians with systemd, in which `ledge-slim` is installed and
upgraded as on any box. The other 47 are daemons whose folders are their boxes. Their root's service is the real
`ledge upgrade`, which verifies and stores the package and watches the daemon; but a program stands in for `dpkg` there,
and starts the same daemon again.

Programs that stand in for others make a trial of the script: `ledge-platform` adds the root and the ports, `scp` and
`ssh` reach these boxes, `systemctl` starts what the units of `init` name, and timers fire every few seconds.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from real import RUNTIMES, RealBox, end
from machines import PACKAGES, Machine, build_slim, make_root
from packages import higher_deb
from sites import Client, Site, answers, free_port, until
from support import REPOSITORY, Verbs, daemon_environment, installed, ledge

from ledge_platform import waves
from ledge_platform.boxes.store import Store
from ledge_platform.site.layout import Layout

sys.path.append(str(REPOSITORY / "tests"))
from pages import fences  # noqa: E402

COUNT, STOLEN, LOST = 50, "shop-13", "shop-37"
LINES_MAX = 15
PRESENT, NEXT = "0.1.0-1", "0.2.0-1"
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
        self.names = [f"shop-{number:02}" for number in range(1, COUNT + 1)]
        self.packages, self.installers = self.packages_of_both_versions(), ThreadPoolExecutor(COUNT)
        self.addCleanup(self.installers.shutdown)
        make_root()
        self.boxes = {}
        booted = self.one_of_each_wave()
        for name in self.names:
            if name in booted:
                self.boxes[name] = self.booted(name)
            else:
                self.boxes[name] = box = RealBox(self.folder / "boxes" / name)
                self.addCleanup(self.kill, box)

    @property
    def folders(self):
        """The boxes that are folders."""
        return [box for box in self.boxes.values() if isinstance(box, RealBox)]

    @property
    def machines(self):
        return [box for box in self.boxes.values() if isinstance(box, Machine)]

    def packages_of_both_versions(self):
        folder = self.folder / "packages"
        folder.mkdir()
        present = build_slim(folder)
        if present.name != f"ledge-slim_{PRESENT}_amd64.deb":
            present = higher_deb(present, folder, PRESENT)
        for package in (present, higher_deb(present, folder, NEXT)):
            (self.folder / package.name).symlink_to(package)
        return folder

    def wave_of(self, name, rollout):
        """The seconds after the start at which a rollout reaches a box."""
        return next(after for after, bound in self.schedules[rollout] if waves.seed(name, rollout) < bound)

    def one_of_each_wave(self):
        script, = fences("docs/fleet.md", "The script", "sh")
        found = re.findall(r"--id (\w+) .*?--waves (\S+)", script, re.DOTALL)
        self.schedules = {rollout: waves.schedule(waves.parse(text)) for rollout, text in found}
        sizes = {rollout: len(schedule) for rollout, schedule in self.schedules.items()}
        self.assertEqual(sizes, {"first": 3, "upgrade": 3})
        spared = [name for name in reversed(self.names) if name not in (STOLEN, LOST)]
        return set({self.wave_of(name, "upgrade"): name for name in spared}.values())

    def booted(self, name):
        """A machine with the present package, in which the platform has the same ports."""
        machine = Machine(name, self.packages)
        self.addCleanup(machine.end)
        package = f"{PACKAGES}/ledge-slim_{PRESENT}_amd64.deb"
        machine.line(f"DEBIAN_FRONTEND=noninteractive apt-get install --yes {package}")
        for port in self.ports:
            machine.forward(port)
        (self.folder / "machines").mkdir(exist_ok=True)
        (self.folder / "machines" / name).write_text(str(machine.init))
        return machine

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
        enter = f'exec {installed("nsenter")} --all --target "$machine" -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin'
        self.program("scp", f"""
box=${{2#admin@}} box=${{box%:}}
machine=$(cat {here}/machines/$box 2>/dev/null) || exec cp "$1" "{here}/boxes/$box/"
{enter} sh -c 'cat > "/root/$1"' sh "${{1##*/}}" < "$1"
""")
        # As the service: it is started again when the box has joined.
        self.program("ssh", f"""
box={here}/boxes/${{1#admin@}}
if machine=$(cat {here}/machines/${{1#admin@}} 2>/dev/null); then
  shift 2
  {enter} sh -c 'cd /root && exec "$@"' sh "$@"
fi
shift 3
cd "$box" && {ledge()} "$@" --root "$box" || exit
restart-box "$box"
mkdir -p "$box/upgrades"
cp "{self.layout.repository}/metadata/1.root.json" "$box/upgrades/root.json"
upgrade-box "$box"
""")
        self.program("restart-box", f"""
kill "$(cat "$1.pid")"
until grep -qs "^State:.Z" "/proc/$(cat "$1.pid")/status" || [ ! -e "/proc/$(cat "$1.pid")" ]; do sleep 0.05; done
{ledge()} serve --root "$1" < /dev/null >> "$1.log" 2>&1 &
echo $! > "$1.pid"
""")
        # Root's service of a box that is a folder. `ledge` calls these programs by their paths.
        (here / "root-bin").mkdir()
        shutil.copyfile(installed("dpkg"), here / "root-bin/dpkg.real")
        shutil.copymode(installed("dpkg"), here / "root-bin/dpkg.real")
        self.program("upgrade-box", f"""
export BOX=$1
exec {installed("unshare")} --mount sh -ec '
mount -t overlay overlay -o lowerdir={here}/root-bin:/usr/bin /usr/bin
PATH=/usr/bin:/bin exec {ledge()} upgrade --root "$BOX"' >> "$BOX.upgrade.log" 2>&1
""")
        self.program("../root-bin/ledge", f'exec {ledge()} "$@" --root "$BOX"\n')
        self.program("../root-bin/dpkg-query", f"""
version=$(cat "$BOX.version" 2>/dev/null || echo {PRESENT})
case "$*" in
  --search*) echo "ledge-slim: /usr/bin/ledge";;
  *Status-Abbrev*) printf "ii |%s" "$version";;
  *) printf "%s amd64" "$version";;
esac
""")
        self.program("../root-bin/dpkg", f"""
case "$1" in
  --compare-versions) exec dpkg.real "$@";;
  --configure) exit 0;;
  --install)
    for package; do :; done
    [ "$(dpkg-deb --field "$package" Package)" = ledge-slim ] || exit
    dpkg-deb --field "$package" Version > "$BOX.version"
    exec {here}/bin/restart-box "$BOX";;
esac
exit 4
""")
        self.program("../root-bin/systemctl", """
case "$*" in
  "is-active ledge.service") kill -0 "$(cat "$BOX.pid")" && echo active;;
  *NRestarts*) echo 0;;
  *) exit 1;;
esac
""")
        self.program("systemctl", f"""
echo "$*" >> {here}/systemctl.log
case "$*" in
  "is-active --quiet "*) exit 0;;
  "start ledge-watch@"*)
    rollout=${{2#ledge-watch@}}
    command=$(sed -n "s/^ExecStart=[^ ]*/ledge-platform/p" "{self.layout.units}/ledge-watch@.service" | sed "s/%i/$rollout/")
    $command < /dev/null > {here}/watch-$rollout.log 2>&1 &
    echo $! > {here}/watch-$rollout.pid
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

    def proc(self, box, file):
        """A file of a box's daemon in /proc."""
        return box.proc(file) if isinstance(box, Machine) else Path(f"/proc/{self.pid(box)}/{file}").read_text()

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
            self.start_upgrades()
            self.ended.wait(0.5)

    def start_upgrades(self):
        """As `ledge-upgrade.path`: root's service of a box runs when its daemon has written another order."""
        for box in self.folders:
            order = box.root / "updates/upgrade/order"
            if order.exists() and self.orders.get(box) != order.stat().st_mtime_ns:
                self.orders[box] = order.stat().st_mtime_ns
                self.installers.submit(subprocess.run, [self.bin / "upgrade-box", box.root], env=self.environment)

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
        self.assertLessEqual(len(commands), LINES_MAX)
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
        self.orders = {}
        for rollout in self.schedules:
            self.addCleanup(kill, self.folder / f"watch-{rollout}.pid")
        for box in self.folders:
            self.run_box(box)
        for box in self.folders:
            until((box.root / "ledge.sock").exists, "a box does not start", box.daemon, box.log_file)
        marks = {"50 boxes run": self.elapsed()}

        self.script = self.typed(script)
        self.addCleanup(end, self.script)
        systemd = threading.Thread(target=self.serve)
        systemd.start()
        self.addCleanup(systemd.join, 60)
        self.addCleanup(self.ended.set)
        self.wait_for_members(marks)
        for box in self.folders:
            # The daemon of before it joined has ended.
            box.daemon.wait(30)
            box.daemon = None
        self.script_ends(self.script)
        marks["50 boxes committed both"] = self.elapsed()
        self.check_members()
        self.check_waves("first", "models/minilm", 1)
        self.check_waves("upgrade", "packages/ledge-slim", 2)
        for machine in self.machines:
            self.check_upgraded(machine)
        self.assertIn("nothing is wrong", self.kit("doctor"))
        memory = self.memory()

        self.check_revocation(thieves, marks)
        cpu = self.cpu_of_daemons()
        self.ended.set()
        systemd.join()
        self.assertEqual(self.faults, [])
        for rollout in self.schedules:
            self.assertIn(f"{COUNT} committed, 0 failed", (self.folder / f"watch-{rollout}.log").read_text())
        figures = {"seconds": {name: round(at) for name, at in marks.items()}, "wall_s": round(self.elapsed()),
                   "cpu_of_daemons_s": round(cpu, 1), "timers": self.runs, **memory}
        for box in self.folders:
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
        for name in ("timers.log", "nginx.log", "mosquitto.log", "watch-first.log", "watch-upgrade.log"):
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

    def check_waves(self, rollout_id, subject, version):
        """Each box began in its wave and committed the version, and the waves came one after the other."""
        manifest, = json.loads(self.kit("rollout", "show", self.layout.repository, "--json"))
        rollout, = [rollout for rollout in manifest["rollouts"] if rollout["id"] == rollout_id]
        self.assertFalse(rollout["paused"])
        self.assertEqual(waves.schedule(rollout["waves"]), self.schedules[rollout_id])
        start = moment(rollout["start"])
        of_wave = {after: [] for after, _ in self.schedules[rollout_id]}
        for device in json.loads(self.kit("fleet", "status", "--json")):
            row, = [row for row in device["subjects"] if row["subject"] == subject]
            came = row["version"], row["last_rollout"], row["result"]
            self.assertEqual(came, (version, rollout_id, "committed"), device)
            begun, committed = self.times(self.boxes[device["device"]], subject)
            after = self.wave_of(device["device"], rollout_id)
            self.assertGreaterEqual(begun - start, after, device)
            of_wave[after].append(committed - start)
        self.assertEqual(sum(map(len, of_wave.values())), COUNT)
        self.assertTrue(all(of_wave.values()), of_wave)
        shown = {after: (len(times), round(min(times)), round(max(times))) for after, times in of_wave.items()}
        print(f"\n{rollout_id}: {shown}", file=sys.stderr)

    def times(self, box, subject):
        """When a box began to use a version, and when it committed it."""
        if subject.startswith("models/"):
            found = re.findall(rf"^(\S+) (?:.* )?update committed subject={subject} version=1 ", box.log, re.MULTILINE)
            self.assertEqual(len(found), 1, box.log[-3_000:])
            return 2 * (moment(found[0]),)
        files = ("updates/upgrade/order", "upgrades/state.json")
        if isinstance(box, RealBox):
            return tuple((box.root / file).stat().st_mtime for file in files)
        files = (f"/var/lib/ledge/{files[0]}", "/var/lib/ledge-upgrade/state.json")
        return tuple(float(line) for line in box.line(f"stat -c %.9Y {' '.join(files)}").split())

    def check_upgraded(self, machine):
        """The package is the new one, whole, and what the box had is there."""
        self.assertEqual(machine.line("dpkg-query --show --showformat='${Status} ${Version}' ledge-slim"),
                         f"install ok installed {NEXT}")
        self.assertEqual(machine.line("dpkg --audit"), "")
        self.assertEqual(machine.line("systemctl is-active ledge").strip(), "active")
        machine.line("ledge audit verify")
        index = json.loads(machine.line("curl -sSf -X POST 127.0.0.1:8000/v2/repository/index"))
        self.assertIn(("minilm", "READY"), [(row["name"], row["state"]) for row in index])
        self.assertIn(f"{machine.name} is a member of example", machine.ask("ledge doctor").stdout)

    def memory(self):
        """MiB that the daemons have for themselves, and what they share."""
        own = shared = 0
        for box in self.boxes.values():
            status = self.proc(box, "smaps_rollup")
            own += sum(map(int, re.findall(r"^Private_\w+: +(\d+) kB", status, re.MULTILINE)))
            shared += int(re.search(r"^Pss: +(\d+) kB", status, re.MULTILINE)[1])
        return {"memory_own_mib": own // 1024, "memory_pss_mib": shared // 1024}

    def cpu_of_daemons(self):
        ticks = 0
        for box in self.boxes.values():
            fields = self.proc(box, "stat").rpartition(")")[2].split()
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
        other = next(box.root.name for box in self.folders if box.root.name not in (STOLEN, LOST))
        self.assertEqual(self.ask("/metadata/timestamp.json", self.identity(other))[0], 200)
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
