"""Decides whether a rollout may continue. Pure: reports of boxes go in, a decision comes out.

A share alone decides badly: one broken box of five is 20 %, and a release that fails everywhere is at 0 % until the
first box has tried it. So the failures are counted among the boxes that have TRIED the release, and the question is
whether so many could be chance if no more than the limit failed in truth: the tail of a binomial distribution, below
ALPHA, and at least MIN_FAILURES boxes. With the limit at 2 % that is 3 failures among up to 41 boxes, 6 among 100, 29
among 1,000. Boxes that fall silent during a trial are judged in the same way, with a limit of their own.
"""
import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

# The platform or the owner of a box ended it: this says nothing about the release.
NO_FAULT = {"superseded", "withdrawn", "revoked", "operator"}
# A release is tried from here on: before, its files are only on their way.
TRIED = ("verified", "staged", "shadow", "canary", "active")


@dataclass(frozen=True)
class Policy:
    """When a rollout is paused."""

    rollout: str
    max_failures: float = 0.02
    max_silent: float = 0.05
    min_failures: int = 3
    min_reports: int = 3
    silent_after_s: float = 900
    alpha: float = 0.05


@dataclass
class Decision:
    """The findings, and whether the rollout has to be paused."""

    pause: bool = False
    reason: str = ""
    tried: int = 0
    committed: int = 0
    failed: int = 0
    silent: int = 0
    under_way: int = 0
    causes: Counter = field(default_factory=Counter)
    examples: dict = field(default_factory=dict)

    def __str__(self):
        return (f"{self.tried} tried: {self.committed} committed, {self.failed} failed, {self.silent} silent, "
                f"{self.tried - self.committed - self.failed - self.silent} on trial; {self.under_way} fetch")


def decide(devices, policy, now_s):
    """Judges the rollout by all boxes that are known."""
    decision = Decision()
    for device in devices:
        for entry in device.subjects:
            if entry.trial_rollout == policy.rollout:
                count_trial(decision, device, entry, policy, now_s)
            elif entry.last_rollout == policy.rollout:
                count_end(decision, device, entry)
    judge(decision, policy)
    return decision


def count_trial(decision, device, entry, policy, now_s):
    if entry.stage not in TRIED:
        decision.under_way += 1
        return
    decision.tried += 1
    if (
        device.online is False
        and device.offline_since is not None
        and now_s - device.offline_since >= policy.silent_after_s
    ):
        decision.silent += 1
        decision.examples.setdefault("silent", f"{device.device}: silent since it was {entry.stage}")


def count_end(decision, device, entry):
    if entry.result == "committed":
        decision.tried += 1
        decision.committed += 1
    elif entry.cause not in NO_FAULT:
        decision.tried += 1
        decision.failed += 1
        decision.causes[entry.cause] += 1
        decision.examples.setdefault(
            entry.cause, f"{device.device}: {entry.cause} at {entry.failed_stage}: {entry.detail}"
        )


def judge(decision, policy):
    for what, count, limit in (
        ("failed", decision.failed, policy.max_failures),
        ("fell silent", decision.silent, policy.max_silent),
    ):
        least = bound(decision.tried, limit, policy)
        if least is not None and count >= least:
            decision.pause = True
            decision.reason = (
                f"{count} of {decision.tried} boxes that tried it {what} ({100 * count / decision.tried:.1f} %, "
                f"limit {100 * limit:g} %)"
            )
            return


@lru_cache(4_096)
def bound(tried, limit, policy):
    """The number of failures at which a rollout on this many boxes is paused; None while no number would do it."""
    if tried < policy.min_reports:
        return None
    least = max(policy.min_failures, math.floor(limit * tried) + 1)
    return next((count for count in range(least, tried + 1) if tail(tried, count, limit) <= policy.alpha), None)


def tail(tries, hits, rate):
    """The probability of HITS or more among TRIES, each with the probability RATE."""
    if hits <= 0 or rate >= 1:
        return 1.0
    if rate <= 0:
        return 0.0
    logs = math.log(rate), math.log1p(-rate)
    total = 0.0
    for k in range(hits, tries + 1):
        ways = math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
        term = math.exp(ways + k * logs[0] + (tries - k) * logs[1])
        total += term
        if term < total * 1e-12:
            break
    return min(1.0, total)
