"""`ledge-platform doctor`: well while all is well, and a line with a remedy for each fault."""
import shutil
import socket
import unittest
from unittest import mock

from sites import Site

from ledge_platform.certificates.authority import DAY, Authority
from ledge_platform.errors import Failure
from ledge_platform.site import doctor, machine, units


class Doctor(Site):

    def doctor(self, wrong=0):
        status, text = self.run_verb("doctor", "--root", self.root)
        self.assertEqual(status, 1 if wrong else 0, text)
        lines = text.splitlines()
        self.assertEqual(sum(line.startswith("WRONG") for line in lines), wrong, text)
        return lines

    def finds(self, check, *says):
        """What one check finds, which must be as many lines as SAYS, each with the state and words."""
        found = [str(finding) for finding in check(doctor.Platform(self.layout)) if finding.state != doctor.OK]
        self.assertEqual(len(found), len(says), found)
        for line, words in zip(found, says):
            for word in words.split(" ... "):
                self.assertIn(word, line)

    def test_a_platform_that_runs_is_well(self):
        self.start("nginx")
        self.start("mosquitto")
        shutil.rmtree(self.layout.offline)
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(total=100e9, free=50e9)):
            lines = self.doctor()
        self.assertEqual([line for line in lines if not line.startswith("ok")],
                         ["warning  systemd does not run here: no timer runs either: run their commands by other means, as the units name them",
                          "nothing is wrong, 1 warnings"])

    def test_servers_that_do_not_run_or_are_others_are_wrong(self):
        for line in self.doctor(wrong=2):
            if line.startswith("WRONG"):
                self.assertIn("nothing listens: `systemctl restart ledge-platform-", line)
        with socket.create_server(("127.0.0.1", self.ports[0])), mock.patch("ledge_platform.site.answering.LIMIT_S", 0.2):
            lines = self.doctor(wrong=2)
        self.assertIn(f"`ss -ltnp sport = :{self.ports[0]}` says which program has the port", "\n".join(lines))
        # The broker of another authority's clients.
        self.start("nginx")
        self.start("mosquitto")
        Authority.open(self.layout.ca).revoke("platform")
        self.stop("mosquitto")
        self.start("mosquitto")
        self.assertIn("certificate revoked", "\n".join(line for line in self.doctor(wrong=1) if "no broker" in line))

    def test_folders(self):
        self.layout.requests.chmod(0o755)
        shutil.rmtree(self.layout.box_full)
        self.finds(doctor.folders_and_owners, "WRONG ... ledge-boxes/full is missing: `ledge-platform init example",
                   "WRONG ... requests has mode 755 and not 2750")
        self.init()
        self.finds(doctor.folders_and_owners)

    def test_keys(self):
        (self.layout.keys / "fleet.pem").chmod(0o644)
        self.layout.platform_key.chmod(0o644)
        self.finds(doctor.keys_are_private, "WRONG ... fleet.pem is readable by others: chmod 600", "WRONG ... platform.key ... chmod 640")
        self.finds(doctor.offline_keys_are_away, "warning ... offline-keys has offline keys")

    def test_versions_that_wait_for_key_holders_and_keys_without_a_spare(self):
        self.finds(doctor.keys_of_roles)
        offline, repository = ["--keys", self.layout.offline, "--keys", self.layout.keys], self.layout.repository
        self.done("key", "threshold", repository, "models", "2/2", "--plain", *offline)
        self.finds(doctor.keys_of_roles, "warning ... models needs all of its 2 keys ... key threshold ... models 2/3")
        self.done("key", "threshold", repository, "models", "2/3", "--plain", *offline)
        away = self.folder / "away"
        self.layout.offline.rename(away)
        (away / "models.pem").rename(self.folder / "models.pem")
        (away / "models.pub.pem").rename(self.folder / "models.pub.pem")
        self.assertEqual(self.run_verb("renew", repository, "models", "--keys", self.folder)[0], 1)
        self.finds(doctor.keys_of_roles, "warning ... is signed by ... and waits: it needs 1 more signature, of ... sign")
        self.run_verb("sign", repository, "models", "--discard")

    def test_what_prometheus_reads(self):
        self.finds(doctor.prometheus)
        (self.layout.prometheus / "boxes.json").write_text("[1]")
        self.layout.scraper_key.chmod(0o644)
        self.finds(doctor.prometheus, "warning ... boxes.json does not have the boxes of this platform: `ledge-platform box answer")
        self.finds(doctor.keys_are_private, "WRONG ... prometheus.key is readable by others: chmod 640")
        (self.layout.prometheus / "boxes.json").unlink()
        self.finds(doctor.prometheus, "WRONG ... boxes.json is missing ... `ledge-platform init example")
        self.init()
        self.finds(doctor.prometheus)

    def test_time_goes_by(self):
        with self.at(2 * DAY - 60):
            self.finds(doctor.signed_roles, "warning ... timestamp expires")
            self.finds(doctor.clock, "warning ... ledge-platform-refresh.timer")
        with self.at(8 * DAY):
            self.finds(doctor.signed_roles, *(f"WRONG ... {role} expired on ... journalctl" for role in ("fleet", "snapshot", "timestamp")))
            self.finds(doctor.revoked_certificates, "WRONG ... crl.pem expired on ... every client is refused")
        with self.at(-DAY):
            self.finds(doctor.clock, "WRONG ... before the last signature ... chrony")
        with self.at(61 * DAY):
            self.finds(doctor.own_certificates, "warning ... server.pem is due (two thirds", "warning ... platform.pem is due",
                   "warning ... prometheus.pem is due")
        with self.at(91 * DAY):
            self.finds(doctor.own_certificates, "WRONG ... server.pem expired on", "WRONG ... platform.pem expired on",
                       "WRONG ... prometheus.pem expired on")
        with self.at(250 * DAY):
            self.finds(doctor.certificate_authority, "warning ... `ledge-platform ca renew")
        with self.at(355 * DAY):
            self.finds(doctor.certificate_authority, "WRONG ... all certificates end with it: `ledge-platform ca renew")
        with self.at(340 * DAY):
            roles = list(doctor.signed_roles(doctor.Platform(self.layout)))
            self.assertEqual([finding.state for finding in roles[:3]], ["warning"] * 3)

    def test_a_name_that_the_certificate_does_not_have(self):
        self.layout.domain = "other.example.com"
        self.finds(doctor.own_certificates, "WRONG ... server.pem is not for other.example.com")

    def test_configuration(self):
        conf = self.layout.nginx_conf
        conf.write_text(conf.read_text() + "nonsense;\n")
        self.init()
        self.finds(doctor.configuration_files, "WRONG ... nginx does not take ... nonsense", "warning ... was changed by hand ... nginx.conf.new")

    def test_a_timer_that_failed_is_named(self):
        wanted = units.started(self.layout)
        names = [*wanted, *(job.service for job in units.jobs(self.layout))]
        state = {name: ["active" if name in wanted else "inactive", "success", ""] for name in names}
        stand_in = self.folder / "stand-in"
        stand_in.mkdir()
        script = stand_in / "systemctl"

        def say():
            blocks = [f"Id={name}\nActiveState={a}\nResult={r}\nExecMainExitTimestamp={t}\n" for name, (a, r, t) in state.items()]
            script.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(blocks) + "END\n")
            script.chmod(0o755)

        say()
        tool = mock.patch("ledge_platform.site.doctor.tool_exists", return_value=True)
        with mock.patch("ledge_platform.site.machine.PATH", f"{stand_in}:{machine.PATH}"), tool, \
                mock.patch("ledge_platform.site.machine.has_systemd", return_value=True):
            self.finds(doctor.services)
            state["ledge-platform-refresh.service"] = ["failed", "exit-code", "Tue 2026-12-01 03:00:00 UTC"]
            state["ledge-platform-boxes.timer"][0] = "inactive"
            say()
            self.finds(doctor.services, "WRONG ... ledge-platform-boxes.timer is inactive: `systemctl enable --now",
                       "WRONG ... the last run of ledge-platform-refresh.service failed (Tue 2026 ... journalctl -u ledge-platform-refresh")

    def test_a_full_disk(self):
        usage = mock.Mock(total=100e9, free=5e9)
        with mock.patch("shutil.disk_usage", return_value=usage):
            self.finds(doctor.disk, "warning ... 5 GB of 100 GB are free")
            usage.free = 1e9
            self.finds(doctor.disk, "WRONG ... 1 GB of 100 GB are free")

    def test_boxes_that_need_a_look(self):
        self.done("box", "add", "box-1", "--root", self.root, "--out", self.folder, "--valid", "1d")
        with self.at(2 * DAY):
            self.finds(doctor.boxes, "warning ... 1 boxes need a look: `ledge-platform box list")

    def test_one_broken_file_does_not_hide_the_rest(self):
        self.layout.server_certificate.write_text("no certificate")
        (self.layout.repository / "metadata" / "timestamp.json").unlink()
        text = "\n".join(self.doctor(wrong=6))
        self.assertIn("own certificates: ", text)
        self.assertIn("GB are free", text)

    def test_without_a_platform_it_says_how_to_make_one(self):
        self.failed("`ledge-platform init` makes one", "doctor", "--root", self.folder / "none")
        with mock.patch("os.geteuid", return_value=1000), mock.patch.object(type(self.layout), "is_trial", False), \
                self.assertRaisesRegex(Failure, "run it as root"):
            list(doctor.findings(self.layout))


if __name__ == "__main__":
    unittest.main()
