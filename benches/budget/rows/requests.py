"""Small requests: a tiny model over JSON, answers from the cache, numbers parsed from JSON."""
import re

from .. import stage
from ..figures import NOT_MEASURED, Row, Spread, digits
from ..lanes import ServedLane, interleave, ratio
from ..wire import binary_call, json_call

CACHE = re.compile(rb"\r\nx-ledge-cache: (\w+)")


def beside(lane, ours, value="cpu_us"):
    """The line of a peer, with its ratio to Ledge first."""
    return f"{lane.name} {ratio(lane, ours, value).show()} x ours: {lane.show()}"


def ratios(lanes, ours, value="cpu_us"):
    """{name: its figure divided by Ledge's} of the peers' lanes, which ran in turns with Ledge's."""
    return {lane.name: ratio(lane, ours, value) for lane in lanes}


def peer_lanes(servers, model, tensor, calls):
    """Lanes for the peers that are up: CALLS maps a server's key to its request."""
    return [ServedLane(servers[key].name, servers[key], call(servers[key], model, tensor))
            for key, call in calls.items() if key in servers]


def oip_json(_, model, tensor):
    return json_call(model, tensor)


def oip_binary(_, model, tensor):
    return binary_call(model, tensor)


def own_format(server, _, tensor):
    return server.call(tensor)


def tiny_model(servers, options):
    """One caller of the tiny model, which sends the next request after the last answer."""
    tensor = stage.wine()
    ours = ServedLane("Ledge", servers["ledge"], json_call("wine_mlp", tensor))
    lanes = [ours, *peer_lanes(servers, "wine_mlp", tensor, {
        "triton": oip_json, "mlserver": oip_json, "mosec wine": own_format})]
    interleave(lanes, options.rounds, options.seconds)
    options.keep("tiny model", lanes)
    yield Row("tiny model over HTTP JSON, one client: p50", "us", 100, ours.p50_us(),
              beside=[f"p99 {ours.p99_us().show()} us", *(beside(lane, ours, "p50_us") for lane in lanes[1:])],
              ratios=ratios(lanes[1:], ours, "p50_us"))
    yield Row("tiny model over HTTP JSON, one client: CPU", "us", 75, ours.cpu_us(),
              beside=[beside(lane, ours) for lane in lanes[1:]], ratios=ratios(lanes[1:], ours))


def cache_hits(servers, options):
    """The same request again, to a model whose config turns the response cache on."""
    small, large = stage.wine(), stage.numbers()
    for what, limit, model, tensor, call in (
            ("cache hit, tiny input: CPU", 40, "wine_cached", small, json_call),
            ("cache hit, 110 KB input: CPU", 100, "sum_cached", large, binary_call)):
        reason = servers["ledge"].why_not(model)
        if reason:
            yield Row(what, "us", limit, verdict=NOT_MEASURED, beside=[f"{model} does not serve: {reason}"])
            continue
        ours = ServedLane("Ledge", servers["ledge"], call(model, tensor))
        ours.ask()
        told = CACHE.search(ours.connection.head)
        if told is None or told.group(1) != b"hit":
            found = f"'x-ledge-cache: {told.group(1).decode()}'" if told else "no 'x-ledge-cache'"
            yield Row(what, "us", limit, verdict=NOT_MEASURED,
                      beside=[f"the response cache does not answer: the second of two equal requests had {found} and not 'hit'"])
            continue
        lanes = [ours, *peer_lanes(servers, model, tensor, {"triton": oip_json if call is json_call else oip_binary})]
        interleave(lanes, options.rounds, options.seconds)
        options.keep(what, lanes)
        yield Row(what, "us", limit, ours.cpu_us(),
                  beside=[f"p50 {ours.p50_us().show()} us", *(beside(lane, ours) for lane in lanes[1:])],
                  ratios=ratios(lanes[1:], ours))


def json_numbers(servers, options):
    """218 KB of JSON numbers and the same numbers as 110 KB of bytes, to a model that adds them up: the difference."""
    tensor = stage.numbers()
    text, raw = {"triton": oip_json, "mlserver": oip_json, "mosec json": own_format}, {
        "triton": oip_binary, "mosec raw": own_format}
    call = json_call("sum", tensor)
    as_json = [ServedLane("Ledge", servers["ledge"], call), *peer_lanes(servers, "sum", tensor, text)]
    as_bytes = [ServedLane("Ledge", servers["ledge"], binary_call("sum", tensor)), *peer_lanes(servers, "sum", tensor, raw)]
    interleave(as_json + as_bytes, options.rounds, options.seconds)
    options.keep("JSON numbers", as_json), options.keep("the same as bytes", as_bytes)
    binary = {lane.name: lane for lane in as_bytes}
    parsed = {lane.name: parsing_ms(lane, binary[lane.name]) for lane in as_json if lane.name in binary}
    ours = parsed.pop("Ledge")
    to_ours = {name: Spread.of(theirs / us for theirs, us in zip(spent, ours)) for name, spent in parsed.items()}
    lines = [f"{name} {to_ours[name].show()} x ours: {Spread.of(spent).show()} ms" for name, spent in parsed.items()]
    lines += [f"{lane.name} takes no binary tensors over HTTP; its whole JSON call: {lane.cpu_us().show(1e-3)} ms CPU"
              for lane in as_json if lane.name not in binary]
    yield Row(f"{len(call) // 1000} KB of JSON numbers parsed: CPU", "ms", 1, Spread.of(ours), beside=lines, ratios=to_ours)


def parsing_ms(text, raw):
    return [(one.cpu_us - other.cpu_us) / 1e3 for one, other in zip(text.rounds, raw.rounds)]
