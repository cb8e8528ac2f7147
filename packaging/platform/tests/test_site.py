"""How a platform is made: `ledge-platform init`."""
import unittest

from support import Verbs

from ledge_platform.errors import Failure
from ledge_platform.site.layout import Layout


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
