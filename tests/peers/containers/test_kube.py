"""packaging/kubernetes/base by `podman kube play`, with the kustomization of docs/containers.md."""
import json
import os
import ssl
import unittest
import urllib.error
import urllib.request

from podman import CHECKOUT, LEDGE, LIMIT, Podman, blocks, commands, free_port, until

HEADING = "With Podman"
# A certificate authority, the certificate of the box, and that of a client with the name that ledge.toml admits.
CERTIFICATES = """
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -subj /CN=authority -days 30
for name in localhost ledge-client; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
  printf 'subjectAltName=DNS:%s,IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' $name > extensions
  openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile extensions -out $name.crt
done
mv localhost.crt tls.crt; mv localhost.key tls.key
"""


class Kube(unittest.TestCase):
    def setUp(self):
        self.folder = Podman.folder / "home/kube"
        self.port = free_port()
        image = Podman.loaded(os.environ["LEDGE_IMAGE"])
        name, _, tag = image.rpartition(":")
        # The test listens on loopback only, on ports that are free.
        kustomization = blocks(HEADING, "yaml")[0].replace("newName: localhost/ledge, newTag: 0.1.0", f'newName: {name}, newTag: "{tag}"')
        for number, port in (("0", "8443"), ("1", "8001")):
            entry = f"containers/0/ports/{number}/hostPort, value: {port}}}"
            assert entry in kustomization, kustomization
            other = self.port if number == "0" else free_port()
            kustomization = kustomization.replace(
                entry, f"containers/0/ports/{number}/hostPort, value: {other}}}\n      - {{op: add, path: /spec/template/spec/containers/0/ports/{number}/hostIP, value: 127.0.0.1}}")
        Podman.run("cp", "-r", Podman.shared(CHECKOUT / "packaging/kubernetes"), self.folder)
        # As the page has it: the folder packaging/kubernetes is "ledge" there.
        Podman.run("sh", "-ec", f"mkdir -p {self.folder}/mine && mv {self.folder}/base {self.folder}/mine/ && mkdir {self.folder}/mine/ledge && mv {self.folder}/mine/base {self.folder}/mine/ledge/")
        self.folder /= "mine"
        (self.folder / "kustomization.yaml").write_text(kustomization)
        self.shell(CERTIFICATES)
        self.build, self.play, self.down = commands(HEADING)
        self.addCleanup(Podman.podman, "volume", "rm", "--all", "--force")

    def shell(self, line):
        return Podman.run("sh", "-ec", f"cd {self.folder}; {line}").stdout

    def call(self, path, body=None, certificate=None, **headers):
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        if certificate:
            context.load_cert_chain(self.folder / f"{certificate}.crt", self.folder / f"{certificate}.key")
        asked = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=LIMIT, context=context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return None, str(error)

    def test_a_box_of_the_manifests_serves_a_client_with_a_certificate_twice_with_one_volume(self):
        self.shell(self.build)
        photograph = (LEDGE / "models/efficientnet_lite0/golden/coffee.png").read_bytes()
        for found in (0, 1):
            self.shell(self.play)
            name, = (name for name in Podman.podman("ps", "--format", "{{.Names}}").split() if name.endswith("-ledge"))
            try:
                until("the pod is ready", lambda: self.call("/v2/health/ready")[0] == 200 and self.call("/v2/models/efficientnet_lite0/ready", certificate="ledge-client")[0] == 200 or self.fail_if_ended(name))
                self.assertEqual(self.call("/v2/models/efficientnet_lite0/infer", photograph, Content_Type="image/png")[0], 401)
                status, answer = self.call("/v2/models/efficientnet_lite0/infer", photograph, "ledge-client", **{"Content-Type": "image/png"})
                self.assertEqual((status, json.loads(answer)["labels"][0]["label"]), (200, "espresso"), answer)
                Podman.podman("exec", name, "/usr/bin/ledge", "health", "--ready")
                self.assertEqual(Podman.podman("exec", name, "/usr/bin/ledge", "keys", "list").count("till-7"), found)
                if not found:
                    Podman.podman("exec", name, "/usr/bin/ledge", "keys", "create", "till-7", "--role", "infer")
            finally:
                self.shell(self.down)

    def fail_if_ended(self, name):
        state = Podman.podman("inspect", "--format", "{{.State.Status}}", name)
        self.assertEqual(state, "running", Podman.run("podman", "logs", name).stderr)


if __name__ == "__main__":
    unittest.main()
