"""`watch`: reads what boxes report, asks `watch.decide`, and pauses the rollout."""
import time

from . import fleets, moments, publish, rollouts, watch
from .errors import DONE, REFUSED

LOOK_EVERY_S = 5


def run(given, repository, ring, broker):
    """Until the rollout is paused or gone; with --once, one look."""
    repository.need(["fleet", "snapshot", "timestamp"], ring)  # better now than in an hour, when it matters
    fleet = fleets.holding(repository, given.rollout, given.fleet)
    policy = watch.Policy(
        given.rollout, given.max_failures, given.max_silent, given.min_failures, given.min_reports, given.silent_after)
    broker.gather()
    before = None
    while True:
        state = rollout_of(repository, fleet, given.rollout)
        if state is None or state.get("paused"):
            if given.publish:  # whoever paused it may have been cut off before the world heard of it
                with repository.locked():
                    publish.publish(repository, given.publish, given.endpoint)
            say(f"rollout {given.rollout} is {'paused' if state else 'gone'}: nothing to watch")
            return DONE
        decision = watch.decide(
            [device for device in broker.snapshot() if device.fleet == fleet], policy, broker.clock()
        )
        if str(decision) != before:
            say(str(decision))
            before = str(decision)
        if decision.pause:
            pause(given, repository, ring, broker, fleet, decision)
            return REFUSED
        if given.once:
            return DONE
        time.sleep(LOOK_EVERY_S)


def rollout_of(repository, fleet, rollout_id):
    return next(
        (rollout for rollout in fleets.load(repository, fleet).manifest["rollouts"] if rollout["id"] == rollout_id),
        None,
    )


def pause(given, repository, ring, broker, fleet, decision):
    def change(manifest, notes):
        if not rollouts.find(manifest, given.rollout).get("paused"):
            rollouts.pause(manifest, notes, given.rollout, moments.now())

    with repository.locked():
        fleets.edit(repository, fleet, ring, change)
        if given.publish:
            publish.publish(repository, given.publish, given.endpoint)
        version = repository.load("timestamp").signed.version
    say(f"PAUSED rollout {given.rollout} of fleet {fleet}: {decision.reason}")
    for cause, count in decision.causes.most_common():
        say(f"  {count} x {cause}, such as {decision.examples[cause]}")
    if decision.silent:
        say(f"  {decision.silent} silent, such as {decision.examples['silent']}")
    told = broker.hint([device.device for device in broker.snapshot() if device.fleet == fleet], version)
    say(f"  {told} boxes told to look now")


def say(text):
    print(f"{moments.text(moments.now())} {text}", flush=True)
