"""Podman of a user without rights, with a store of its own, and a container of Ledge in it as docs/containers.md runs one."""
import contextlib
import http.client
import io
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path.append(str(CHECKOUT / "tests"))
import pages  # noqa: E402

LEDGE = Path(os.environ.get("LEDGE_TEST_ROOT", CHECKOUT / ".ledge"))
TOOLS = LEDGE / "peers" / "kubernetes-tools"
# The user, and its subordinate users: numbers that no distribution assigns to anybody.
USER, SUBORDINATE = 20019, 2_000_000_000
# The user of the image.
OWNER = 10001
LIMIT = 180
NAMES = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\ntester:x:{USER}:{USER}::/:/bin/sh\n",
    "group": f"root:x:0:\nnogroup:x:65534:\ntester:x:{USER}:\n",
    "subuid": f"tester:{SUBORDINATE}:65536\n", "subgid": f"tester:{SUBORDINATE}:65536\n"}
# The driver vfs, the default without fuse-overlayfs, copies the whole image for each container.
STORAGE = '[storage]\ndriver = "overlay"\n'
PROGRAMS = {
    "podman": "podman", "conmon": "conmon", "crun": "crun", "newuidmap": "uidmap", "slirp4netns": "slirp4netns", "skopeo": "skopeo",
    "buildah": "buildah", "openssl": "openssl"}


def enter(command, environment):
    """Goes on as COMMAND in a mount namespace that has the user, and the device of networks for everybody, as udev leaves it."""
    script = (
        # crun runs nothing where control groups of both versions are.
        "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; "
        'mount --make-rshared / && folder=$1 && shift && mount -t tmpfs -o mode=755 names "$folder" && '
        + "".join(f"printf %s {shlex.quote(text)} > \"$folder/{name}\" && mount --bind \"$folder/{name}\" /etc/{name} && " for name, text in NAMES.items())
        + 'mknod -m 666 "$folder/tun" c 10 200 && mount --bind "$folder/tun" /dev/net/tun && exec "$@"')
    folder = tempfile.mkdtemp(prefix="ledge-names-")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", folder, *map(str, command)]
    done = subprocess.run(command, env={**os.environ, **environment})
    os.rmdir(folder)
    raise SystemExit(done.returncode)


