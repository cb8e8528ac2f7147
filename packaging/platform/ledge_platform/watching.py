"""`watch`: reads what boxes report, asks `watch.decide`, and pauses the rollout."""
import sys
import time

from . import fleets, moments, publish, reports, rollouts, watch
from .errors import DONE, REFUSED
from .page import Watched

LOOK_EVERY_S = 5
PAGE_EVERY_S = 60


def run(given, repository, ring, broker, page=None):
    """Until the rollout is paused or gone; with --once, one look. PAGE is written on the way."""
    repository.need(["fleet", "snapshot", "timestamp"], ring)  # better now than in an hour, when it matters
    fleet = fleets.holding(repository, given.rollout, given.fleet)
    policy = watch.Policy(
        given.rollout, given.max_failures, given.max_silent, given.min_failures, given.min_reports, given.silent_after)
    broker.gather()
    before, pages = None, Pages(page, broker, fleet, policy)
    while True:
        state = rollout_of(repository, fleet, given.rollout)
        if state is None or state.get("paused"):
            if given.publish:  # an earlier run may have been cut off between the pause and its publication
                with repository.locked():
                    publish.publish(repository, given.publish, given.endpoint)
            pages.write()
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
            pages.write(decision.reason)
            return REFUSED
        pages.write_if_due()
        if given.once:
            return DONE
        time.sleep(LOOK_EVERY_S)


class Pages:
    """The fleet page, which is written once a minute. It must not keep a rollout from being paused."""

    def __init__(self, page, broker, fleet, policy):
        self.page, self.broker, self.fleet, self.policy = page, broker, fleet, policy
        self.written_s, self.complaint = None, None

    def write_if_due(self):
        if self.written_s is None or time.monotonic() - self.written_s >= PAGE_EVERY_S:
            self.write()

    def write(self, reason=None):
        if self.page is None:
            return
        self.written_s = time.monotonic()
        try:
            self.page.write(self.broker, Watched(self.fleet, self.policy, reason))
            self.complaint = None
        except Exception as error:  # the disk is full, a report has another form than all before
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self.complaint:
                print(f"ledge-platform: the page cannot be written: {reports.printable(complaint)}", file=sys.stderr)
            self.complaint = complaint


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
    print(f"{moments.text(moments.now())} {reports.printable(text)}", flush=True)
