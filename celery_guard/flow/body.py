"""Run the body of an attempt, and say in the guard's words what it did."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any, TypeAlias

from billiard.common import terminate_handler_fired
from celery import states
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry as CeleryRetry, SoftTimeLimitExceeded
from celery.utils.serialization import get_pickleable_exception
from celery.utils.time import maybe_make_aware

from celery_guard.core.decide import CELERY_RETRY, Outcome, Raised, Returned, Snoozed
from celery_guard.core.faults import Category, Classification, fault_of
from celery_guard.errors import Snooze
from celery_guard.flow import codec, coroutine, softlimit
from celery_guard.flow.context import CurrentRun, entered
from celery_guard.flow.guard import Guard
from celery_guard.flow.held import Held
from celery_guard.flow.judge import judge, tell_trouble
from celery_guard.flow.tracer import Tracing
from celery_guard.flow.watchdog import watched
from celery_guard.observe.logs import logger
from celery_guard.settings import TaskSettings
from celery_guard.store.records import Claimed

__all__ = ["Attempt", "Executed", "Hook", "execute_body", "is_kept"]

#: A user's own ``before_start``, where there is one.
Hook: TypeAlias = Callable[..., Any] | None

#: How far before the deadline its soft stop may fire.
_CLOSE_TO = timedelta(seconds=0.5)


@dataclass(frozen=True)
class Attempt:
    """Everything that one execution needs; each step takes it and returns the next value."""

    task: Any
    guard: Guard
    request: Any
    traced: Tracing
    settings: TaskSettings
    claimed: Claimed
    run: CurrentRun
    held: Held


@dataclass(frozen=True)
class Executed:
    """What the body did: the outcome, and what to tell Celery about it."""

    outcome: Outcome
    error: BaseException | None = None
    result: Any = None
    encoded: str | None = None


def execute_body(attempt: Attempt, body: Callable[..., Any], before_start: Hook, args: Any, kwargs: Any) -> Executed:
    """Run the body, and say what it did; whatever it raises is an answer."""
    try:
        result = _run(attempt, body, before_start, *_newest_arguments(attempt, args, kwargs))
    except Ignore as ignored:
        return Executed(Returned(None), error=ignored, encoded="null")
    except Snooze as snooze:
        return Executed(Snoozed(_delay_of(snooze)), error=snooze)
    except BaseException as error:
        if isinstance(error, (SystemExit, KeyboardInterrupt)) and terminate_handler_fired():
            raise  # this process is being ended from outside: the main process says what that means
        return _failed(attempt, error, _classified(attempt, error))
    try:
        encoded = codec.encode_result(result, attempt.guard.result_serializer)
    except Exception as error:  # a serializer may raise anything
        if attempt.held.owes or is_kept(attempt.task, attempt.request):
            return _failed(attempt, error, Classification(Category.NON_RETRYABLE, "result_not_serializable"))
        return Executed(Returned(result), result=result)
    fits = attempt.held.owes or len(encoded) <= attempt.settings.result_max_bytes
    return Executed(Returned(result), result=result, encoded=encoded if fits else None)


def _newest_arguments(attempt: Attempt, args: Any, kwargs: Any) -> tuple[Any, Any]:
    claimed, request = attempt.claimed, attempt.request
    if claimed.payload is None:
        return args, kwargs
    options = codec.decode_options(claimed.options or "{}")
    serializer = options.get("serializer") or attempt.task.app.conf.task_serializer
    newest_args, newest_kwargs = codec.decode(claimed.payload, serializer)
    if isinstance(request.args, list):  # the tracer's own, which it gives to the hooks that come later
        request.args[:] = newest_args
    else:
        request.args = newest_args
    if isinstance(request.kwargs, dict):
        request.kwargs.clear()
        request.kwargs.update(newest_kwargs)
    else:
        request.kwargs = newest_kwargs
    return request.args, request.kwargs


def _tell_started(attempt: Attempt) -> None:
    task, request = attempt.task, attempt.request
    if not request.is_eager and not get_actual_ignore_result(task, request):
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        try:
            task.backend.store_result(request.id, meta, states.STARTED, request=request)
        except Exception as error:  # the attempt goes on without a result backend
            logger.warning("%s[%s] STARTED could not be told: %r", task.name, request.id, error)


def _run(attempt: Attempt, body: Callable[..., Any], before_start: Hook, args: Any, kwargs: Any) -> Any:
    def guarded() -> Any:
        if before_start is not None:
            before_start(attempt.request.id, args, kwargs)
        return body(attempt.task, *args, **kwargs)

    if attempt.task._guard_tells_started:
        _tell_started(attempt)
    with entered(attempt.run):
        if attempt.guard.keeper is not None and threading.current_thread() is not threading.main_thread():
            return _finished(attempt, watched(guarded, attempt.run.remaining().total_seconds()))
        return softlimit.let_through(attempt.traced, lambda: _finished(attempt, guarded()))


def _finished(attempt: Attempt, returned: Any) -> Any:
    """Return the result of a body; one that is a coroutine is run to its end."""
    if returned is None or not isawaitable(returned):
        return returned
    grace = attempt.settings.deadline_grace.total_seconds()
    return coroutine.finish(attempt.task, attempt.request, attempt.run, returned, grace)


def _failed(attempt: Attempt, error: BaseException, found: Classification) -> Executed:
    fault = fault_of(error, found, limit=attempt.settings.error_max_length)
    if isinstance(error, SoftTimeLimitExceeded):
        late = attempt.run.now() >= attempt.run.deadline_at - _CLOSE_TO
        fault = replace(fault, error="stopped at the deadline" if late else "stopped at the soft time limit")
    encoded = _encoded_error(attempt, error) if attempt.held.owes or found.category is Category.NON_RETRYABLE else None
    return Executed(Raised(fault), error=error, encoded=encoded)


def _classified(attempt: Attempt, error: BaseException) -> Classification:
    if isinstance(error, CeleryRetry):
        return Classification(Category.RETRYABLE, CELERY_RETRY, _asked_delay(attempt, error))
    if isinstance(error, Reject):
        return Classification(Category.RETRYABLE if error.requeue else Category.NON_RETRYABLE, "celery_reject")
    if isinstance(error, SoftTimeLimitExceeded):
        return Classification(Category.RETRYABLE, "time_limit")
    found = judge(attempt.task, error, attempt.run.now())
    tell_trouble(attempt.task, error, found)
    return found


def _asked_delay(attempt: Attempt, error: Any) -> timedelta | None:
    when = error.when
    if isinstance(when, datetime):
        moment: datetime = maybe_make_aware(when, attempt.task.app.timezone)
        return max(moment - attempt.run.now(), timedelta(0))
    try:
        return timedelta(seconds=when) if when is not None else None
    except (TypeError, ValueError, OverflowError):  # a body that raises Celery's Retry itself may say anything
        return None


def _encoded_error(attempt: Attempt, error: BaseException) -> str | None:
    """Keep a permanent error as Celery's backends do, so that it can be raised again as itself."""
    try:
        prepared = attempt.task.backend.prepare_exception(get_pickleable_exception(error), "json")
        encoded = json.dumps(prepared, default=repr)
    except Exception:  # its arguments may be anything; its text is kept all the same
        return None
    return encoded if attempt.held.owes or len(encoded) <= attempt.settings.result_max_bytes else None


def is_kept(task: Any, request: Any) -> bool:
    """Whether a result backend keeps what this task returns."""
    return not isinstance(task.backend, DisabledBackend) and not get_actual_ignore_result(task, request)


def _delay_of(snooze: Snooze) -> timedelta:
    try:
        delay = snooze.delay if isinstance(snooze.delay, timedelta) else timedelta(seconds=snooze.delay)
    except (OverflowError, TypeError, ValueError):  # what can't be waited for is past every deadline
        return timedelta.max
    return max(delay, timedelta(0))
