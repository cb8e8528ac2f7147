"""The MobileNet-class int8 model served against the same model in-process, and the photograph's own share."""
import re

from .. import stage
from ..figures import Row, Spread, percentile
from ..inprocess import Worker, open_reference, serving_core
from ..lanes import ServedLane, interleave
from ..wire import binary_call, request
from .requests import beside, oip_binary, own_format, peer_lanes

DECODE = re.compile(rb'"decode":([0-9.eE+-]+)')


def prepare_cpu(server, model):
    """Seconds of the daemon's CPU time that decoding the photographs for MODEL took so far."""
    text = server.get("/metrics", "GET")[1].decode()
    series = rf'^ledge_inference_prepare_cpu_seconds_total{{model="{model}",[^}}]*}} (\S+)$'
    return float(re.search(series, text, re.M).group(1))


class PhotoLane(ServedLane):
    """Photographs, with the decoding time that each answer tells (`time_ms.decode`, by the clock on the wall), and the
    CPU time of decoding in each round, which the daemon counts.
    """

    def __init__(self, server, model, photo):
        self.decode_us, self.decode_cpu_us, self.model = [], [], model
        call = request(f"/v2/models/{model}/infer", photo, [("Content-Type", "image/jpeg")])
        super().__init__("Ledge, JPEG", server, call, self.note_decoding)

    def measure(self, seconds):
        before = prepare_cpu(self.server, self.model)
        measured = super().measure(seconds)
        self.decode_cpu_us.append((prepare_cpu(self.server, self.model) - before) / measured.calls * 1e6)
        return measured

    def note_decoding(self, connection):
        self.decode_us.append(float(DECODE.search(connection.body).group(1)) * 1e3)


def network(servers, options):
    """For each runtime: in-process, the tensor over the socket, the photograph over the socket, and the peers."""
    tensor, photo = stage.picture(), stage.photo()
    decodes = []
    for runtime in stage.RUNTIMES:
        model = f"network_{runtime}"
        reference = open_reference(runtime, stage.NETWORK, stage.picture_file(), stage.NETWORK_SHAPE)
        try:
            bytes_lane = ServedLane("Ledge", servers["ledge"], binary_call(model, tensor))
            photo_lane = PhotoLane(servers["ledge"], model, photo)
            others = peer_lanes(servers, "network", tensor, {"triton": oip_binary, "mosec network": own_format})
            lanes = [reference, bytes_lane, photo_lane, *serving_core(servers["ledge"], model),
                     *(others if runtime == "onnxruntime" else [])]
            interleave(lanes, options.rounds, 2 * options.seconds)
        finally:
            reference.worker.stop()
        options.keep(f"network, {runtime}", lanes)
        # The first was the warm-up.
        decode = photo_lane.decode_cpu_us[-len(photo_lane.rounds):]
        decodes += photo_lane.decode_us
        inprocess = f"{digits_ms(reference)} in-process"
        yield Row(f"int8 network, 602 KB over the socket, {runtime}: CPU", "% more", 6, more(bytes_lane, reference),
                  beside=[f"{digits_ms(bytes_lane)} served, {inprocess}; by thread: {bytes_lane.by_thread()}",
                          *(f"{lane.name} {more(lane, reference).show()} % more than in-process; {beside(lane, bytes_lane)}"
                            for lane in lanes[3:])])
        yield Row(f"int8 network, JPEG in, {runtime}: CPU beyond decoding", "% more", 3,
                  more(photo_lane, reference, decode),
                  beside=[f"{digits_ms(photo_lane)} served less {Spread.of(decode).show(1e-3)} ms decoding, {inprocess}; "
                          f"by thread: {photo_lane.by_thread()}"])
    yield photo_to_tensor(decodes, options)


def more(lane, reference, less=None):
    """How much more CPU a call takes than a run in-process, in per cent, round by round; LESS is taken off first."""
    less = less or [0.0] * len(lane.rounds)
    return Spread.of(((one.cpu_us - off) / other.cpu_us - 1) * 100
                     for one, other, off in zip(lane.rounds, reference.rounds, less))


def digits_ms(lane):
    return f"{lane.cpu_us().show(1e-3)} ms CPU"


def photo_to_tensor(decode_us, options):
    """What the answers told of decoding, resizing and scaling, and Pillow beside it."""
    ordered = sorted(decode_us)
    # The spread of single photographs: from the 5th to the 95th percentile.
    spread = Spread(percentile(ordered, 0.5) / 1e3, percentile(ordered, 0.05) / 1e3, percentile(ordered, 0.95) / 1e3)
    with Worker() as worker:
        spent = worker.ask("decode", photo=str(stage.WORK / "photo_640x480.jpg"), seconds=2 * options.seconds)["cpu_ns"]
    pillow = percentile(spent, 0.5) / 1e6
    return Row("JPEG 640x480 to tensor, one core [5th-95th percentile]", "ms", 3, spread,
               beside=[f"Pillow (libjpeg-turbo) and numpy {pillow / spread.median:.2f} x ours: {pillow:.2f} ms"])
