"""The packages of Ledge from a signed repository into bare roots, by the lines of the documents; and refused when somebody
changed something.

    LEDGE_PACKAGES=target/packages .ledge/platform/bin/python3 -B tests/unittests packaging/platform/tests/installed

LEDGE_PACKAGES is a folder with the debs and the rpms of one version. Runs as root; `make setup-root` makes the roots.

No distribution with rpm takes part: dnf of this machine installs into a root of Debian 12, and packages without files stand in
there for the names that the rpm requires. dnf resolves and checks signatures, rpm runs the scripts with Debian's programs, and
the daemon runs with Debian's libraries. That it runs on a distribution with rpm is not shown.
"""
import os
import shutil
import tempfile
import unittest
from pathlib import Path

from boxes import Box, Serving, good, run
from repacked import higher_rpm, stand_ins
from supplier import ADDRESS, HOST, KIT, REPOSITORY, Supplier, commands, fences, installed, must

from packages import higher_deb

APT = commands("README.md", "Install", "ledge.sources")
DNF = commands("docs/install.md", "From a repository", "ledge.repo")
APT_WITH_FINGERPRINT = commands("docs/install.md", "From a repository", "ledge.sources")
PHOTOGRAPH, = (line for line in commands("README.md", "Five minutes", "apt install ./ledge") if "coffee.png" in line)
CREATE_KEY = commands("README.md", "Five minutes", "ledge keys create")[0]
CATALOGUE, = fences("docs/models.md", "Models from a catalogue", "toml")
DEB, RPM = "ledge_*.deb", "ledge-[0-9]*.rpm"
NEXT = "99.0.0-1"


def setUpModule():
    """The supplier, with the repositories of all tests."""
    global SUPPLIER, HERE, PACKAGES, REPOSITORIES, FINGERPRINT
    folder = Path(os.environ.get("LEDGE_PACKAGES") or REPOSITORY / "target" / "packages").resolve()
    PACKAGES = sorted(path for kind in ("deb", "rpm") for path in folder.glob(f"ledge*.{kind}"))
    for pattern in (DEB, RPM):
        package(pattern)
    scratch = tempfile.TemporaryDirectory(prefix="ledge-installed-")
    unittest.addModuleCleanup(scratch.cleanup)
    HERE = Path(scratch.name).resolve()
    SUPPLIER = Supplier(HERE)
    unittest.addModuleCleanup(SUPPLIER.end)

    published, FINGERPRINT = SUPPLIER.make("published", PACKAGES)
    REPOSITORIES = {
        "published": published,
        "a foreign key": SUPPLIER.make("foreign", PACKAGES)[0],
        "an expired key": SUPPLIER.make("expired", PACKAGES, "--key-lifetime", "30d", "--lifetime", "90d", days_ago=40)[0],
        "a changed package": SUPPLIER.changed("changed-package", published, DEB, RPM),
        "a changed index": SUPPLIER.changed("changed-index", published, "InRelease", "Release", "repomd.xml"),
    }
    KIT.done("catalogue", models(), published / "catalogue", "--keys", HERE / "catalogue-keys")


def models():
    """A model repository of one model."""
    model = HERE / "models" / "own_wine"
    shutil.copytree(REPOSITORY / ".ledge" / "models" / "wine_mlp", model)
    return model.parent


def package(pattern):
    """The one package of a kind."""
    found = [path for path in PACKAGES if path.match(pattern)]
    if len(found) != 1:
        raise AssertionError(f"LEDGE_PACKAGES has {len(found)} files {pattern}: `make deb rpm` makes them in target/packages")
    return found[0]


def upgraded(kind, repacked):
    """The published repository with the same files of a higher version; made for the first test that asks."""
    folder = HERE / f"upgraded-{kind}"
    if not folder.exists():
        made = repacked(package(DEB if kind == "deb" else RPM), HERE, NEXT)
        SUPPLIER.add(SUPPLIER.copy(folder.name, REPOSITORIES["published"]), HERE / "published-keys", [made])
    return folder


def unsigned(package):
    """The published repository with the package as it was before it was signed, and an index that names it."""
    folder = SUPPLIER.copy("unsigned", REPOSITORIES["published"])
    place, = (folder / "rpm/x86_64").glob(f"*/{package.name}")
    place.unlink()
    shutil.copyfile(package, place)
    index = (folder / "rpm/x86_64/repodata").resolve()
    shutil.rmtree(index)
    must(installed("createrepo_c"), "--quiet", "--location-prefix", f"../x86_64/{place.parent.name}/", "--outputdir", index.parent,
         place.parent)
    return folder


