"""In the child: claim → run the body → settle, or tell Celery an ending that it is owed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, Retry as CeleryRetry
from celery.utils.serialization import get_pickleable_exception

from celery_guard.core.decide import Finish, Retry, Settlement, Wait
from celery_guard.core.states import Reason, State
from celery_guard.errors import StoreUnavailable
from celery_guard.flow import softlimit
from celery_guard.flow.body import Attempt, Executed, Hook, execute_body
from celery_guard.flow.context import CurrentRun
from celery_guard.flow.deliver import Delivery, awaits, deliver, is_foreign, mark_ending
from celery_guard.flow.guard import Guard, guard_of, task_settings
from celery_guard.flow.held import Held
from celery_guard.flow.leaving import is_left
from celery_guard.flow.permits import pass_on_permit
from celery_guard.flow.retry import AskedRetry
from celery_guard.flow.settle import TELLING_LEASE, ending_error, patiently, settle
from celery_guard.flow.submit import adopt
from celery_guard.flow.tracer import Tracing, begin_tracing
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import Transition
from celery_guard.settings import TaskSettings
from celery_guard.store.permits import MustWait
from celery_guard.store.records import Claimed

__all__ = ["execute", "settle_attempt"]

#: How long a claim waits for a database that is away, in seconds, before the message goes back.
CLAIM_PATIENCE = 10.0


def execute(task: Any, request: Any, body: Callable[..., Any], before_start: Hook, args: Any, kwargs: Any) -> Any:
    """Be the task in Celery's eyes: return its result, or raise what Celery's tracer must tell.

    Raises:
        Ignore: this message is not to be run; the row says why.
        Retry: the run waits for its next attempt.
        Exception: the run has ended.
    """
    traced = begin_tracing(request)
    softlimit.answer()
    guard, settings = guard_of(task.app), task_settings(task)
    delivery = Delivery.of(request)
    limit = None if request.is_eager else settings.concurrency
    claimed = None if delivery.ticket else _claim(guard, task, delivery, limit)
    if claimed is None and is_foreign(guard, delivery):
        adopt(task, request)
        claimed = _claim(guard, task, delivery, limit)
    if claimed is None:
        return deliver(guard, task, request, delivery)
    attempt = _attempt(task, guard, settings, request, traced, claimed)
    guard.announce(Transition.started(task.name, claimed.claim, claimed.meta))
    executed = execute_body(attempt, body, before_start, args, kwargs)
    try:
        return _end(attempt, executed)
    finally:
        if limit is not None:
            pass_on_permit(guard, request.id, limit)


def _end(attempt: Attempt, executed: Executed) -> Any:
    if attempt.held.completed is not None and patiently(attempt.held.is_completed):
        return _completed(attempt, attempt.held.completed[0])
    if attempt.held.vacated and isinstance(executed.error, Ignore):
        raise executed.error  # the task that replaces this one ends the run
    if is_left(attempt, executed):
        return executed.result
    return _speak(settle_attempt(attempt, executed), executed)


def _claim(guard: Guard, task: Any, delivery: Delivery, limit: int | None) -> Claimed | None:
    def claim() -> Claimed | None:
        run_id, token = delivery.run_id, delivery.token
        how: Any = {"worker_id": delivery.worker_id, "fingerprint": delivery.fingerprint, "type_": task.name}
        if limit is None:
            return guard.runs.claim(run_id, token, **how)
        return guard.permits.claim(run_id, token, limit=limit, **how)

    try:
        return patiently(claim, CLAIM_PATIENCE)  # type: ignore[no-any-return]
    except MustWait as wait:
        logger.info("%s[%s] waits for a permit", task.name, delivery.run_id)
        raise Ignore(str(wait)) from None
    except StoreUnavailable as away:
        raise Reject(away, requeue=True) from away


def _attempt(
    task: Any, guard: Guard, settings: TaskSettings, request: Any, traced: Tracing, claimed: Claimed
) -> Attempt:
    claim = claimed.claim
    held = Held(guard, claim, claimed.now, owes=awaits(request))
    run = traced.run = CurrentRun(
        id=claim.run_id,
        type=task.name,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        deadline_at=claim.deadline_at,
        idempotency_scope=claimed.idempotency_scope if claimed.idempotency_key else None,
        idempotency_key=claimed.idempotency_key or claim.run_id,
        meta=claimed.meta,
        parent_id=claimed.parent_id,
        root_id=claimed.root_id,
        held=held,
    )
    return Attempt(task, guard, request, traced, settings, claimed, run, held)


def settle_attempt(attempt: Attempt, executed: Executed) -> Settlement:
    """Write the end of an attempt, and note which ending Celery's tracer is to tell.

    Raises:
        Ignore: somebody else ended it, or the database is away for too long.
    """
    claim = attempt.claimed.claim
    asked = executed.error if isinstance(executed.error, AskedRetry) else None
    if asked is not None:
        claim = asked.narrowed(claim)
    owes = attempt.held.owes and not isinstance(executed.error, Ignore)

    def write() -> Settlement | None:
        if asked is not None:
            asked.rewrite(attempt.guard, claim)
        return settle(
            attempt.guard,
            attempt.task.name,
            attempt.settings,
            claim,
            executed.outcome,
            now=attempt.run.now(),
            meta=attempt.claimed.meta,
            made_by="child",
            result=executed.encoded,
            owed=owes,
            lease=TELLING_LEASE,
        )

    try:
        settlement: Settlement | None = patiently(write)
    except StoreUnavailable as away:
        raise Ignore(f"the end of attempt {claim.attempt} could not be written: {away}") from away
    if settlement is None:
        raise Ignore(f"attempt {claim.attempt} was ended by somebody else")
    if isinstance(settlement, Finish):
        mark_ending(attempt.request, settlement.state, owed=owes, token=claim.token)
    return settlement


def _completed(attempt: Attempt, result: Any) -> Any:
    """The body wrote the success in a transaction of its own; what it did afterwards changes nothing."""
    success = Finish(State.SUCCEEDED, Reason.SUCCEEDED, result=result)
    claim, meta = attempt.claimed.claim, attempt.claimed.meta
    attempt.guard.announce(Transition.settled(attempt.task.name, claim, success, meta, made_by="child"))
    mark_ending(attempt.request, success.state, owed=attempt.held.owes, token=claim.token)
    return result


def _speak(settlement: Settlement, executed: Executed) -> Any:
    """Say the settlement in Celery's language."""
    error = executed.error
    if isinstance(settlement, Wait):
        raise CeleryRetry(f"snoozed: {error}", exc=get_pickleable_exception(error), when=settlement.at) from error
    if isinstance(settlement, Retry):
        cause = error.exc if isinstance(error, CeleryRetry) and error.exc is not None else error
        raise CeleryRetry(settlement.fault.summary, exc=get_pickleable_exception(cause), when=settlement.at) from error
    if settlement.state is State.SUCCEEDED:
        if isinstance(error, Ignore):
            raise error
        return executed.result
    if settlement.reason is Reason.FAILED_NON_RETRYABLE and _speaks_for_itself(error):
        assert error is not None
        raise error
    late = "the body returned after the deadline"
    raise ending_error(settlement.reason, settlement.fault.summary if settlement.fault else late) from error


def _speaks_for_itself(error: BaseException | None) -> bool:
    """Whether Celery's tracer treats this exception as the task's own failure, and the worker survives it."""
    return isinstance(error, Exception) and not isinstance(error, (CeleryRetry, Ignore, Reject, MemoryError))
