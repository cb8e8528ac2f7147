"""The MobileNet-class int8 model served against the same model in-process, and the photograph's own share."""
import re

from .. import stage
from ..figures import Row, Spread, percentile
from ..inprocess import DecodeLane, open_reference, serving_core
from ..lanes import ServedLane, interleave
from ..wire import binary_call, request
from .requests import beside, oip_binary, own_format, peer_lanes, ratios

DECODE = re.compile(rb'"decode":([0-9.eE+-]+)')


def prepare_cpu(server, model):
    """Seconds of the daemon's CPU time that decoding the photographs for MODEL took so far."""
    text = server.get("/metrics", "GET")[1].decode()
    series = rf'^ledge_inference_prepare_cpu_seconds_total{{model="{model}",[^}}]*}} (\S+)$'
    return float(re.search(series, text, re.M).group(1))


class PhotoLane(ServedLane):
    """Photographs, with the decoding time in each answer (`time_ms.decode`, wall-clock time), and the
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
    decodes, by_turns = [], []
    for runtime in stage.RUNTIMES:
        model = f"network_{runtime}"
        reference = open_reference(runtime, stage.NETWORK, stage.picture_file(), stage.NETWORK_SHAPE)
        pillow = DecodeLane("Pillow (libjpeg-turbo) and numpy", stage.WORK / "photo_640x480.jpg")
        try:
            bytes_lane = ServedLane("Ledge", servers["ledge"], binary_call(model, tensor))
            photo_lane = PhotoLane(servers["ledge"], model, photo)
            others = peer_lanes(servers, "network", tensor, {"triton": oip_binary, "mosec network": own_format})
            others = others if runtime == "onnxruntime" else []
            lanes = [reference, bytes_lane, photo_lane, pillow, *serving_core(servers["ledge"], model), *others]
            interleave(lanes, options.rounds, 2 * options.seconds)
        finally:
            reference.worker.stop(), pillow.worker.stop()
        options.keep(f"network, {runtime}", lanes)
        # The first was the warm-up.
        decode = photo_lane.decode_cpu_us[-len(photo_lane.rounds):]
        decodes += photo_lane.decode_us
        by_turns += [(theirs.cpu_us, ours) for theirs, ours in zip(pillow.rounds, decode)]
        inprocess = f"{digits_ms(reference)} in-process"
        yield Row(f"int8 network, 602 KB over the socket, {runtime}: CPU", "% more", 6, more(bytes_lane, reference),
                  beside=[f"{digits_ms(bytes_lane)} served, {inprocess}; by thread: {bytes_lane.by_thread()}",
                          *(f"{lane.name} {more(lane, reference).show()} % more than in-process; {beside(lane, bytes_lane)}"
                            for lane in lanes[4:])])
        yield Row(f"int8 network, 602 KB over the socket, {runtime}: CPU of a call", "ms",
                  measured=bytes_lane.cpu_us().scaled(1e-3), verdict="no budget", ratios=ratios(others, bytes_lane))
        yield Row(f"int8 network, JPEG in, {runtime}: CPU beyond decoding", "% more", 3,
                  more(photo_lane, reference, decode),
                  beside=[f"{digits_ms(photo_lane)} served less {Spread.of(decode).show(1e-3)} ms decoding, {inprocess}; "
                          f"by thread: {photo_lane.by_thread()}"])
    yield photo_to_tensor(decodes, pillow.name, by_turns)


def more(lane, reference, less=None):
    """The additional CPU time of a call over a run in-process, in percent, round by round; LESS is subtracted first."""
    less = less or [0.0] * len(lane.rounds)
    return Spread.of(((one.cpu_us - off) / other.cpu_us - 1) * 100
                     for one, other, off in zip(lane.rounds, reference.rounds, less))


def digits_ms(lane):
    return f"{lane.cpu_us().show(1e-3)} ms CPU"


def photo_to_tensor(decode_us, name, by_turns):
    """The times of decoding, resizing and scaling in the answers; and their CPU time compared with Pillow's, by round."""
    ordered = sorted(decode_us)
    # The spread of single photographs: from the 5th to the 95th percentile.
    spread = Spread(percentile(ordered, 0.5) / 1e3, percentile(ordered, 0.05) / 1e3, percentile(ordered, 0.95) / 1e3)
    ours = Spread.of(ours for _, ours in by_turns)
    theirs = Spread.of(theirs for theirs, _ in by_turns)
    to_ours = Spread.of(theirs / ours for theirs, ours in by_turns)
    return Row("JPEG 640x480 to tensor, one core [5th-95th percentile]", "ms", 3, spread,
               beside=[f"CPU {ours.show(1e-3)} ms; {name} {to_ours.show()} x ours: CPU {theirs.show(1e-3)} ms"])
