"""Five models: every thread with the cores that it may run on, and their CPU time without calls."""
import os
import time

from .. import processes
from ..figures import Row, Spread
from ..rows.footprint import five_models, settled


def threads(options):
    """Prints the threads, then watches the clock ticks of an idle minute."""
    with five_models() as daemon:
        pids = settled(daemon)
        found = processes.threads(pids)
        for name, cores in sorted(found):
            print(f"  {name:<16} cores {cores}")
        ticks, exact, start = processes.cpu_ticks(daemon.pid), processes.cpu_ns(pids), time.perf_counter()
        time.sleep(options.idle_seconds)
        ticks, exact = processes.cpu_ticks(daemon.pid) - ticks, processes.cpu_ns(pids) - exact
        watched = time.perf_counter() - start
    yield Row("threads with five models", "", 20, Spread.of([len(found)]))
    yield Row("CPU while idle, five models", "ms", None, Spread.of([exact / 1e6]), verdict="no budget", beside=[
        f"{ticks} ticks of {1000 // os.sysconf('SC_CLK_TCK')} ms in {watched:.0f} s: {exact / 1e7 / watched:.4f} % of a core"])
