"""The example files as they are, each where it says it belongs: users and folders made by systemd's tools, nginx and
mosquitto with their own users, the crontab's lines as its users with nothing but its environment.

All of it happens in a mount and network namespace with copies of /etc and empty folders in the place of others, so
nothing of this machine changes. That needs root.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from certificates import Authority
from logs import Log, Signer
from packages import deb
from support import HERE, installed

EXAMPLES = HERE.parent / "examples"
# What the examples and the packages of nginx and mosquitto write to. /etc is a copy.
REPLACED = ("/srv", "/opt", "/run", "/var/lib", "/var/log")
TLS = Path("/etc/ledge-platform/tls")
LIMIT_S = 30


def assignments(crontab):
    """What a crontab sets, and nothing else but what cron itself does."""
    return dict(re.findall(r"^([A-Z]+)=(.*)$", crontab, re.MULTILINE))


def jobs(crontab):
    """[(user, command)] of a crontab in /etc/cron.d."""
    fields = [line.split(None, 6) for line in crontab.splitlines() if re.match(r"[0-9*]", line)]
    return [(line[5], line[6]) for line in fields]


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise AssertionError("the example files run as their own users: run `make test-platform` as root")
        for path in (HERE, Path(sys.base_prefix), Path(sys.prefix)):
            if any(path.is_relative_to(replaced) for replaced in REPLACED):
                raise AssertionError(f"{path} is below one of {', '.join(REPLACED)}, which these tests replace: move it")
        folder = tempfile.TemporaryDirectory(prefix="ledge-examples-")
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = Path(folder.name).resolve()
        cls.scratch.chmod(0o755)
        cls.enter()
        cls.install()

    @classmethod
    def enter(cls):
        """A process that keeps the namespaces."""
        keeper = subprocess.Popen(
            [installed("unshare"), "--mount", "--net", "--propagation", "private", installed("sleep"), "infinity"])
        cls.addClassCleanup(keeper.wait, 10)
        cls.addClassCleanup(keeper.kill)
        cls.keeper = keeper.pid
        ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + LIMIT_S
        while "sleep" not in Path(f"/proc/{cls.keeper}/comm").read_text() or os.readlink(f"/proc/{cls.keeper}/ns/net") == ours:
            if time.monotonic() > deadline:
                raise AssertionError("unshare made no namespaces")
            time.sleep(0.01)
        cls.root("ip", "link", "set", "lo", "up")
        cls.root("cp", "-a", "/etc", cls.scratch / "etc")
        with open(cls.scratch / "etc" / "hosts", "a") as hosts:
            hosts.write("\n127.0.0.1 updates.example.com\n")
        cls.root("mount", "--bind", cls.scratch / "etc", "/etc")
        for place in REPLACED:
            cls.root("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        # The packages of nginx and mosquitto bring these.
        cls.root("mkdir", "-p", "/var/log/nginx", "/var/lib/nginx", "/etc/mosquitto")
        cls.root("install", "-d", "-o", "mosquitto", "-g", "mosquitto", "/var/lib/mosquitto")

    @classmethod
    def install(cls):
        cls.root(installed("systemd-sysusers"), EXAMPLES / "sysusers.conf")
        # The kit of this checkout, where packaging/platform/setup would put it.
        kit = cls.scratch / "ledge-platform"
        kit.write_text(f"#!/bin/sh\nPYTHONPATH='{HERE.parent}' exec '{sys.executable}' -sB -m ledge_platform \"$@\"\n")
        cls.root("install", "-D", "-m", "0755", kit, "/opt/ledge-platform/bin/ledge-platform")
        tls = cls.scratch / "tls"
        tls.mkdir()
        authority = Authority(tls)
        cls.identities = {name: authority.issue(name) for name in ("server", "platform", "box-1")}
        cls.authority = authority.file
        cls.root(installed("systemd-tmpfiles"), "--create", EXAMPLES / "tmpfiles.conf")
        for name in ("server", "platform"):
            cls.root("install", "-m", "0644", tls / f"{name}.pem", TLS)
            cls.root("install", "-m", "0600", tls / f"{name}.key", TLS)
        cls.root("install", "-m", "0644", authority.file, TLS / "fleet-ca.pem")
        cls.root("install", "-m", "0644", authority.file, TLS / "server-ca.pem")
        cls.root(installed("systemd-tmpfiles"), "--create", EXAMPLES / "tmpfiles.conf")

    @classmethod
    def command(cls, *words):
        return [installed("nsenter"), "--target", str(cls.keeper), "--mount", "--net", "--", *map(str, words)]

    @classmethod
    def root(cls, *words):
        done = subprocess.run(cls.command(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @classmethod
    def as_user(cls, user, words, environment=()):
        """Runs it as USER with no other environment than that."""
        switch = [installed("setpriv"), f"--reuid={user}", f"--regid={user}", "--init-groups"]
        # By way of `env`: setpriv itself still may what root may.
        if subprocess.run(cls.command(*switch, "env", sys.executable, "-c", ""), capture_output=True).returncode:
            # Python lies where only root may look. With this the user may look everywhere, and write nowhere else.
            switch += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        variables = [f"{name}={value}" for name, value in dict(environment).items()]
        return subprocess.run(
            cls.command(*switch, "env", "-i", *variables, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def kit(self, *words, user="ledge-platform", **environment):
        done = self.as_user(user, ["/opt/ledge-platform/bin/ledge-platform", *map(str, words)], environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def serve(self, port, *words):
        log = open(self.scratch / f"{port}.log", "w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(process.wait, LIMIT_S)
        self.addCleanup(process.terminate)
        deadline = time.monotonic() + LIMIT_S
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        while subprocess.run(self.command(sys.executable, "-c", probe), capture_output=True).returncode:
            said = Path(log.name).read_text()
            self.assertIsNone(process.poll(), said)
            self.assertLess(time.monotonic(), deadline, said)
            time.sleep(0.1)

    def put(self, path, content):
        file = self.scratch / "body"
        file.write_bytes(content)
        certificate, key = self.identities["box-1"]
        return self.root(
            installed("curl"), "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", self.authority, "--cert", certificate,
            "--key", key, "-T", file, f"https://127.0.0.1/audit/{path}")

    def start_nginx(self):
        conf = EXAMPLES / "nginx.conf"
        self.assertEqual(self.root(installed("nginx"), "-t", "-q", "-c", conf), "")
        self.serve(443, installed("nginx"), "-c", conf, "-g", "daemon off;")

    def test_a_platform_runs_by_its_examples(self):
        stick = self.scratch / "stick"
        self.root("install", "-d", "-o", "ledge-platform", stick)
        self.kit("repository", "init", "/srv/ledge", "--keys", "/etc/ledge-platform/keys", "--offline-keys", stick,
                 LEDGE_PLATFORM_PASSPHRASE="open sesame, please")

        package = deb(self.scratch)
        self.kit("package", "init", "/srv/ledge-packages", "--keys", "/etc/ledge-platform/keys")
        self.kit("package", "add", "/srv/ledge-packages", package)

        # nginx writes as its own user what the platform's user reads.
        self.start_nginx()
        log = Log(Signer("box-1")).grow(300)
        for path, content in log.files().items():
            self.assertEqual(self.put(f"box-1/1/{path}", content), "201", path)
        self.kit("audit", "enroll", "box-1", log.signer.verifier_key)
        read = subprocess.run(
            self.command("setpriv", "--reuid=ledge-platform", "--regid=ledge-platform", "--init-groups", "env", "cat",
                         "/srv/ledge-boxes/audit/box-1/1/checkpoint"), capture_output=True)
        self.assertEqual((read.returncode, read.stdout), (0, log.files()["checkpoint"]), read.stderr)
        owner = "stat", "-c", "%U %a", "/srv/ledge-boxes/audit/box-1/1/checkpoint"
        self.assertEqual(self.root(*owner), "www-data 640\n")

        # The broker drops root before it reads its key; `watch` and its like read theirs as the platform's user.
        self.root("install", "-m", "0644", EXAMPLES / "ledge.acl", "/etc/mosquitto/ledge.acl")
        self.serve(8883, installed("mosquitto"), "-c", EXAMPLES / "mosquitto.conf")

        # Every line of the crontab is silent while all is well.
        crontab = (EXAMPLES / "crontab").read_text()
        found = jobs(crontab)
        self.assertGreaterEqual(len(found), 7)
        for user, command in found:
            done = self.as_user(user, ["/bin/sh", "-c", command], {**assignments(crontab), "HOME": "/", "LOGNAME": user})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), command)
        self.assertIn("box-1: whole", self.kit("audit", "verify", "/srv/ledge-boxes/audit"))

        page = "stat", "-c", "%U %a", "/srv/ledge-fleet/index.html"
        self.assertEqual(self.root(*page), "ledge-platform 644\n")
        unit = (EXAMPLES / "ledge-watch@.service").read_text()
        options = re.search(r"--ca \S+ --certificate \S+ --key \S+", unit)[0].split()
        listed = self.kit("fleet", "status", "--broker", "mqtts://127.0.0.1", *options)
        self.assertIn("DEVICE", listed)
        for key, reader in (("server.key", "mosquitto"), ("platform.key", "ledge-platform")):
            for user in ("www-data", "mosquitto", "ledge-platform"):
                tried = self.command("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "cat", TLS / key)
                self.assertEqual(subprocess.run(tried, capture_output=True).returncode == 0, user == reader, (key, user))

    def test_the_unit_of_a_watch_is_one_that_systemd_takes(self):
        unit = self.scratch / "ledge-watch@r-42.service"
        shutil.copyfile(EXAMPLES / "ledge-watch@.service", unit)
        self.root(installed("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", unit)


if __name__ == "__main__":
    unittest.main()
