"""Reloads under load: no request is lost, and memory does not grow."""
import collections

from .. import processes, stage
from ..figures import Row, Spread
from ..ledge import Ledge, ONE_THREAD, pipeline_config
from ..rows.lifecycle import reload_under_load, told
from ..wire import binary_call, json_call


def reloads(options):
    """Ten reloads of the network under load, then 200 of the tiny model: memory after 200 to memory after 10."""
    daemon = Ledge("reloads")
    for runtime in stage.RUNTIMES:
        daemon.add(f"network_{runtime}", "models/efficientnet_lite0", pipeline_config(runtime))
    daemon.add("wine_mlp", "models/wine_mlp", f'runtime = "onnxruntime"\n{ONE_THREAD}')
    with daemon:
        before = processes.pss_kib(processes.tree(daemon.pid)) * 1024 / 1e6
        for runtime in stage.RUNTIMES:
            model = f"network_{runtime}"
            seen = reload_under_load(daemon, model, binary_call(model, stage.picture()), 2, 10, gap=0.2)
            options.keep_raw(f"ten reloads, {runtime}", seen)
            yield Row(f"ten reloads under load, {runtime}: requests lost", "lost", 0, Spread.of([seen["lost"]]), beside=[told(seen)])
        memory = collections.OrderedDict()
        for total, more in ((10, 10), (options.many_reloads, options.many_reloads - 10)):
            seen = reload_under_load(daemon, "wine_mlp", json_call("wine_mlp", stage.wine()), 1, more, gap=0.02)
            memory[total] = processes.pss_kib(processes.tree(daemon.pid)) * 1024 / 1e6
        options.keep_raw("PSS in MB after so many reloads", memory)
        first, last = memory.values()
        yield Row(f"memory after {options.many_reloads} reloads to after 10, tiny model", "x", 1.1, Spread.of([last / first]),
                  beside=[f"PSS {first:.1f} MB and {last:.1f} MB, {before:.1f} MB before any; {seen['lost']} of {seen['asked']} requests lost"])
