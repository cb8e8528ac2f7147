"""Rows of what is not built yet, and the hook for the tuner."""
import json
import subprocess

from .. import ledge
from ..figures import Row, Spread, not_built


def tuner(_, options):
    """`ledge tune --exhaustive --json`: how far the choice is from the best of every setting, both measured by it.

    Expected of it: {"models": [{"model", "chosen": {"throughput"}, "best": {"throughput"}}]}.
    """
    what = "tuner's choice against an exhaustive search"
    if not ledge.has_verb("tune", ledge.BINARY):
        yield Row(what, "% slower", 3, verdict=not_built(2), beside=["`ledge tune` is not there"])
        return
    command = [ledge.BINARY, "--root", ledge.CHECKOUT / ".ledge", "tune", "--exhaustive", "--json"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"ledge tune ended with {result.returncode}: {result.stderr.strip()[-300:]}")
    models = json.loads(result.stdout)["models"]
    behind = [(1 - model["chosen"]["throughput"] / model["best"]["throughput"]) * 100 for model in models]
    yield Row(what, "% slower", 3, Spread(max(behind), min(behind), max(behind)),
              beside=[f"{model['model']}: {gap:.1f} % behind the best" for model, gap in zip(models, behind)])


def feature_store(*_):
    for what, unit, limit in (
            ("feature store: point read", "us", 10), ("feature store: 20 features of one entity over HTTP", "us", 150)):
        yield Row(what, unit, limit, verdict=not_built(4))
    yield Row("feature store: durable writes acknowledged, 100 clients", "/s", 10_000, at_least=True, verdict=not_built(4))
