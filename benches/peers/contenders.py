"""Triton, MLServer and mosec as servers of the same ONNX files, and Feast's server of the same features.

The first three have ONNX Runtime and as many threads as Ledge gets. Each is set up the way that serves one caller with the least work: access logs, metrics and gRPC off where that can be
said, MLServer without its worker processes. They listen on loopback only.
"""
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import List

from budget.servers import Server, free_port
from budget.wire import request

from . import fetch

HERE = Path(__file__).resolve().parent


@dataclass
class Model:
    """The properties of a model that a peer needs."""

    name: str
    onnx: Path
    input: str
    output: str
    dims: List[int]  # of the input, as declared: -1 where variable
    output_dims: List[int]
    cached: bool = False


class Peer(Server):
    """A server in its environment under .ledge/peers."""

    environment = ""

    def __init__(self, folder, models, threads=1):
        super().__init__(folder)
        self.python = fetch.python_of(self.environment)
        self.models, self.threads = models, threads
        if self.python is None:
            raise fetch.Missing(f"{self.environment} is not fetched")

    def holds(self):
        """A description of the served model."""
        return "with one model" if len(self.models) == 1 else f"with {len(self.models)} models"

    def site_packages(self):
        return next((self.python.parents[1] / "lib").glob("python3.*/site-packages"))

    def python_says(self, expression):
        code = f"import sys, sysconfig; print({expression})"
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class Triton(Peer):
    """Triton's own server as nvidia-pytriton carries it; models through its Python backend, triton_model.py.

    The wheel has no ONNX Runtime backend, so a call also crosses from the server to the backend's process.
    """

    name, environment = "Triton", "triton"
    grpc_port = None  # None is without gRPC

    def __init__(self, folder, models, threads=1):
        super().__init__(folder, models, threads)
        self.root = self.site_packages() / "pytriton" / "tritonserver"
        # The backend's process embeds Python: it needs the shared library of the very version.
        minor = self.python_says("'%d.%d' % sys.version_info[:2]")
        self.libraries = Path(self.python_says("sysconfig.get_config_var('LIBDIR')"))
        if self.python_says("sysconfig.get_config_var('Py_ENABLE_SHARED')") != "1":
            raise fetch.Missing(f"Triton's Python backend needs libpython{minor}.so, and this Python is built without it")
        # The server searches for that process's program only next to the backend's library.
        self.backends = self.folder / "backends"
        shutil.copytree(self.root / "backends", self.backends, dirs_exist_ok=True)
        shutil.copy(self.root / "python_backend_stubs" / minor / "triton_python_backend_stub", self.backends / "python")
        self.repository = self.folder / "models"
        shutil.rmtree(self.repository, ignore_errors=True)
        for model in models:
            version = self.repository / model.name / "1"
            version.mkdir(parents=True)
            shutil.copy(HERE / "triton_model.py", version / "model.py")
            (self.repository / model.name / "config.pbtxt").write_text(self.config(model))

    def config(self, model):
        return "\n".join([
            f'name: "{model.name}"', 'backend: "python"', "max_batch_size: 0",
            f'input [{{ name: "{model.input}", data_type: TYPE_FP32, dims: {model.dims} }}]',
            f'output [{{ name: "{model.output}", data_type: TYPE_FP32, dims: {model.output_dims} }}]',
            "instance_group [{ kind: KIND_CPU, count: 1 }]",
            f"response_cache {{ enable: {str(model.cached).lower()} }}",
            f'parameters {{ key: "onnx" value {{ string_value: "{model.onnx}" }} }}',
            f'parameters {{ key: "threads" value {{ string_value: "{self.threads}" }} }}', ""])

    def command(self):
        libraries = [self.site_packages() / "nvidia_pytriton.libs", self.libraries]
        return [
            self.root / "bin" / "tritonserver", "--model-repository", self.repository,
            "--model-control-mode", "explicit", "--load-model", "*",
            "--backend-directory", self.backends, "--cache-directory", self.root / "caches",
            "--cache-config", f"local,size={64 << 20}", "--http-address", "127.0.0.1", "--http-port", self.port,
            *(["--grpc-address", "127.0.0.1", "--grpc-port", self.grpc_port] if self.grpc_port else ["--allow-grpc", "false"]),
            "--allow-metrics", "false", "--log-info", "false",
        ], {"LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            # The embedded Python is isolated: it finds its packages by the python3 that comes first in PATH.
            "PATH": f"{self.python.parent}:{os.environ['PATH']}"}


class MLServer(Peer):
    """MLServer with mlserver_runtime.py, in one process."""

    name, environment = "MLServer", "mlserver"

    def command(self):
        settings = {
            "host": "127.0.0.1", "http_port": self.port, "grpc_port": free_port(), "metrics_endpoint": None,
            "parallel_workers": 0, "debug": False, "use_structured_logging": False, "environments_dir": str(self.folder)}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        for model in self.models:
            folder = self.folder / "models" / model.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model-settings.json").write_text(json.dumps({
                "name": model.name, "implementation": "mlserver_runtime.OnnxModel",
                "parameters": {"uri": str(model.onnx), "extra": {"threads": self.threads}}}))
        return [self.python.with_name("mlserver"), "start", self.folder], {
            "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}


class Mosec(Peer):
    """mosec with mosec_server.py: one model, one format a server."""

    name, environment, ready_path = "mosec", "mosec", "/"

    def __init__(self, folder, model, shape, form, threads=1):
        super().__init__(folder, [model], threads)
        self.shape, self.form = shape, form

    def command(self):
        (self.folder / "ipc").mkdir(exist_ok=True)
        # A Unix socket's path may have 108 bytes: relative to the folder it runs in.
        return [self.python, "-s", "-B", HERE / "mosec_server.py", "--address", "127.0.0.1", "--port", self.port,
                "--path", "ipc", "--log-level", "warning"], {
            "BENCH_ONNX": str(self.models[0].onnx), "BENCH_SHAPE": ",".join(map(str, self.shape)),
            "BENCH_THREADS": str(self.threads), "BENCH_FORMAT": self.form}

    def call(self, tensor):
        """A request in its own format."""
        if self.form == "raw":
            return request("/inference", tensor.bytes, [("Content-Type", "application/octet-stream")])
        body = json.dumps({"data": tensor.numbers}, separators=(",", ":")).encode()
        return request("/inference", body, [("Content-Type", "application/json")])


class Feast(Peer):
    """`feast serve` with its SQLite online store: one worker, which is never replaced, and no access log."""

    name, environment, ready_path = "Feast", "feast", "/health"

    def __init__(self, folder, entities):
        super().__init__(folder, [])
        self.entities = entities

    def holds(self):
        return f"with {self.entities} entities"

    def command(self):
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        subprocess.run([self.python, "-B", HERE / "feast_repository.py", self.folder, str(self.entities)], check=True,
                       stdin=subprocess.DEVNULL, capture_output=True)
        return [self.python, "-B", self.python.with_name("feast"), "-c", self.folder, "serve", "--host", "127.0.0.1",
                "--port", self.port, "--no-access-log", "--workers", "1", "--max-requests", "0",
                "--keep-alive-timeout", "3600", "--registry_ttl_sec", "3600"], {}


def which_are_fetched():
    """(the names that can run here, {name: the reason why not})."""
    absent = {name: "not fetched: make bench-peers" for name in fetch.NAMES[1:] if fetch.python_of(name) is None}
    return [name for name in fetch.NAMES[1:] if name not in absent], absent
