"""Memory and threads."""
import collections
import time

from .. import processes
from ..figures import Row, Spread
from ..ledge import Ledge
from ..servers import Server

FIVE = {  # as a user would have them: nothing set but what a model needs
    "efficientnet_lite0": "models/efficientnet_lite0", "wine_mlp": "models/wine_mlp",
    "dynamic_sum": "test-models/dynamic_sum", "add_sub": "test-models/add_sub", "slow": "test-models/slow"}


def five_models():
    daemon = Ledge("five")
    for name, source in FIVE.items():
        daemon.add(name, source, "")
    return daemon


def settled(server: Server, seconds=1.0):
    """Its process ids, once what a start leaves behind has calmed down."""
    time.sleep(seconds)
    return processes.tree(server.pid)


def memory_without_models(_, options):
    """PSS of the daemon alone: what the control plane costs."""
    seen = []
    for _ in range(options.starts):
        with Ledge("empty") as daemon:
            seen.append(processes.pss_kib(settled(daemon, 0.3)) * 1024 / 1e6)
    yield Row("resident memory (PSS) without models", "MB", 15, Spread.of(seen))


def threads_with_five_models(servers, options):
    """Every thread, its name, and how much they do while nobody asks."""
    with five_models() as daemon:
        pids = settled(daemon)
        found = processes.threads(pids)
        memory = processes.pss_kib(pids) * 1024 / 1e6
        before, start = processes.cpu_ns(pids), time.perf_counter()
        time.sleep(options.idle_seconds)
        idle = (processes.cpu_ns(pids) - before) / 1e9 / (time.perf_counter() - start)
    named = collections.Counter(name for name, _ in found)
    others = []
    for key, server in servers.items():
        if key in ("triton", "mlserver", "mosec network"):
            tree = processes.tree(server.pid)
            count, pss = len(processes.threads(tree)), processes.pss_kib(tree) * 1024 / 1e6
            others.append(f"{server.name} {count / len(found):.1f} x ours, {server.holds()}: {count} threads, "
                          f"{pss:.0f} MB in {len(tree)} process{'es' * (len(tree) > 1)}")
    yield Row("threads with five models", "", 20, Spread.of([len(found)]), beside=[
        ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(named.items())),
        f"PSS {memory:.0f} MB; idle: {idle * 100:.3f} % of a core over {options.idle_seconds:g} s", *others])
