"""The image signed by cosign as docs/containers.md says, in a registry on loopback, and what a user then refuses."""
import json
import os
import subprocess
import unittest

from podman import Podman, TOOLS, blocks, commands, free_port, until

HEADING = "Sign and verify"
PASSPHRASE = "a passphrase of some words"
REGISTRY = "registry.example.com"
CONFIGURATION = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


class Signed(unittest.TestCase):
    """A signed image in a registry. Each test has a registry, a folder and a store of Podman of its own."""

    def setUp(self):
        self.folder = Podman.folder / "home" / self._testMethodName
        Podman.run("mkdir", "-p", self.folder / "registry")
        self.port = free_port()
        (Podman.folder / "share/registry.yml").write_text(CONFIGURATION.format(folder=self.folder / "registry", port=self.port))
        server = subprocess.Popen(
            [TOOLS / "usr/bin/docker-registry", "serve", Podman.folder / "share/registry.yml"], stderr=subprocess.DEVNULL, **Podman.as_user())
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        until("the registry answers", lambda: self.shell(f"curl -sf 127.0.0.1:{self.port}/v2/", check=False).returncode == 0)
        self.configure("registries.conf", f'[[registry]]\nlocation = "127.0.0.1:{self.port}"\ninsecure = true\n')
        self.archive = self.folder / "ledge-0.1.0.oci.tar"
        Podman.run("cp", Podman.shared(os.environ["LEDGE_IMAGE"]), self.archive)
        self.publisher, self.user = commands(HEADING), commands(HEADING, 1)
        self.shell("; ".join(self.publisher))

    def configure(self, name, text):
        """Writes a file of the user's ~/.config/containers."""
        file = Podman.folder / "home/.config/containers" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.here(text))
        self.addCleanup(file.unlink)

    def here(self, text):
        return text.replace(REGISTRY, f"127.0.0.1:{self.port}").replace("/etc/containers/cosign.pub", str(self.folder / "cosign.pub"))

    def shell(self, line, passphrase=PASSPHRASE, **more):
        """Runs a line of the page in the folder."""
        line = f"cd {self.folder} && {self.here(line)}"
        return Podman.run("sh", "-ec", line, env={"COSIGN_PASSWORD": passphrase}, **more)

    def refused(self, line, *says, **more):
        done = self.shell(line, check=False, **more)
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        for words in says:
            self.assertIn(words, done.stdout + done.stderr)

    def image(self, tag):
        return f"{REGISTRY}/ledge:{tag}"

    def digest(self, tag):
        return self.shell(f"skopeo inspect --format '{{{{.Digest}}}}' docker://{self.image(tag)}").stdout.strip()

    def push_changed(self, tag):
        """What somebody pushes who may write to the registry: the same image with another label."""
        self.shell(
            f"container=$(buildah from --quiet oci-archive:{self.archive}); buildah config --label changed=yes $container; "
            f"buildah commit --quiet --rm $container docker://{self.image(tag)}")

    def sign(self, digest, version, key="cosign.key"):
        line, = (line for line in self.publisher if line.startswith("cosign sign "))
        self.shell(f"digest={digest}; " + line.replace("cosign.key", key).replace("version=0.1.0", f"version={version}"))

    def pull(self):
        """Gets the image as Podman 5 does: skopeo has the same library, and reads the same files of policy."""
        self.configure("policy.json", blocks(HEADING, "json")[0])
        self.configure("registries.d/ledge.yaml", blocks(HEADING, "yaml")[0])
        loader, = (TOOLS / "usr/lib").glob("*/ld-linux-*.so.*")
        return f"{loader} --library-path {loader.parent} {TOOLS}/usr/bin/skopeo copy docker://{self.image('0.1.0')} dir:pulled"

    def test_the_image_and_its_file_are_verified_and_podman_pulls(self):
        self.assertIn("ENCRYPTED", (self.folder / "cosign.key").read_text())
        verified = self.shell("; ".join(self.user))
        digest = json.loads(verified.stdout.strip().splitlines()[0])[0]["critical"]["image"]["docker-manifest-digest"]
        self.assertEqual(digest, self.digest("0.1.0"))
        self.shell(f"podman pull --quiet {REGISTRY}/ledge@{digest}")
        self.shell(self.pull())

    def test_a_changed_file_is_refused(self):
        with open(self.archive, "r+b") as file:
            file.seek(file.seek(0, os.SEEK_END) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        self.refused(self.user[1], "invalid signature")

    def test_a_changed_image_without_a_signature_is_refused(self):
        self.push_changed("0.1.0")
        self.refused(self.user[0], "no signatures found")
        self.refused(self.pull(), "A signature was required, but no signature exists")

    def test_a_changed_image_with_the_signature_of_another_is_refused(self):
        signed = self.digest("0.1.0")
        self.push_changed("0.1.0")
        changed = self.digest("0.1.0")
        self.assertNotEqual(changed, signed)
        source, target = (f"docker://{self.image(digest.replace(':', '-') + '.sig')}" for digest in (signed, changed))
        self.shell(f"skopeo copy {source} {target}")
        self.refused(self.user[0], "no matching signatures")
        self.refused(self.pull(), "Signature")

    def test_a_changed_layer_in_the_registry_is_refused(self):
        layers = json.loads(self.shell(f"skopeo inspect --raw docker://{self.image('0.1.0')}").stdout)["layers"]
        digest = layers[-1]["digest"].removeprefix("sha256:")
        blob = self.folder / "registry/docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(content)
        self.refused(self.pull(), "Digest did not match")

    def test_a_foreign_key_is_refused(self):
        self.shell("cosign generate-key-pair --output-key-prefix foreign")
        self.push_changed("0.1.0")
        self.sign(self.digest("0.1.0"), "0.1.0", "foreign.key")
        self.refused(self.user[0], "no matching signatures")
        self.refused(self.pull(), "cryptographic signature verification failed")
        self.refused(self.user[1].replace("cosign.pub", "foreign.pub"), "invalid signature")

    def test_an_old_image_under_a_new_tag_is_refused(self):
        self.shell(f"skopeo copy --preserve-digests docker://{self.image('0.1.0')} docker://{self.image('0.2.0')}")
        self.refused(self.user[0].replace("0.1.0", "0.2.0"), "no matching signatures")

    def test_the_key_needs_its_passphrase(self):
        line, = (line for line in self.publisher if line.startswith("cosign sign-blob "))
        self.refused(line, "decrypt", passphrase="another one")


if __name__ == "__main__":
    unittest.main()
