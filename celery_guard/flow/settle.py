"""The one door out: child, lost child, rescue, sweep and cancel end an attempt here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery_guard.core.decide import Claim, Finish, Outcome, Retry, Settlement, decide
from celery_guard.core.faults import Category, Fault
from celery_guard.core.states import Reason, State
from celery_guard.errors import (
    AttemptsExhausted,
    DeadlineExceeded,
    RunCancelled,
    RunEnded,
    StoreUnavailable,
    TaskFailed,
    WorkerLost,
)
from celery_guard.flow.guard import Guard
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import MadeBy, Transition
from celery_guard.settings import TaskSettings

__all__ = ["PATIENCE", "TELLING_LEASE", "ending_error", "lost_fault", "patiently", "settle"]

#: How long an attempt keeps trying to write its end, in seconds.
PATIENCE = 30.0

#: How long a child may take to tell Celery an ending before the dispatcher does it, in seconds.
TELLING_LEASE = 60.0

_ERRORS: dict[Reason, type[RunEnded]] = {
    Reason.FAILED_DUE_DEADLINE: DeadlineExceeded,
    Reason.FAILED_DUE_MAX_ATTEMPTS: AttemptsExhausted,
    Reason.FAILED_DUE_WORKER_LOSS: WorkerLost,
    Reason.FAILED_NON_RETRYABLE: TaskFailed,
    Reason.CANCELLED: RunCancelled,
}


#: Chance without a state of its own, which forked children would share.
_CHANCE = random.SystemRandom()

_WITHOUT_A_FAULT = {
    Reason.FAILED_DUE_DEADLINE: "the deadline passed while the run waited",
    Reason.FAILED_DUE_MAX_ATTEMPTS: "it was put off too often",
}


def settle(
    guard: Guard,
    task_type: str,
    settings: TaskSettings,
    claim: Claim,
    outcome: Outcome,
    *,
    now: datetime,
    meta: Mapping[str, Any],
    made_by: MadeBy,
    **how: Any,
) -> Settlement | None:
    """Decide what the outcome means and write it. None: somebody else ended this attempt, and nothing changed.

    Args:
        now: the moment by the database's clock.
        meta: the run's correlation data, for those who watch.
        made_by: who ends the attempt, for them, too.
        how: what :meth:`~celery_guard.store.runs.RunStore.settle` takes besides.
    """
    settlement = decide(outcome, claim, settings.policy, now=now, rng=_CHANCE)
    if isinstance(settlement, Retry) and (between := settings.seconds_between_retries()) is not None:
        slot = guard.rates.slot(task_type, settlement.at, between, before=claim.deadline_at)
        settlement = _in_its_slot(slot, settlement)
    if not guard.runs.settle(claim, settlement, **how):
        logger.warning("%s[%s] attempt %d was ended by somebody else", task_type, claim.run_id, claim.attempt)
        return None
    guard.announce(Transition.settled(task_type, claim, settlement, meta, made_by=made_by))
    return settlement


def _in_its_slot(slot: datetime | None, retry: Retry) -> Settlement:
    """Put a retry where the task's rate leaves room; without any before the deadline its run ends."""
    if slot is None:
        return Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE, fault=retry.fault)
    return Retry(slot, retry.fault)


def patiently(work: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Do work that needs the database; while it can't be reached, try again for a bounded time.

    Raises:
        StoreUnavailable: the time is over.
    """
    until = time.monotonic() + patience
    wait = 0.1
    while True:
        try:
            return work()
        except StoreUnavailable:
            if time.monotonic() + wait >= until:
                raise
            time.sleep(wait)
            wait = min(2 * wait, 2.0)


def ending_error(reason: Reason, fault_text: str | None) -> RunEnded:
    """Return the exception that tells a caller why a run ended."""
    return _ERRORS[reason](reason.value, fault_text or _WITHOUT_A_FAULT.get(reason, ""))


def lost_fault(rule: str, message: str) -> Fault:
    """Describe an attempt that nobody could end from inside."""
    return Fault(Category.RETRYABLE, rule, {"time_limit": "TimeLimitExceeded"}.get(rule, "WorkerLost"), message)