class Bare(unittest.TestCase):
    """What apt and dnf have in common. A subclass says how a line of the documents runs and what is installed."""

    def setUp(self):
        self.count = 0
        SUPPLIER.show(REPOSITORIES["published"])

    def bare(self, suite):
        """A box as its owner has it before the lines of the documents."""
        folder = Path(tempfile.mkdtemp(dir=HERE)) / "root"
        self.addCleanup(shutil.rmtree, folder.parent)
        return Box(folder, suite, SUPPLIER)

    def assert_refused(self, box, name, fetch, install, says):
        """Clients of the published repository install nothing of this one, and say why. Those of an expired key have that key."""
        with self.subTest(name):
            SUPPLIER.show(REPOSITORIES[name if name == "an expired key" else "published"])
            for line in fetch:
                box.line(line)
            SUPPLIER.show(REPOSITORIES[name])
            done = [self.try_line(box, line) for line in install]
            said = "".join(step.stdout + step.stderr for step in done)
            self.assertNotEqual(done[-1].returncode, 0, said)
            self.assertRegex(said, says)
            self.assertEqual(self.version(box), None)
            self.assertFalse(box.path("/usr/bin/ledge").exists())

    def assert_answers(self, box):
        """Without any network."""
        with Serving(box) as serving:
            self.assertIn('"labels":[{"label":"espresso"', serving.line(PHOTOGRAPH))

    def furnish(self, box):
        """What an owner adds: settings, a key, and a model of the supplier's catalogue."""
        shutil.copyfile(REPOSITORIES["published"] / "catalogue" / "root.json", box.path("/etc/ledge/catalogue-root.json"))
        settings = CATALOGUE.replace("https://models.example.com", f"{ADDRESS}/catalogue").replace("models.example.com", HOST)
        with open(box.path("/etc/ledge/ledge.toml"), "a") as file:
            file.write(f"\n{settings}")
        listed = box.line("ledge models catalogue")
        self.assertIn("own_wine", listed)
        self.assertIn("not added", listed)
        box.line("ledge models add own_wine")
        box.line(CREATE_KEY)

    def assert_furnished(self, box):
        with Serving(box) as serving:
            self.assertIn("own_wine", serving.line("curl -sf --data-binary '' 127.0.0.1:8000/v2/repository/index"))
            self.assertIn("till-7", serving.line("ledge keys list"))
        self.assertIn(", added)", box.line("ledge models catalogue"))


class Apt:
    suite = None

    def try_line(self, box, line):
        return box.try_line(line)

    def version(self, box):
        found = box.try_line("dpkg-query --show --showformat='${Version}' ledge")
        return found.stdout if found.returncode == 0 else None

    def test_it_comes_by_the_lines_of_the_readme_answers_offline_and_is_upgraded(self):
        box = self.bare(self.suite)
        for line in APT:
            box.line(line)
        self.assertIn(f"_{self.version(box)}_", package(DEB).name)
        said = [box.line(line) for line in APT_WITH_FINGERPRINT]
        self.assertIn(FINGERPRINT, "".join(said).replace(" ", ""))
        policy = box.line("apt-cache policy ledge && apt-cache policy")
        self.assertRegex(policy, rf"\*\*\* {self.version(box)} 500\n +500 {ADDRESS} stable/main")
        self.assertRegex(policy, "release o=Example,")
        self.assertEqual(box.line("dpkg --verify ledge"), "")
        self.assert_answers(box)

        self.furnish(box)
        before = box.content("/var/lib/ledge"), box.content("/etc/ledge")
        SUPPLIER.show(upgraded("deb", higher_deb))
        box.line("apt update")
        box.line("apt upgrade")
        self.assertEqual(self.version(box), NEXT)
        self.assertEqual((box.content("/var/lib/ledge"), box.content("/etc/ledge")), before)
        self.assert_furnished(box)
        self.assert_answers(box)

    def test_it_is_refused_when_changed_expired_or_signed_by_another_key(self):
        box = self.bare(self.suite)
        box.line(APT[0])
        for name, says in self.says.items():
            self.assert_refused(box, name, APT[1:2], APT[2:], says)
            shutil.rmtree(box.path("/var/lib/apt/lists"))


