"""What one attempt means for its run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

from celery_guard.core.backoff import Backoff
from celery_guard.core.faults import Category, Fault
from celery_guard.core.states import Reason, State

__all__ = [
    "CELERY_RETRY",
    "Cancelled",
    "Claim",
    "Delays",
    "Expired",
    "Finish",
    "Lost",
    "Outcome",
    "Policy",
    "Raised",
    "Retry",
    "Returned",
    "Settlement",
    "Snoozed",
    "Wait",
    "decide",
]


#: The longest that an error may ask to wait, and the most that is added to it.
LONGEST_ASKED, MOST_ADDED = timedelta(days=1), timedelta(seconds=30)

#: The rule of Celery's ``self.retry()``: a body that names a countdown or an eta gets exactly that.
CELERY_RETRY = "celery_retry"

#: How often a run may be put off.
MOST_SNOOZES = 1_000


@dataclass(frozen=True)
class Claim:
    """One attempt, as its holder knows it: what was read when the row was claimed."""

    run_id: str
    token: str
    attempt: int
    max_attempts: int
    unknown_faults: int
    deadline_at: datetime
    snoozes: int = 0


class Delays(Protocol):
    """How long to wait after a failed attempt."""

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return the delay after an attempt, which counts from 1."""


@dataclass(frozen=True)
class Policy:
    """What a task allows; the deadline and the attempts of one run are in its claim."""

    unknown_max_attempts: int = 2
    backoff: Delays = field(default_factory=Backoff)
    on_worker_lost: str = "retry"

    def is_used_up(self, claim: Claim, fault: Fault) -> bool:
        """Say whether this fault was the last that the run may have."""
        if claim.attempt >= claim.max_attempts:
            return True
        return fault.category is Category.UNKNOWN and claim.unknown_faults + 1 >= self.unknown_max_attempts

    def delay(self, attempt: int, fault: Fault, *, rng: random.Random, left: timedelta = timedelta.max) -> timedelta:
        """Return how long to wait: what the error asked for, else the backoff.

        Args:
            attempt: the one that failed, from 1.
            fault: what failed it.
            rng: where chance comes from.
            left: the time to the deadline.
        """
        if fault.retry_after is not None and fault.rule == CELERY_RETRY:
            return max(fault.retry_after, timedelta(0))
        if fault.retry_after is not None:
            return _asked(fault.retry_after, left, rng)
        return self.backoff.delay(attempt, rng)


def _asked(delay: timedelta, left: timedelta, rng: random.Random) -> timedelta:
    """Return a delay that was asked for, and up to a tenth more, so that those who were told the same spread out.

    What is added never makes a delay too long that fits before the deadline.
    """
    wanted = min(max(delay, timedelta(0)), LONGEST_ASKED)
    added = min(wanted / 10, MOST_ADDED, max(left - wanted, timedelta(0)) / 2)
    return wanted + added * rng.random()


@dataclass(frozen=True)
class Returned:
    """The body returned."""

    result: Any


@dataclass(frozen=True)
class Raised:
    """The body raised."""

    fault: Fault


@dataclass(frozen=True)
class Snoozed:
    """The body asked to be run later, at no cost."""

    delay: timedelta


@dataclass(frozen=True)
class Lost:
    """The process that ran the attempt is gone."""

    fault: Fault


@dataclass(frozen=True)
class Expired:
    """The deadline passed while nobody could end the attempt."""

    fault: Fault | None = None


@dataclass(frozen=True)
class Cancelled:
    """Somebody stopped the run."""


Outcome: TypeAlias = Returned | Raised | Snoozed | Lost | Expired | Cancelled


@dataclass(frozen=True)
class Finish:
    """The run ends."""

    state: State
    reason: Reason
    fault: Fault | None = None
    result: Any = None


@dataclass(frozen=True)
class Retry:
    """The run waits for its next attempt."""

    at: datetime
    fault: Fault


@dataclass(frozen=True)
class Wait:
    """The run waits, and the attempt does not count."""

    at: datetime


Settlement: TypeAlias = Finish | Retry | Wait


def decide(outcome: Outcome, claim: Claim, policy: Policy, *, now: datetime, rng: random.Random) -> Settlement:
    """Say what one attempt means for its run. No I/O; the order of the questions is the rule."""
    if isinstance(outcome, Cancelled):
        return Finish(State.CANCELLED, Reason.CANCELLED)
    fault = None if isinstance(outcome, (Returned, Snoozed)) else outcome.fault
    if now >= claim.deadline_at or isinstance(outcome, Expired):
        return Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE, fault=fault)
    if isinstance(outcome, Returned):
        return Finish(State.SUCCEEDED, Reason.SUCCEEDED, result=outcome.result)
    if isinstance(outcome, Snoozed):
        return _after_a_snooze(outcome, claim, now=now)
    if isinstance(outcome, Lost) and policy.on_worker_lost == "fail":
        return Finish(State.DEAD, Reason.FAILED_DUE_WORKER_LOSS, fault=outcome.fault)
    return _after_a_fault(outcome.fault, claim, policy, now=now, rng=rng)


def _after_a_snooze(outcome: Snoozed, claim: Claim, *, now: datetime) -> Settlement:
    if claim.snoozes >= MOST_SNOOZES:
        return Finish(State.DEAD, Reason.FAILED_DUE_MAX_ATTEMPTS)
    if outcome.delay >= claim.deadline_at - now:
        return Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)
    return Wait(now + outcome.delay)


def _after_a_fault(fault: Fault, claim: Claim, policy: Policy, *, now: datetime, rng: random.Random) -> Settlement:
    if fault.category is Category.NON_RETRYABLE:
        return Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=fault)
    if policy.is_used_up(claim, fault):
        return Finish(State.DEAD, Reason.FAILED_DUE_MAX_ATTEMPTS, fault=fault)
    left = claim.deadline_at - now
    delay = policy.delay(claim.attempt, fault, rng=rng, left=left)
    if delay >= left:
        return Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE, fault=fault)
    return Retry(now + delay, fault)
