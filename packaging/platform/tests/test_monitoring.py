"""Prometheus for boxes: their addresses in invitations, certificates and the discovery file."""
import ipaddress
import json
import shutil
import unittest

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from joining import Box
from test_boxes import DAY, Joining

from ledge_platform.boxes import monitoring
from ledge_platform.errors import Failure


class Addresses(unittest.TestCase):
    def test_an_address_has_a_host_and_a_port(self):
        for text, found in {
                "shop-7.example": "shop-7.example:9443", "Shop-7.Example:9500": "shop-7.example:9500", "till": "till:9443",
                "192.0.2.7": "192.0.2.7:9443", "192.0.2.7:1024": "192.0.2.7:1024", "[2001:DB8::7]:9500": "[2001:db8::7]:9500",
                "[2001:db8::7]": "[2001:db8::7]:9443", "2001:db8::7": "[2001:db8::7]:9443"}.items():
            self.assertEqual(monitoring.address(text), found)
            self.assertEqual(monitoring.address(found), found)

    def test_what_is_no_address_of_one_machine_is_refused(self):
        for text in ("", ":9443", "a:", "a:x", "a:9443:1", "a:0", "a:80", "a:8000", "a:65536", "a:-1", "a:٣٣٣٣", "*.example",
                     "a b", "a/b", "https://a", "0.0.0.0", "[::]", "224.0.0.1", "[fe80::1%eth0]", "[::1", "::1]:9443",
                     "[a]x", "a\nb", "prometheus@a", "1.2.3", "a..b", "a" * 254):
            with self.assertRaises(Failure, msg=text):
                monitoring.address(text)