class Debian12(Apt, Bare):
    suite = "bookworm"
    says = {"a changed package": "Hash Sum mismatch", "a changed index": "BADSIG", "an expired key": "EXPKEYSIG",
            "a foreign key": "NO_PUBKEY"}


class Debian13(Apt, Bare):
    suite = "trixie"
    # Its apt asks sqv, and accepts what a key signed before it expired; the index has expired with the key.
    says = {"a changed package": "Hash Sum mismatch", "a changed index": "sqv returned an error code .*", "an expired key": "expired",
            "a foreign key": "Missing key"}


class Rpm(Bare):
    """dnf of this machine, and rpm by it, with what is below the root."""

    def setUp(self):
        super().setUp()
        self.box = self.bare("bookworm")
        self.box.line(APT[0])
        distribution = HERE / f"distribution-{self.id()}"
        stand_ins(distribution)
        must(installed("createrepo_c"), "--quiet", distribution)
        # A distribution with dnf has both.
        keys, repositories = self.box.path("/etc/pki/rpm-gpg"), self.box.path("/etc/yum.repos.d")
        keys.mkdir(parents=True)
        repositories.mkdir()
        (repositories / "distribution.repo").write_text(
            f"[distribution]\nname=Names of a distribution\nbaseurl=file://{distribution}\ngpgcheck=0\n")

    def try_line(self, box, line):
        program, *words = line.split()
        if program != "dnf":
            return box.try_line(line)
        # dnf looks for the key on this machine, whatever its root is.
        self.edit("file:///etc/pki", f"file://{box.path('/etc/pki')}")
        return run(installed("dnf"), "--assumeyes", f"--installroot={box.root}", "--releasever=9", "--forcearch=x86_64", *words)

    def edit(self, old, new):
        file = self.box.path("/etc/yum.repos.d/ledge.repo")
        file.write_text(file.read_text().replace(old, new))

    def line(self, line):
        done = self.try_line(self.box, line)
        good(line, done)
        return done.stdout + done.stderr

    def rpm(self, *words):
        return run(installed("rpm"), "--root", self.box.root, *words)

    def version(self, _):
        found = self.rpm("--query", "--queryformat", "%{VERSION}-%{RELEASE}", "ledge")
        return found.stdout if found.returncode == 0 else None

    def test_it_comes_by_the_lines_of_the_documents_answers_offline_and_is_upgraded(self):
        *fetch, install, start = DNF
        for line in fetch:
            self.line(line)
        said = self.line(install)
        self.assertIn(FINGERPRINT, said.replace(" ", "").replace("\n", ""))
        # There is no systemd in the root; the line has the name of the unit.
        self.assertTrue(self.box.path(f"/usr/lib/systemd/system/{start.split()[-1]}.service").exists())
        self.assertIn(f"-{self.version(self.box)}.", package(RPM).name)
        self.assertEqual(self.rpm("--verify", "ledge").stdout, "")
        self.assert_answers(self.box)

        self.furnish(self.box)
        before = self.box.content("/var/lib/ledge"), self.box.content("/etc/ledge")
        SUPPLIER.show(upgraded("rpm", higher_rpm))
        self.line("dnf upgrade --refresh")
        self.assertEqual(self.version(self.box), NEXT)
        self.assertEqual((self.box.content("/var/lib/ledge"), self.box.content("/etc/ledge")), before)
        self.assert_furnished(self.box)
        self.assert_answers(self.box)

    def test_it_is_refused_when_changed_expired_or_signed_by_another_key(self):
        says = {"a changed package": "checksum doesn't match", "a changed index": "GPG signature verification error",
                "an expired key": "GPG signature verification error", "a foreign key": "GPG signature verification error"}
        for name, why in says.items():
            self.assert_refused(self.box, name, DNF[:2], DNF[2:3], why)
            shutil.rmtree(self.box.path("/var/cache/dnf"))

    def test_an_unsigned_one_is_refused_whatever_the_index_says(self):
        for line in DNF[:2]:
            self.line(line)
        self.edit("repo_gpgcheck=1", "repo_gpgcheck=0")
        SUPPLIER.show(unsigned(package(RPM)))
        done = self.try_line(self.box, DNF[2])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not signed", done.stdout + done.stderr)
        self.assertEqual(self.version(self.box), None)