@contextlib.contextmanager
def store():
    """The folder of the tests, and in it Podman's store; all of it is removed in the end."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program, path=path()):
            raise SystemExit(f"{program} is not installed: `make setup-peers` installs it (Debian: {package})")
    if not (TOOLS / "usr/bin/cosign").is_file():
        raise SystemExit(f"{TOOLS} has no cosign: `make setup-kubernetes` gets it")
    folder = Path(tempfile.mkdtemp(prefix="ledge-containers-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        Podman.folder = folder
        for name in ("home", "home/.config/containers", "run", "share"):
            (folder / name).mkdir(parents=True)
        (folder / "home/.config/containers/storage.conf").write_text(STORAGE)
        if os.geteuid() == 0:
            for place in [folder / "home", *folder.joinpath("home").rglob("*"), folder / "run"]:
                os.chown(place, USER, USER)
        (folder / "run").chmod(0o700)
        yield
    finally:
        Podman.podman("system", "reset", "--force")
        shutil.rmtree(folder)


def path():
    return f"{os.environ['PATH']}:/usr/sbin:/sbin:{TOOLS}/usr/bin"


class Podman:
    """The commands of the user without rights."""
    folder = None

    @classmethod
    def as_user(cls, **environment):
        """The options of a process of the user."""
        home = cls.folder / "home"
        environment = {"PATH": path(), "HOME": str(home), "XDG_RUNTIME_DIR": str(cls.folder / "run"), "LC_ALL": "C.UTF-8", **environment}
        user = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        return {"cwd": home, "env": environment, "stdin": subprocess.DEVNULL, **user}

    @classmethod
    def run(cls, *words, check=True, env=None):
        """Runs a command of the user."""
        # Logs of containers have what a process of models writes.
        options = {**cls.as_user(**(env or {})), "capture_output": True, "text": True, "errors": "replace"}
        done = subprocess.run([str(word) for word in words], **options)
        if check and done.returncode:
            raise AssertionError(f"{shlex.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    @classmethod
    def podman(cls, *words, **more):
        return cls.run("podman", *words, **more).stdout.strip()

    @classmethod
    def loaded(cls, archive):
        """Loads an archive, and returns the name of the image."""
        return cls.podman("load", "--quiet", "--input", cls.shared(archive)).rsplit(" ", 1)[1]

    @classmethod
    def shared(cls, source, name=None):
        """A copy of a file or folder that the user can read, and a container too."""
        source, target = Path(source), cls.folder / "share" / (name or Path(source).name)
        if not target.exists():
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        return target


def blocks(heading, language):
    """The examples of a section of docs/containers.md."""
    return pages.fences("docs/containers.md", heading, language)


def commands(heading, number=0):
    """The commands of an example of a section, each a line of shell."""
    return pages.commands(blocks(heading, "console")[number])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, is_so, limit=LIMIT):
    """Waits until something is so, and returns it."""
    end = time.monotonic() + limit
    while not (found := is_so()):
        assert time.monotonic() < end, f"{what}: not within {limit} s"
        time.sleep(0.1)
    return found


def kill(container):
    """Kills a container as a crash does, and starts it again."""
    Podman.podman("kill", "--signal", "KILL", container)
    Podman.podman("wait", container)
    Podman.podman("start", container)


class Box:
    """A container of Ledge, run by the command of docs/containers.md, with more options, and with its state in a volume of its name."""
    NAME = "ledge"

    def __init__(self, image, settings="", options=(), network=("--network", "host")):
        self.image, self.options, self.network = image, options, network
        self.port, self.grpc_port = free_port(), free_port()
        listen = f'[http]\nlisten = ["127.0.0.1:{self.port}", "unix:/run/ledge/ledge.sock"]\n[grpc]\nlisten = ["127.0.0.1:{self.grpc_port}"]\n'
        self.settings = Podman.folder / "share" / f"{self.NAME}-{self.port}.toml"
        self.settings.write_text(listen + settings)

    def command(self):
        """The command of the page, with this image, and with the options before it."""
        words = shlex.split(next(line for line in commands("With Podman or Docker") if line.startswith("podman run ")))
        assert words.pop().startswith("localhost/ledge:") and words[words.index("--name") + 1] == self.NAME, words
        for confined in ("--read-only", "--cap-drop=all", "no-new-privileges"):
            assert confined in words, f"the page no longer runs it with {confined}"
        at = words.index("--network")
        words[at:at + 2] = self.network
        return [*words, "-v", f"{self.settings}:/etc/ledge/ledge.toml:ro", *self.options, self.image]

    def start(self):
        Podman.run(*self.command())
        self.wait_until_ready(starts=1)

    def wait_until_ready(self, starts):
        """Waits until it is ready, and has loaded all models at its last of so many starts."""
        def is_ready():
            state = Podman.podman("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self.NAME)
            assert state.startswith("running"), f"{state}\n{self.log()}"
            return self.log().count("model repository read") == starts and self.ledge("health", "--ready", check=False).returncode == 0

        until("the box is ready", is_ready)

    def remove(self, volume=False):
        Podman.podman("rm", "--force", "--ignore", "--time", "60", self.NAME)
        if volume:
            Podman.podman("volume", "rm", "--force", "ledge-state")

    def ledge(self, *words, **more):
        """Runs the program in the container."""
        return Podman.run("podman", "exec", self.NAME, "/usr/bin/ledge", *words, **more)

    def log(self):
        done = Podman.run("podman", "logs", self.NAME)
        return done.stdout + done.stderr

    def call(self, path, body=None, **headers):
        """The status and the answer of a call over HTTP."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def infer(self, model, file):
        status, answer = self.call(f"/v2/models/{model}/infer", Path(file).read_bytes(), Content_Type="image/png")
        assert status == 200, answer
        return json.loads(answer)


def fill_volume(*folders):
    """Makes the volume with models of the tests in it, as their owner has them."""
    archive = io.BytesIO()

    def owned(entry):
        entry.uid = entry.gid = OWNER
        entry.mode = 0o700 if entry.isdir() else 0o600
        return entry

    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in (".", "models"):
            tar.addfile(owned(directory(name)))
        for folder in folders:
            tar.add(folder, f"models/{folder.name}", filter=owned)
    file = Podman.folder / "share/state.tar"
    file.write_bytes(archive.getvalue())
    Podman.podman("volume", "create", "ledge-state")
    Podman.podman("volume", "import", "ledge-state", file)


def directory(name):
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    return entry