class Metrics(Joining):
    def targets(self):
        return json.loads((self.layout.prometheus / "boxes.json").read_bytes())

    def joined(self, name, *words):
        box = self.invited(name, *words)
        box.ask()
        self.box("answer")
        self.assertEqual(box.take(), "issued")
        return box

    def certified(self, box):
        """(names and addresses, what it is for) of the certificate of a box."""
        leaf = x509.load_pem_x509_certificate(box.certificate)
        usages = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        try:
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return [], usages
        return [name.value for name in names], usages

    BOTH = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}

    def test_a_box_with_an_address_gets_a_certificate_for_it_and_keeps_it_when_it_renews(self):
        box = self.joined("shop-7", "--metrics", "shop-7.example")
        self.assertEqual(box.invitation["metrics"], "shop-7.example:9443")
        self.assertEqual(self.certified(box), (["shop-7.example"], self.BOTH))
        self.assertEqual(self.row("shop-7")["metrics"], "shop-7.example:9443")
        with self.at(61 * DAY):
            box.ask()
            self.box("answer")
            self.assertEqual(box.take(), "issued")
        self.assertEqual(self.certified(box), (["shop-7.example"], self.BOTH))

        addressed = self.joined("shop-8", "--metrics", "[2001:db8::8]:9500")
        self.assertEqual(self.certified(addressed), ([ipaddress.ip_address("2001:db8::8")], self.BOTH))

    def test_a_box_without_one_gets_the_certificate_of_a_client(self):
        box = self.joined("shop-7")
        self.assertIsNone(box.invitation["metrics"])
        self.assertEqual(self.certified(box), ([], {ExtendedKeyUsageOID.CLIENT_AUTH}))
        self.assertEqual(self.targets(), [])

    def test_a_request_has_no_say_in_the_names_of_the_certificate(self):
        box = self.invited("shop-7", "--metrics", "192.0.2.7")
        self.platform.put(box, box.join_request(metrics="platform.example.com:443"))
        self.box("answer")
        self.assertEqual(box.take(), "issued")
        self.assertEqual(self.certified(box)[0], [ipaddress.ip_address("192.0.2.7")])

    def test_prometheus_finds_the_members_at_once_and_those_alone(self):
        self.joined("shop-7", "--metrics", "192.0.2.7", "--fleet", "night", "--group", "north")
        self.joined("shop-8", "--metrics", "shop-8.example:9500")
        self.joined("shop-9", "--metrics", "shop-9.example")
        self.joined("shop-10")
        self.invite("shop-11", "--metrics", "shop-11.example")
        labels = {"instance": "shop-7", "box": "shop-7", "fleet": "night", "group": "north"}
        self.assertEqual([entry["targets"] for entry in self.targets()],
                         [["192.0.2.7:9443"], ["shop-8.example:9500"], ["shop-9.example:9443"]])
        self.assertEqual(self.targets()[0]["labels"], labels)
        self.assertEqual(self.targets()[1]["labels"], {"instance": "shop-8", "box": "shop-8"})
        self.box("revoke", "shop-7")
        self.assertEqual([entry["targets"] for entry in self.targets()], [["shop-8.example:9500"], ["shop-9.example:9443"]])
        self.box("forget", "shop-8")
        self.assertEqual([entry["targets"] for entry in self.targets()], [["shop-9.example:9443"]])
        self.assertEqual((self.layout.prometheus / "boxes.json").stat().st_mode & 0o777, 0o644)

    def test_a_run_that_was_killed_before_it_wrote_the_file_is_made_good_by_the_next(self):
        self.joined("shop-7", "--metrics", "192.0.2.7")
        (self.layout.prometheus / "boxes.json").write_text("[]")
        self.box("answer")
        self.assertEqual([entry["targets"] for entry in self.targets()], [["192.0.2.7:9443"]])

    def test_another_address_counts_from_the_next_certificate_on(self):
        box = self.joined("shop-7", "--metrics", "192.0.2.7")
        said = self.box("metrics", "shop-7", "192.0.2.17")
        self.assertIn("from its next renewal on", said)
        self.assertNotIn("new join file", said)
        self.assertEqual([entry["targets"] for entry in self.targets()], [["192.0.2.17:9443"]])
        with self.at(61 * DAY):
            box.ask()
            self.box("answer")
            self.assertEqual(box.take(), "issued")
            self.assertEqual(self.certified(box)[0], [ipaddress.ip_address("192.0.2.17")])
            self.assertIn("does not read its metrics", self.box("metrics", "shop-7", "none"))
            self.assertEqual(self.targets(), [])
        self.joined("shop-8")
        self.assertIn("new join file", self.box("metrics", "shop-8", "192.0.2.8"))
        self.refused("shop-9 is no member", "metrics", "shop-9", "192.0.2.9")
        self.refused("metrics 'x y'", "metrics", "shop-8", "x y")

    def test_a_box_cannot_have_the_address_of_the_platform_or_of_another_box(self):
        self.refused("is the platform itself", "add", "shop-7", "--metrics", "platform.example.com")
        for name in ("prometheus", "platform", "server"):
            self.refused("this name belongs to the platform", "add", "shop-7", "--metrics", name)
            self.refused("this name belongs to the platform", "add", name)
        self.joined("shop-7", "--metrics", "192.0.2.7")
        self.refused("nothing is made: shop-7 has the address 192.0.2.7:9443", "add", "shop-8", "--metrics", "192.0.2.7")
        self.joined("shop-8", "--metrics", "192.0.2.7:9444")
        self.refused("shop-8 has the address", "metrics", "shop-7", "192.0.2.7:9444")
        self.box("revoke", "shop-8")
        self.box("metrics", "shop-7", "192.0.2.7:9444")

    def test_a_table_has_an_address_for_each_box(self):
        table = self.folder / "boxes.csv"
        table.write_text("name,metrics\nshop-1,192.0.2.1\nshop-2,\nshop-3,[2001:db8::3]:9500\n")
        self.invite("--csv", table)
        found = [Box(self.platform, self.folder / f"shop-{number}.join").invitation["metrics"] for number in (1, 2, 3)]
        self.assertEqual(found, ["192.0.2.1:9443", None, "[2001:db8::3]:9500"])
        table.write_text("name,metrics\nshop-4,192.0.2.4\nshop-5,192.0.2.4\n")
        self.refused("shop-4 has the address", "add", "--csv", table, "--out", self.folder)
        self.refused("--metrics is the address of one box", "add", "a", "b", "--metrics", "192.0.2.5")
        self.refused("--metrics is the address of one box", "add", "--batch", "b", "--count", "2", "--metrics", "192.0.2.5")

    def test_a_platform_of_an_older_version_needs_init_first(self):
        shutil.rmtree(self.layout.prometheus)
        self.refused("run `ledge-platform init` again", "add", "shop-7", "--metrics", "192.0.2.7")
        self.joined("shop-8")
        self.refused("run `ledge-platform init` again", "metrics", "shop-8", "192.0.2.7")


if __name__ == "__main__":
    unittest.main()
