"""How a platform is made: `ledge-platform init`."""
import os
import shutil
import subprocess
import unittest
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from support import Verbs, installed

from ledge_platform import keys
from ledge_platform.certificates import authority
from ledge_platform.errors import Failure
from ledge_platform.site import machine, units
from ledge_platform.site.layout import Layout


class Init(Verbs):
    def setUp(self):
        super().setUp()
        self.give_passphrase()
        self.root, self.stick = self.folder / "root", self.folder / "stick"
        self.words = ("init", "example", "--domain", "platform.example.com", "--root", self.root, "--offline-keys", self.stick)

    def init(self, *more):
        return self.done(*self.words, *more)

    def contents(self, *folders):
        """{path: content} of the files below."""
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}

    @property
    def layout(self):
        return Layout.open(self.root)

    def test_it_makes_everything_and_again_changes_nothing(self):
        said = self.init()
        layout = self.layout
        root = x509.load_pem_x509_certificate((layout.ca / "root.pem").read_bytes())
        self.assertIn(f"fingerprint of the root certificate: {root.fingerprint(hashes.SHA256()).hex()}\n", said)
        self.assertRegex(said.splitlines()[-1], "^next: `ledge-platform doctor --root .*`, then `ledge-platform box add NAME")
        self.assertIn("wrote", said)
        before = self.contents(self.root, self.stick)
        shutil.rmtree(self.stick)
        with mock.patch.dict(os.environ):
            del os.environ["LEDGE_PLATFORM_PASSPHRASE"]
            again = self.init()
        self.assertEqual(self.contents(self.root, self.stick), {path: content for path, content in before.items() if self.root in path.parents})
        self.assertNotRegex(again, "(?m)^(made|wrote|issued|corrected)")

    def test_offline_keys_are_under_a_passphrase_and_online_ones_are_private(self):
        self.init()
        for name in ("root1", "root2", "root3", "targets", "models"):
            self.assertIn(b"ENCRYPTED", (self.stick / f"{name}.pem").read_bytes())
        self.assertIn(b"ENCRYPTED", (self.stick / "ca-root.key").read_bytes())
        layout = self.layout
        modes = {path: path.stat().st_mode & 0o7777 for path in (*layout.keys.glob("*.pem"), layout.ca / "issuing.key")}
        self.assertEqual({mode for path, mode in modes.items() if ".pub." not in path.name}, {0o600}, modes)
        self.assertEqual({path.stat().st_mode & 0o777 for path in (layout.server_key, layout.platform_key, layout.scraper_key)}, {0o640})
        self.assertEqual(layout.requests.stat().st_mode & 0o7777, 0o2750)

    def test_the_servers_know_clients_by_both_authorities_and_the_server_has_all_names(self):
        self.init("--address", "platform.lan", "--address", "192.0.2.7")
        layout = self.layout
        known = x509.load_pem_x509_certificates(layout.clients.read_bytes())
        self.assertEqual([certificate.subject.rfc4514_string() for certificate in known], ["CN=example root", "CN=example issuing"])
        server = x509.load_pem_x509_certificate(layout.server_certificate.read_bytes())
        found = [str(name.value) for name in server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
        self.assertEqual(found, ["platform.example.com", "platform.lan", "192.0.2.7"])

    def test_a_weak_passphrase_makes_no_key(self):
        with mock.patch.dict(os.environ, {"LEDGE_PLATFORM_PASSPHRASE": "x"}):
            self.assertEqual(self.run_verb(*self.words)[0], 2)
        self.assertFalse(self.stick.exists() or list((self.root / "etc/ledge-platform/keys").iterdir()))
        self.init()

    def killed_at(self, write):
        """Runs `init` in a process that ends, as by a power cut, when it gives a file its name for that time; False if it ended by itself."""
        child = os.fork()
        if child == 0:
            left, replace = [write], os.replace

            def one_less(*paths):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                replace(*paths)

            with mock.patch("os.replace", one_less):
                status, text = self.run_verb(*self.words)
            os.write(2, text.encode() if status else b"")
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.assertIn(status, (0, 9))
        return status == 9

    def test_a_run_that_was_killed_at_any_write_is_finished_by_the_next(self):
        write, ends = 1, []
        while self.killed_at(write):
            private = {path: content for path, content in self.contents(self.root, self.stick).items()
                       if b"PRIVATE KEY" in content and not path.name.startswith(".new-")}
            self.init()
            after = self.contents(self.root, self.stick)
            self.assertEqual({path: after.get(path) for path in private}, private, f"keys changed after a kill at write {write}")
            self.assertNotRegex(self.init(), "(?m)^(made|wrote|issued|corrected)")
            self.done("verify", self.layout.repository)
            self.done("ca", "refresh", self.layout.ca)
            ends.append(len(private))
            shutil.rmtree(self.root)
            shutil.rmtree(self.stick, ignore_errors=True)
            write += 1 if write < 50 else 9
        self.assertGreater(write, 60)
        # Before the first key, after the last, and in between.
        self.assertEqual(sorted(set(ends)), list(range(len(set(ends)))))

    def test_keys_of_another_platform_on_the_stick_are_not_taken(self):
        self.killed_at(8)
        foreign = self.folder / "foreign"
        keys.generate(foreign, "models", b"open sesame, please")
        shutil.copy(foreign / "models.pem", self.stick)
        self.failed("models.pem is there already; a key is never overwritten", *self.words)

    def failed(self, says, *words, status=2):
        """The last line says why."""
        found, text = self.run_verb(*words)
        self.assertEqual(found, status, text)
        self.assertIn(says, text.splitlines()[-1])

    def test_a_file_that_was_changed_by_hand_is_kept(self):
        self.init()
        layout = self.layout
        conf, unit = layout.nginx_conf, layout.units / "ledge-platform-quota.service"
        for path in (conf, unit):
            path.write_text(path.read_text() + "# mine\n")
        said = self.init()
        for path in (conf, unit):
            self.assertIn(f"kept {path}, which was changed by hand; compare it with {path}.new", said)
            self.assertTrue(path.read_text().endswith("# mine\n"))
            self.assertNotIn("# mine", path.with_name(f"{path.name}.new").read_text())
            shutil.move(f"{path}.new", path)
        self.assertNotIn("kept", self.init())
        # An untouched file follows platform.toml.
        text = layout.config_file.read_text()
        layout.config_file.write_text(text.replace("mqtt_port = 8883", "mqtt_port = 9883"))
        self.assertIn(f"wrote again {layout.mosquitto_conf}", self.init())
        self.assertIn("listener 9883", layout.mosquitto_conf.read_text())
        self.assertIn(":9883", (layout.units / "ledge-platform-page.service").read_text())

    def test_where_systemd_runs_everything_is_started_and_what_changed_again(self):
        stand_in, said = self.folder / "stand-in", self.folder / "said"
        stand_in.mkdir()
        script = stand_in / "systemctl"
        # A unit is active once it was started.
        script.write_text(f"""#!/bin/sh
echo "$*" >> {said}
case "$1" in
  is-active) grep -q "^enable .*$3" {said};;
esac
""")
        script.chmod(0o755)
        systemd = mock.patch("ledge_platform.site.machine.has_systemd", return_value=True)
        with mock.patch("ledge_platform.site.machine.PATH", f"{stand_in}:{machine.PATH}"), systemd:
            first = self.init()
            layout = self.layout
            wanted = units.started(layout)
            calls = said.read_text().splitlines()
            self.assertEqual([calls[0], calls[-1]], ["daemon-reload", f"enable --now --quiet {' '.join(wanted)}"])
            self.assertEqual(first.count("started ledge-platform-"), len(wanted), first)
            for name in ("web.service", "broker.service", "servers.path", "boxes.timer", "refresh.timer"):
                self.assertIn(f"ledge-platform-{name}", wanted)
            self.assertIn(f"found {len(wanted)} units running", self.init())
            layout.config_file.write_text(layout.config_file.read_text().replace("mqtt_port = 8883", "mqtt_port = 9883"))
            self.assertRegex(self.init(), "(?m)^started ledge-platform-broker.service again$")
            self.assertEqual([call for call in said.read_text().splitlines() if call.startswith("restart")],
                             ["restart ledge-platform-broker.service"])

    def test_options_that_contradict_the_first_run_are_refused(self):
        self.init()
        self.failed("says domain = 'platform.example.com': change it there", "init", "example", "--domain", "other.example.com", "--root", self.root)
        self.failed("says https_port = 443", *self.words, "--https-port", "8443")
        layout = self.layout
        text = layout.config_file.read_text()
        layout.config_file.write_text(text.replace("platform.example.com", "other.example.com"))
        said = self.done("init", "example", "--domain", "other.example.com", "--root", self.root)
        self.assertIn("its names changed", said)

    def test_a_platform_of_this_machine_is_made_by_root(self):
        with mock.patch("os.geteuid", return_value=1000):
            self.failed("run it as root, or with --root DIR", "init", "example", "--domain", "x.example.com", "--root", "/")

    def test_servers_that_exist_get_a_file_to_include(self):
        said = self.init("--web-server", "existing", "--broker-server", "existing")
        layout = self.layout
        self.assertIn("left to do, 1: write `include", said)
        self.assertNotIn("start the servers by hand", said)
        self.assertNotIn("events {", layout.nginx_conf.read_text())
        self.assertNotIn("persistence", layout.mosquitto_conf.read_text())
        self.assertEqual(list(layout.units.glob("*-web.service")) + list(layout.units.glob("*-broker.service")), [])
        around = self.folder / "around.conf"
        around.write_text(f"events {{}}\nhttp {{ include {layout.nginx_conf}; }}\n")
        subprocess.run([installed("nginx"), "-e", "stderr", "-t", "-q", "-c", around], check=True)

    def test_a_broker_elsewhere_is_named(self):
        said = self.init("--broker", "mqtts://mq.example.com")
        layout = self.layout
        self.assertIn("give mqtts://mq.example.com the files", said)
        self.assertFalse(layout.mosquitto_conf.exists())
        self.assertIn("--broker mqtts://mq.example.com", (layout.units / "ledge-platform-page.service").read_text())

    def test_certificates_of_another_authority_are_taken(self):
        bought = self.folder / "bought"
        bought.mkdir()
        own = authority.init(self.folder / "ca", self.folder / "ca-offline", "corporate", {}, encrypt=False)
        (bought / "root.pem").write_bytes(own.root_file.read_bytes())
        (bought / "clients.pem").write_bytes(own.root_file.read_bytes() + own.file.read_bytes())
        for name, hosts in (("server", ["platform.example.com"]), ("platform", [])):
            for suffix, content in zip(("pem", "key"), own.issue(name, hosts)):
                (bought / f"{name}.{suffix}").write_bytes(content)
        (bought / "server.key").rename(self.folder / "server.key")
        status, said = self.run_verb(*self.words, "--ca", bought)
        self.assertEqual(status, 1, said)
        self.assertIn(f"left to do, 1: put {self.root}/etc/ledge-platform/tls/server.key there", said)
        (self.folder / "server.key").rename(bought / "server.key")
        self.init("--ca", bought)
        layout = self.layout
        self.assertFalse((layout.ca / "issuing.key").exists())
        self.assertNotIn("ssl_crl", layout.nginx_conf.read_text())
        self.assertEqual(layout.server_key.stat().st_mode & 0o777, 0o640)
        subprocess.run([installed("nginx"), "-e", "stderr", "-t", "-q", "-c", layout.nginx_conf], check=True)
        self.assertFalse((layout.units / "ledge-platform-revoked.timer").exists())


class Layouts(Verbs):
    def laid_out(self, **settings):
        layout = Layout(self.folder)
        layout.take({"name": "example", "domain": "platform.example.com", **settings})
        return layout

    def test_addresses_leave_out_the_usual_ports(self):
        layout = self.laid_out()
        found = layout.updates_url, layout.join_url, layout.audit_url, layout.broker_url
        address = "https://platform.example.com"
        self.assertEqual(found, (address, f"{address}/join/", f"{address}/audit", "mqtts://platform.example.com"))
        layout = self.laid_out(https_port=8443, mqtt_port=9883)
        self.assertEqual(layout.join_url, "https://platform.example.com:8443/join/")
        self.assertEqual(layout.broker_url, "mqtts://platform.example.com:9883")
        self.assertEqual(self.laid_out(broker="mqtts://mq.example.com").broker_url, "mqtts://mq.example.com")

    def test_settings_are_read_as_they_were_written(self):
        written = self.laid_out(https_port=8443, region="de", addresses=["127.0.0.1", "::1"], web_server="existing")
        written.config_file.parent.mkdir(parents=True)
        written.config_file.write_text(written.settings())
        read = Layout.open(self.folder)
        self.assertEqual(read.settings(), written.settings())
        self.assertEqual((read.https_port, read.addresses, read.web_server), (8443, ("127.0.0.1", "::1"), "existing"))

    def test_a_folder_without_a_platform_and_bad_settings_say_what_to_do(self):
        with self.assertRaisesRegex(Failure, "`ledge-platform init` makes one"):
            Layout.open(self.folder)
        for bad, says in (({"domain": "Two Words"}, "in lower case"), ({"https_port": 0}, "between"), ({"prot": 1}, "no setting"),
                          ({"broker": "mqtt://x"}, "own or existing"), ({"mqtt_port": "1"}, "is no int")):
            with self.assertRaisesRegex(Failure, says):
                self.laid_out(**bad)


if __name__ == "__main__":
    unittest.main()
