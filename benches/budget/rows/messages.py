"""The same calls over HTTP and over a broker, and the broker's own echo, in turns in one run of `ledge-bench`."""
from .. import ledge, stage
from ..broker import Mosquitto, installed
from ..figures import NOT_MEASURED, Row, Spread, digits
from ..ledge import ONE_THREAD, WORK, Ledge, pipeline_config, run_bench

CPU_RATIO_MAX = 1.5  # the daemon's CPU time over MQTT QoS 0 divided by that over HTTP
IN_FLIGHT = (1, 32)
NAMES = {"http": "HTTP", "mqtt-qos0": "MQTT QoS 0", "mqtt-qos1": "MQTT QoS 1", "echo-qos0": "the broker's echo, QoS 0",
         "echo-qos1": "the broker's echo, QoS 1"}


def mqtt(_, options):
    """A tiny model with JSON, and the network with photographs."""
    stage.photo()
    photo = WORK / "photo_640x480.jpg"
    workloads = (("tiny model, JSON", "wine_mlp", ["--json-tensors"]), ("JPEG 640x480, int8 network", "network", ["--input", photo]))
    lacking = "install mosquitto" if not installed() else None if ledge.bench_tool(ledge.BINARY) else "compile ledge-bench: make build-bench"
    if lacking:
        for what, _, _ in workloads:
            yield Row(f"{what}, over MQTT", verdict=f"{NOT_MEASURED}: {lacking}")
        return
    with Mosquitto() as broker:
        daemon = Ledge("mqtt", settings=[f"mqtt.broker=mqtt://127.0.0.1:{broker.port}", "device.id=bench",
                                         "quota.max_rate_per_principal=0", "quota.max_concurrent_per_principal=0"])
        daemon.add("wine_mlp", "models/wine_mlp", f'runtime = "onnxruntime"\n{ONE_THREAD}')
        daemon.add("network", "models/efficientnet_lite0", pipeline_config("onnxruntime"))
        with daemon:
            for what, model, request in workloads:
                yield from one_workload(what, daemon, broker, model, request, options)


def one_workload(what, daemon, broker, model, request, options):
    report = bench(daemon, broker, model, request, options)
    options.keep_raw(f"{what}, over MQTT", report)
    for in_flight in IN_FLIGHT:
        figures = {each["target"]: each["figures"] for each in report["results"] if each["load"] == {"concurrency": in_flight}}
        ratios = {}
        for each in report["ratios"]:
            if each["load"] == {"concurrency": in_flight}:
                ratios.update({name: spreads for name, spreads in each.items() if name != "load"})
        lost = {target: found["errors"] for target, found in figures.items() if found["errors"]}
        if lost:
            raise RuntimeError(f"{what}, {in_flight} in flight: {lost}")
        told = "one" if in_flight == 1 else in_flight
        goal = {"limit": CPU_RATIO_MAX} if in_flight == 1 and model == "wine_mlp" else {"verdict": "no budget"}
        yield Row(f"{what}, {told} in flight: CPU, MQTT QoS 0", "x HTTP", measured=spread(ratios["mqtt_qos0_by_http"]["cpu"]),
                  beside=[line(target, found, ratios) for target, found in figures.items()], **goal)


def line(target, figures, ratios):
    """`MQTT QoS 1 p50 2.1 x, CPU 1.6 x, answers 0.5 x HTTP: p50 180 us, ...`."""
    latency = figures["latency_ms"]
    shown = f"p50 {digits(latency['p50'] * 1e3)} us, p99 {digits(latency['p99'] * 1e3)} us, "
    if figures["cpu_ms_per_request"] is not None:
        shown += f"CPU {digits(figures['cpu_ms_per_request'] * 1e3)} us, "
    shown += f"{digits(figures['throughput'])}/s"
    to_http = ratios.get(f"{target.replace('-', '_')}_by_http")
    if to_http is None:
        return f"{NAMES[target]}: {shown}"
    named = [f"{name} {spread(to_http[key]).show()}" for key, name in (("p50", "p50"), ("cpu", "CPU"), ("throughput", "answers/s"))
             if key in to_http]
    return f"{NAMES[target]} x HTTP: {', '.join(named)}; {shown}"


def spread(found):
    return Spread(found["median"], found["min"], found["max"])


def bench(daemon, broker, model, request, options):
    """The report of one interleaved run. CPU time is only the daemon's, without client and broker."""
    return run_bench(
        daemon, model, "--url", f"http://127.0.0.1:{daemon.port}", "--url", f"mqtt://127.0.0.1:{broker.port}", "--device", "bench",
        "--qos", "0,1", "--echo", "--http", "--pid", daemon.pid, "--concurrency", ",".join(map(str, IN_FLIGHT)),
        "--rounds", options.rounds, "--duration", f"{int(options.seconds * 1000)}ms", "--warmup", "300ms", *request)
