"""In the child: claim → run the body → settle, or tell Celery an ending that it is owed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from billiard.common import terminate_handler_fired
from celery import states
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry as CeleryRetry, SoftTimeLimitExceeded
from celery.utils.serialization import get_pickleable_exception
from celery.utils.time import maybe_make_aware

from celery_guard.core.decide import Finish, Outcome, Raised, Retry, Returned, Settlement
from celery_guard.core.faults import Category, Classification, classify, fault_of
from celery_guard.core.states import Reason, State
from celery_guard.errors import StoreUnavailable
from celery_guard.flow import codec, softlimit
from celery_guard.flow.context import CurrentRun, begin_tracing, entered
from celery_guard.flow.deliver import Delivery, deliver, is_foreign, mark_ending
from celery_guard.flow.guard import Guard, guard_of, task_settings
from celery_guard.flow.retry import AskedRetry
from celery_guard.flow.settle import TELLING_LEASE, ending_error, patiently, settle
from celery_guard.flow.submit import adopt
from celery_guard.flow.watchdog import watched
from celery_guard.settings import TaskSettings
from celery_guard.store.records import Claimed

__all__ = ["execute"]

#: How long a claim waits for a database that is away, in seconds, before the message goes back.
CLAIM_PATIENCE = 10.0


@dataclass(frozen=True)
class Attempt:
    """Everything that one execution needs; each step takes it and returns the next value."""

    task: Any
    guard: Guard
    request: Any
    settings: TaskSettings
    claimed: Claimed
    run: CurrentRun

    @property
    def owes(self) -> bool:
        """Whether Celery does something after this task ends: then it must not be lost."""
        request = self.request
        return bool(request.callbacks or request.errbacks or request.chain or request.chord or request.group)


@dataclass(frozen=True)
class Executed:
    """What the body did: the outcome, and what to tell Celery about it."""

    outcome: Outcome
    error: BaseException | None = None
    result: Any = None
    encoded: str | None = None


def execute(task: Any, body: Callable[..., Any], before_start: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Be the task in Celery's eyes: return its result, or raise what Celery's tracer must tell.

    Raises:
        Ignore: this message is not to be run; the row says why.
        Retry: the run waits for its next attempt.
        Exception: the run has ended.
    """
    softlimit.hold_back()
    request, guard = task.request, guard_of(task.app)
    traced = begin_tracing(request)
    delivery = Delivery.of(request)
    claimed = None if delivery.ticket else _claim(guard, delivery)
    if claimed is None and is_foreign(guard, delivery):
        adopt(task, request)
        claimed = _claim(guard, delivery)
    if claimed is None:
        return deliver(guard, task, request, delivery)
    attempt = _attempt(task, guard, request, claimed)
    traced.run = attempt.run
    args, kwargs = _newest_arguments(attempt, args, kwargs)
    _tell_started(attempt)
    executed = _executed(attempt, lambda: _run(attempt, body, before_start, args, kwargs))
    return _speak(_settle(attempt, executed), executed)


def _claim(guard: Guard, delivery: Delivery) -> Claimed | None:
    def claim() -> Claimed | None:
        return guard.runs.claim(
            delivery.run_id, delivery.token, worker_id=delivery.worker_id, fingerprint=delivery.fingerprint
        )

    try:
        return patiently(claim, CLAIM_PATIENCE)  # type: ignore[no-any-return]
    except StoreUnavailable as away:
        raise Reject(away, requeue=True) from away


def _attempt(task: Any, guard: Guard, request: Any, claimed: Claimed) -> Attempt:
    claim = claimed.claim
    run = CurrentRun(
        id=claim.run_id,
        type=task.name,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        deadline_at=claim.deadline_at,
        idempotency_key=claimed.idempotency_key or claim.run_id,
        meta=claimed.meta,
        parent_id=claimed.parent_id,
        root_id=claimed.root_id,
        _token=claim.token,
        _claimed_at=claimed.now,
        _monotonic=time.monotonic(),
        _store=guard.runs,
    )
    return Attempt(task, guard, request, task_settings(task), claimed, run)


def _newest_arguments(attempt: Attempt, args: Any, kwargs: Any) -> tuple[Any, Any]:
    claimed, request = attempt.claimed, attempt.request
    if claimed.payload is None:
        return args, kwargs
    options = codec.decode_options(claimed.options or "{}")
    serializer = options.get("serializer") or attempt.task.app.conf.task_serializer
    request.args, request.kwargs = codec.decode(claimed.payload, serializer)
    return request.args, request.kwargs


