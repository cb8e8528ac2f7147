"""Small packages, a repository of them, and the clients apt and dnf, each with a configuration and a root of its own."""
import os
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

from support import Verbs, installed

PROGRAMS = ("gpg", "gpg-agent", "gpgconf", "dpkg-deb", "apt-get", "apt-ftparchive", "rpm", "rpmbuild", "rpmsign",
            "createrepo_c", "dnf")
CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: Somebody <somebody@example.com>
Description: a package of one file
"""
SPEC = """\
Name: {name}
Version: {number}
Release: {release}
Summary: a package of one file
License: Apache-2.0
%description
%install
mkdir -p %{{buildroot}}/usr/share/{name}
echo '{content}' > %{{buildroot}}/usr/share/{name}/content
%files
/usr/share/{name}
"""
DAY = 86_400


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)


def must(*words, **more):
    done = run(*words, **more)
    if done.returncode:
        raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def deb(folder, version="1.0-1", name="tiny", architecture="amd64", content="content"):
    tree = folder / f"deb-{name}-{version}-{architecture}-{content}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(CONTROL.format(name=name, version=version, architecture=architecture))
    (tree / "content").write_text(content)
    made = folder / f"{tree.name}.deb"
    must(installed("dpkg-deb"), "--root-owner-group", "--build", tree, made)
    return made


def higher_deb(deb, folder, version):
    """The same files as a deb of a higher version."""
    tree, made = folder / f"deb-{version}", folder / f"{deb.name.partition('_')[0]}_{version}_amd64.deb"
    must(installed("dpkg-deb"), "--raw-extract", deb, tree)
    control = tree / "DEBIAN" / "control"
    text = control.read_text()
    old, = (line for line in text.splitlines() if line.startswith("Version: "))
    control.write_text(text.replace(old, f"Version: {version}"))
    must(installed("dpkg-deb"), "--root-owner-group", "-Zgzip", "-z1", "--build", tree, made)
    shutil.rmtree(tree)
    return made


def rpm(folder, version="1.0-1", name="tiny", architecture="x86_64", content="content"):
    top = folder / f"rpm-{name}-{version}-{architecture}-{content}"
    top.mkdir()
    number, _, release = version.partition("-")
    (top / "spec").write_text(SPEC.format(name=name, number=number, release=release, content=content))
    must(installed("rpmbuild"), "-bb", "--target", architecture, "--define", f"_topdir {top}", top / "spec")
    made, = top.glob("RPMS/*/*.rpm")
    return made


class Packages(Verbs):
    """A repository `repo`, its key in `keys`, and its address file://."""

    @classmethod
    def setUpClass(cls):
        for program in PROGRAMS:
            installed(program)
        if os.geteuid() != 0:
            raise AssertionError("dnf installs into a root of its own: run `make test-platform` as root")

    def setUp(self):
        super().setUp()
        self.repo, self.keys = self.folder / "repo", self.folder / "keys"
        small = mock.patch("ledge_platform.packages.openpgp.ALGORITHM", "rsa2048")
        small.start()
        self.addCleanup(small.stop)
        self.addCleanup(self.end_agents)

    def end_agents(self):
        """dnf leaves the agents of its keyrings."""
        for home in {path.parent for path in self.folder.rglob("S.gpg-agent")}:
            run("gpgconf", "--homedir", home, "--kill", "all")

    def init(self, *more, repo=None, keys=None):
        repo = repo or self.repo
        return self.done("package", "init", repo, "--keys", keys or self.keys, "--address", f"file://{repo}", *more)

    def add(self, *files, repo=None):
        return self.done("package", "add", repo or self.repo, *files)

    def publish(self, *more):
        return self.done("package", "publish", self.repo, "--keys", self.keys, *more)

    def publish_tiny(self):
        self.init()
        self.add(deb(self.folder), rpm(self.folder))
        return self.publish()


class Apt:
    """apt with nothing but the file NAME.sources of a repository."""

    def __init__(self, folder, sources):
        self.folder = folder
        for path in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg", "etc/apt/sources.list.d",
                     "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/trusted.gpg.d", "got"):
            (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / "var/lib/dpkg/status").touch()
        options = {
            "Dir": folder, "Dir::State::status": folder / "var/lib/dpkg/status", "APT::Architecture": "amd64",
            "APT::Architectures": "amd64", "APT::Sandbox::User": "root", "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none"}
        # Read first, so nothing of this machine's configuration follows.
        self.configuration = folder / "apt.conf"
        self.configuration.write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))
        self.install(sources)

    def install(self, sources):
        (self.folder / "etc/apt/sources.list.d/ledge.sources").write_bytes(Path(sources).read_bytes())

    def get(self, *words):
        environment = {**os.environ, "APT_CONFIG": str(self.configuration)}
        return run(installed("apt-get"), *words, cwd=self.folder / "got", env=environment)

    def update(self):
        return self.get("update")

    def version(self, name="tiny"):
        """The version that it would install, after it has got and checked the package."""
        for words in (("update",), ("download", name)):
            done = self.get(*words)
            if done.returncode:
                raise AssertionError(done.stdout + done.stderr)
        return re.search(rf"^Inst {name} \((\S+)", self.get("install", "--simulate", name).stdout, re.MULTILINE)[1]


class Dnf:
    """dnf with nothing but the files NAME.repo and NAME.asc of a repository, and a root to install into."""

    def __init__(self, folder, repo):
        self.folder = folder
        (folder / "repos").mkdir(parents=True)
        self.file, self.key = folder / "repos" / "ledge.repo", folder / "ledge.asc"
        self.file.write_bytes(Path(repo).read_bytes())
        self.install_key(Path(repo).with_suffix(".asc"))
        self.edit("/etc/pki/rpm-gpg/RPM-GPG-KEY-ledge", str(self.key))

    def install_key(self, key):
        self.key.write_bytes(Path(key).read_bytes())

    def run(self, *words):
        root = self.folder / "root"
        return run(
            installed("dnf"), "--assumeyes", "--refresh", f"--installroot={root}", f"--setopt=reposdir={self.folder / 'repos'}",
            f"--setopt=cachedir={self.folder / 'cache'}", "--releasever=9", "--forcearch=x86_64", *words)

    def install(self, name="tiny"):
        return self.run("install", name)

    def version(self, name="tiny"):
        done = self.run("install", name)
        if done.returncode == 0:
            done = self.run("upgrade", name)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return self.installed(name)

    def installed(self, name="tiny"):
        return must("rpm", "--root", self.folder / "root", "--query", "--queryformat", "%{VERSION}-%{RELEASE}", name)

    def edit(self, old, new):
        text = self.file.read_text()
        assert old in text, text
        self.file.write_text(text.replace(old, new))
