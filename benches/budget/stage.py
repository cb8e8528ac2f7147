"""The set-up of the measurements: the models, their inputs, and the servers with them, which run at the same time."""
import contextlib
import random

from peers import contenders, fetch

from .inprocess import Worker
from .ledge import HOME, ONE_THREAD, WORK, CHECKOUT, Ledge, pipeline_config
from .servers import NotReady
from .wire import Tensor

CACHED = "[response_cache]\nenable = true\n"
RUNTIMES = ("onnxruntime", "openvino")
NETWORK = HOME / "models" / "efficientnet_lite0" / "1" / "model.onnx"
NETWORK_SHAPE = [1, 3, 224, 224]


def wine():
    """13 numbers: the tiny model's input."""
    return Tensor("features", "probabilities", [1, 13],
                  [13.2, 1.78, 2.14, 11.2, 100, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4, 1050])


def numbers():
    """27,648 numbers (96 x 96 x 3): 110 KB as bytes, 218 KB as JSON."""
    made = random.Random(1)
    return Tensor("IN", "OUT", [1, 27648], [round(made.random(), 5) for _ in range(27648)])


def picture():
    """150,528 numbers in [-1, 1): the MobileNet-class model's input, 602 KB as bytes."""
    made = random.Random(2)
    return Tensor("input", "logits", NETWORK_SHAPE, [round(made.random() * 2 - 1, 4) for _ in range(3 * 224 * 224)])


def picture_file():
    """The same bytes as a file, for the in-process reference."""
    path = WORK / "picture.f32"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture().bytes)
    return path


def photo():
    """A JPEG of 640x480, made once from a test photograph."""
    path = WORK / "photo_640x480.jpg"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with Worker() as worker:
            worker.ask("photo", source=str(CHECKOUT / "tests" / "data" / "photos" / "coffee.png"), target=str(path))
    return path.read_bytes()


def ledge():
    """The daemon with every model of the request rows; one thread for each model, like the peers and the reference."""
    daemon = Ledge("requests", settings=["log.level=error"])
    for name, extra in (("wine_mlp", ""), ("wine_cached", CACHED)):
        daemon.add(name, "models/wine_mlp", f'runtime = "onnxruntime"\n{ONE_THREAD}{extra}')
    for name, extra in (("sum", ""), ("sum_cached", CACHED)):
        daemon.add(name, "test-models/dynamic_sum", f'runtime = "onnxruntime"\n{ONE_THREAD}{extra}')
    for runtime in RUNTIMES:
        daemon.add(f"network_{runtime}", "models/efficientnet_lite0", pipeline_config(runtime))
    return daemon


def ledge_with(folder, models):
    """A daemon with the same models as a peer, in the same runtime, with one thread for each model."""
    daemon = Ledge(folder, settings=["log.level=error"])
    for model in models:
        source = model.onnx.parents[1].relative_to(HOME)
        network = model.onnx == NETWORK
        daemon.add(model.name, source, pipeline_config("onnxruntime") if network else
                   f'runtime = "onnxruntime"\n{ONE_THREAD}{CACHED if model.cached else ""}')
    return daemon


def peer_models():
    tiny, total = HOME / "models" / "wine_mlp" / "1" / "model.onnx", HOME / "test-models" / "dynamic_sum" / "1" / "model.onnx"
    return [
        contenders.Model("wine_mlp", tiny, "features", "probabilities", [-1, 13], [-1, 3]),
        contenders.Model("wine_cached", tiny, "features", "probabilities", [-1, 13], [-1, 3], cached=True),
        contenders.Model("sum", total, "IN", "OUT", [-1, -1], [-1]),
        contenders.Model("sum_cached", total, "IN", "OUT", [-1, -1], [-1], cached=True),
        contenders.Model("network", NETWORK, "input", "logits", [-1, 3, 224, 224], [-1, 1000]),
    ]


def peers(names):
    """The servers of the peers of these names, not started; mosec needs one for each model and format."""
    models = {model.name: model for model in peer_models()}
    made = {}
    if "triton" in names:
        made["triton"] = lambda: contenders.Triton(WORK / "triton", list(models.values()))
    if "mlserver" in names:
        made["mlserver"] = lambda: contenders.MLServer(WORK / "mlserver", list(models.values()))
    if "mosec" in names:
        for key, model, shape, form in (
                ("mosec wine", "wine_mlp", [1, 13], "json"), ("mosec json", "sum", [1, 27648], "json"),
                ("mosec raw", "sum", [1, 27648], "raw"), ("mosec network", "network", NETWORK_SHAPE, "raw")):
            made[key] = lambda key=key, model=model, shape=shape, form=form: contenders.Mosec(
                WORK / key.replace(" ", "_"), models[model], shape, form)
    return made


@contextlib.contextmanager
def servers(names, options):
    """Ledge and the peers, started: {key: server}, Ledge under "ledge". A peer that does not start is left out with a message."""
    with contextlib.ExitStack() as stack:
        running = {"ledge": stack.enter_context(ledge())}
        for key, make in peers(names).items():
            try:
                running[key] = stack.enter_context(make())
            except (NotReady, fetch.Missing) as reason:
                options.leave_out(key, reason)
        yield running
