"""The tuner."""
import json
import subprocess

from .. import ledge
from ..figures import Row, Spread


# A convolutional network, a small classifier, and a model with almost no work; each in both runtimes.
TUNED = (("efficientnet_lite0", "models"), ("wine_mlp", "models"), ("dynamic_sum", "test-models"))


def tuner(_, options):
    """`ledge tune --exhaustive`: it chooses, then measures every combination in turns, and shows how far its
    choice is from the best of them there. Nothing is kept.
    """
    what = "tuner's choice against an exhaustive search"
    behind = []
    for model, folder in TUNED:
        command = [ledge.BINARY, "--root", ledge.CHECKOUT / ".ledge", "--set",
                   f'repository.path="{ledge.CHECKOUT / ".ledge" / folder}"', "tune", model, "--exhaustive", "--dry-run",
                   "--json", "--rounds", str(options.rounds)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"ledge tune {model} ended with {result.returncode}: {result.stderr.strip()[-300:]}")
        report = json.loads(result.stdout)
        chosen = "{runtime}, {threads} threads x {instances}, batch {batch}".format(**report["chosen"])
        behind.append((model, (report["ratio_to_best"] - 1) * 100, chosen))
    gaps = [gap for _, gap, _ in behind]
    yield Row(what, "% slower", 3, Spread(max(gaps), min(gaps), max(gaps)),
              beside=[f"{model}: {gap:.1f} % from the best; {chosen}" for model, gap, chosen in behind])
