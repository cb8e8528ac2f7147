"""The daemon from this checkout, over folders made for the measurement."""
import json
import shutil
import subprocess
from pathlib import Path

from .servers import Server

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = CHECKOUT / ".ledge"
WORK = HOME / "bench"
BINARY = CHECKOUT / "target" / "dist" / "ledge"  # the build of packages; --binary chooses another one
ONE_THREAD = "instance_group = { count = 1, threads = 1 }\n"


class Ledge(Server):
    """`ledge serve` over a root of its own under .ledge/bench."""

    name = "Ledge"
    cores = None  # those that it may use, as for taskset; None is all

    def __init__(self, folder, settings=()):
        super().__init__(WORK / folder)
        self.models = self.folder / "models"
        self.settings = list(settings)
        self.binary = BINARY
        if self.models.exists():
            shutil.rmtree(self.models)
        self.models.mkdir()

    def add(self, name, source, config):
        """A model: the version folder and labels of SOURCE (under .ledge), and CONFIG as its model.toml."""
        folder = self.models / name
        shutil.copytree(HOME / source / "1", folder / "1")
        labels = HOME / source / "labels.txt"
        if labels.exists():
            shutil.copy(labels, folder)
        (folder / "model.toml").write_text(config)
        return self

    def command(self):
        settings = [f"http.listen=127.0.0.1:{self.port}", f"runtimes.dir={HOME / 'runtimes'}", "log.format=text",
                    "log.level=warn", 'access.loopback=["viewer","infer","feature-writer","operator"]', *self.settings]
        options = [part for setting in settings for part in ("--set", setting)]
        pinned = ["taskset", "-c", self.cores] if self.cores else []
        return [*pinned, self.binary, "serve", "--root", self.folder, *options], {}

    def ready(self):
        """Ready with every model: the first start of a box does not wait for new ones."""
        return super().ready() and b'"LOADING"' not in self.get("/v2/repository/index", "POST", "{}")[1]

    def forget_compiled(self):
        """Empties the cache of compiled models."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def why_not(self, model):
        """None for a model that is ready, otherwise the reason in the index."""
        _, body = self.get("/v2/repository/index", "POST", "{}")
        for entry in json.loads(body):
            if entry["name"] == model:
                return None if entry.get("state") == "READY" else entry.get("reason", "not loaded")
        return "not in the repository"


def bench_tool(binary):
    """The program `ledge-bench` of the same build as a binary, or None."""
    tool = Path(binary).with_name("ledge-bench")
    return tool if tool.is_file() else None


def run_bench(daemon, model, *options):
    """The report of `ledge-bench` on a model of the daemon's folder."""
    command = [bench_tool(daemon.binary), model, "--root", daemon.folder, "--set", f"runtimes.dir={HOME / 'runtimes'}", "--json", *options]
    result = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"ledge-bench ended with {result.returncode}: {result.stderr.strip()[-300:]}")
    return json.loads(result.stdout)


def pipeline_config(runtime, instances=1):
    """The model config of the MobileNet-class model: as shipped, pinned to a runtime, one thread an instance."""
    shipped = (HOME / "models" / "efficientnet_lite0" / "model.toml").read_text()
    kept = shipped.split("[[golden]]")[0]
    kept = kept.replace('runtime = "auto"', f'runtime = "{runtime}"')
    return f"instance_group = {{ count = {instances}, threads = 1 }}\n" + kept