def _tell_started(attempt: Attempt) -> None:
    task, request = attempt.task, attempt.request
    if type(task)._guard_tells_started and not request.is_eager and not get_actual_ignore_result(task, request):
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(request.id, meta, states.STARTED, request=request)


def _run(attempt: Attempt, body: Callable[..., Any], before_start: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    def guarded() -> Any:
        before_start(attempt.request.id, args, kwargs)
        return body(attempt.task, *args, **kwargs)

    with entered(attempt.run):
        if attempt.guard.keeper is not None and threading.current_thread() is not threading.main_thread():
            return watched(guarded, attempt.run.remaining().total_seconds())
        return softlimit.let_through(guarded)


def _executed(attempt: Attempt, run: Callable[[], Any]) -> Executed:
    try:
        result = run()
    except Ignore as ignored:
        return Executed(Returned(None), error=ignored, encoded="null")
    except BaseException as error:
        if isinstance(error, (SystemExit, KeyboardInterrupt)) and terminate_handler_fired():
            raise  # this process is being ended from outside: the main process says what that means
        return _failed(attempt, error, _classified(attempt, error))
    try:
        encoded = codec.encode_result(result, attempt.task.app.conf.result_serializer)
    except Exception as error:  # a serializer may raise anything
        if attempt.owes or _is_kept(attempt.task, attempt.request):
            return _failed(attempt, error, Classification(Category.NON_RETRYABLE, "result_not_serializable"))
        return Executed(Returned(result), result=result)
    fits = attempt.owes or len(encoded) <= attempt.settings.result_max_bytes
    return Executed(Returned(result), result=result, encoded=encoded if fits else None)


def _failed(attempt: Attempt, error: BaseException, found: Classification) -> Executed:
    fault = fault_of(error, found, limit=attempt.settings.error_max_length)
    encoded = _encoded_error(attempt, error) if attempt.owes or found.category is Category.NON_RETRYABLE else None
    return Executed(Raised(fault), error=error, encoded=encoded)


def _classified(attempt: Attempt, error: BaseException) -> Classification:
    if isinstance(error, CeleryRetry):
        return Classification(Category.RETRYABLE, "celery_retry", _asked_delay(attempt, error))
    if isinstance(error, Reject):
        return Classification(Category.RETRYABLE if error.requeue else Category.NON_RETRYABLE, "celery_reject")
    if isinstance(error, SoftTimeLimitExceeded):
        return Classification(Category.RETRYABLE, "time_limit")
    task = attempt.task
    return classify(error, retryable=tuple(task.retryable), non_retryable=tuple(task.non_retryable))


def _asked_delay(attempt: Attempt, error: Any) -> timedelta | None:
    when = error.when
    if isinstance(when, datetime):
        moment: datetime = maybe_make_aware(when, attempt.task.app.timezone)
        return max(moment - attempt.run.now(), timedelta(0))
    return timedelta(seconds=when) if when is not None else None


def _settle(attempt: Attempt, executed: Executed) -> Settlement:
    claim, runs = attempt.claimed.claim, attempt.guard.runs
    if isinstance(executed.error, AskedRetry):
        claim = executed.error.narrowed(claim)
        executed.error.rewrite(attempt.task, attempt.guard, claim)
    owes = attempt.owes and not isinstance(executed.error, Ignore)

    def write() -> Settlement | None:
        return settle(
            runs,
            attempt.task.name,
            claim,
            executed.outcome,
            attempt.settings.policy(),
            now=attempt.run.now(),
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
        mark_ending(attempt.request, settlement.state, owed=owes)
    return settlement


def _speak(settlement: Settlement, executed: Executed) -> Any:
    """Say the settlement in Celery's language."""
    error = executed.error
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


def _encoded_error(attempt: Attempt, error: BaseException) -> str | None:
    """Keep a permanent error as Celery's backends do, so that it can be raised again as itself."""
    prepared = attempt.task.backend.prepare_exception(get_pickleable_exception(error), "json")
    encoded = json.dumps(prepared, default=repr)
    return encoded if attempt.owes or len(encoded) <= attempt.settings.result_max_bytes else None


def _is_kept(task: Any, request: Any) -> bool:
    return not isinstance(task.backend, DisabledBackend) and not get_actual_ignore_result(task, request)
