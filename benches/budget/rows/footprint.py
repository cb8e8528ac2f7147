"""Memory and threads."""
import collections
import time

from .. import processes, stage
from ..figures import Row, Spread
from ..ledge import Ledge
from ..servers import Server

FIVE_MODELS = {  # as a user would have them: only the settings that a model needs
    "efficientnet_lite0": "models/efficientnet_lite0", "wine_mlp": "models/wine_mlp",
    "dynamic_sum": "test-models/dynamic_sum", "add_sub": "test-models/add_sub", "slow": "test-models/slow"}


def five_models():
    daemon = Ledge("five")
    for name, source in FIVE_MODELS.items():
        daemon.add(name, source, "")
    return daemon


def settled(server: Server, seconds=1.0):
    """The process ids, once the work of the start has ended."""
    time.sleep(seconds)
    return processes.tree(server.pid)


def memory_without_models(_, options):
    """The PSS of the daemon without models: the cost of the control plane."""
    seen = []
    for _ in range(options.starts):
        with Ledge("empty") as daemon:
            seen.append(processes.pss_kib(settled(daemon, 0.3)) * 1024 / 1e6)
    yield Row("resident memory (PSS) without models", "MB", 15, Spread.of(seen))


def threads_with_five_models(servers, options):
    """Every thread with its name, and their CPU time without calls."""
    with five_models() as daemon:
        pids = settled(daemon)
        found = processes.threads(pids)
        memory = processes.pss_kib(pids) * 1024 / 1e6
        before, start = processes.cpu_ns(pids), time.perf_counter()
        time.sleep(options.idle_seconds)
        idle = (processes.cpu_ns(pids) - before) / 1e9 / (time.perf_counter() - start)
    named = collections.Counter(name for name, _ in found)
    yield Row("threads with five models", "", 20, Spread.of([len(found)]), beside=[
        ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(named.items())),
        f"PSS {memory:.0f} MB; idle: {idle * 100:.3f} % of a core over {options.idle_seconds:g} s"])
    yield threads_beside_peers(servers)


def threads_beside_peers(servers):
    """The same models in ONNX Runtime on both sides."""
    models = stage.peer_models()
    counts, lines = {}, []
    with stage.ledge_with("five-peers", models) as daemon:
        settled(daemon)
        for server in (daemon, *(servers[key] for key in ("triton", "mlserver") if key in servers)):
            tree = processes.tree(server.pid)
            counts[server.name] = len(processes.threads(tree))
            lines.append(f"{server.name}: {counts[server.name]} threads, {processes.pss_kib(tree) * 1024 / 1e6:.0f} MB in "
                         f"{len(tree)} process{'es' * (len(tree) > 1)}")
    ours = counts.pop(daemon.name)
    return Row(f"threads with the peers' {len(models)} models in ONNX Runtime", "threads", measured=Spread.of([ours]), beside=lines,
               verdict="no budget", ratios={name: Spread.of([count / ours]) for name, count in counts.items()})
