"""In the child: a message that is not to be run. It tells Celery an ending that is owed, or is dropped."""

from __future__ import annotations

import json
import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import states
from celery.app.task import get_actual_ignore_result
from celery.exceptions import Ignore, TaskRevokedError

from celery_guard.core.decide import Finish
from celery_guard.core.states import Reason, State
from celery_guard.errors import ResultNotKept
from celery_guard.flow import codec
from celery_guard.flow.guard import Guard, guard_of
from celery_guard.flow.publish import header_of
from celery_guard.flow.settle import TELLING_LEASE, ending_error
from celery_guard.flow.tracer import tracing
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import Transition
from celery_guard.store.records import TaskRun
from celery_guard.store.tallies import Unrecorded

__all__ = [
    "DELIVERY",
    "Delivery",
    "awaits",
    "deliver",
    "follow_up_is_through",
    "is_foreign",
    "is_told_otherwise",
    "mark_ending",
    "told_otherwise",
]

#: Where the worker's main process writes who may claim: a token made for this delivery, and its own boot id; and
#: whether it ``settles`` a success that is left to it.
DELIVERY = "guard_delivery"


@dataclass(frozen=True)
class _Marked:
    """A success that Celery's tracer was given to tell."""

    run_id: str
    #: Who settled the run here; None: the success came with a message.
    token: str | None
    #: Whether a canvas waits for it, so that it is told until somebody has heard it.
    is_awaited: bool


#: The success that was marked last here; the tracer lets go of a request before it tells that it failed to tell.
_marked: ContextVar[_Marked | None] = ContextVar("celery_guard_marked", default=None)


@dataclass(frozen=True)
class Delivery:
    """One message as it arrived."""

    run_id: str
    token: str
    worker_id: str | None
    fingerprint: str | None
    #: Which telling of an ending this message is for; 0 for a message that is to be run.
    ticket: int
    is_ours: bool

    @classmethod
    def of(cls, request: Any) -> Delivery:
        """Read what the submitter and the worker's main process wrote into the message."""
        header, told = header_of(request) or {}, getattr(request, DELIVERY, None) or {}
        return cls(
            run_id=request.id,
            token=told.get("token") or secrets.token_hex(8),
            worker_id=told.get("worker"),
            fingerprint=header.get("fingerprint"),
            ticket=header.get("ticket", 0) if header.get("event") == "deliver" else 0,
            is_ours=bool(header),
        )


def deliver(guard: Guard, task: Any, request: Any, delivery: Delivery) -> Any:
    """Be the ended task in Celery's eyes: return the stored result, or raise the stored error.

    Raises:
        Ignore: nothing is owed; the message is a copy.
    """
    if not delivery.ticket:
        _end_what_can_not_start(guard, task, delivery)
    ending = guard.runs.take_ending(request.id, ticket=delivery.ticket, lease=TELLING_LEASE)
    if ending is None:
        raise _dropped(guard, task, "nothing is owed, or another message tells this ending")
    if ending.state is State.CANCELLED:
        _tell_cancelled(guard, task, request)
    if ending.state is State.SUCCEEDED and ending.result in (None, codec.TOLD_ELSEWHERE):
        mark_ending(request, State.FAILED, owed=True)
        raise ResultNotKept("the run that this one is the same as had a result larger than guard_result_max_bytes")
    mark_ending(request, ending.state, owed=True)
    if ending.state is State.SUCCEEDED:
        return codec.decode(ending.result or "null", guard.result_serializer)
    if ending.state is State.FAILED and ending.result:
        raise task.backend.exception_to_python(json.loads(ending.result))
    raise ending_error(ending.reason, ending.last_error)


def is_foreign(guard: Guard, delivery: Delivery) -> bool:
    """Whether other code sent this message: it has no header of ours, and no row yet."""
    return not delivery.is_ours and guard.runs.find(delivery.run_id) is None


def awaits(request: Any) -> bool:
    """Whether Celery does something after this task ends."""
    return bool(request.callbacks or request.errbacks or request.chain or request.chord or request.group)


def mark_ending(request: Any, state: State, *, owed: bool, token: str | None = None) -> None:
    """Note which ending Celery's tracer is about to follow up, and who settled it where that was done here."""
    traced = tracing(request)
    assert traced is not None
    succeeded = state is State.SUCCEEDED
    traced.ending = states.SUCCESS if succeeded else states.FAILURE
    traced.owed = owed
    _marked.set(_Marked(request.id, token, awaits(request)) if succeeded and not request.is_eager else None)


def follow_up_is_through(task: Any, state: str) -> None:
    """Celery has done all that follows this ending, so nothing is owed any more."""
    traced = tracing(task.request)
    if traced is not None and traced.owed and traced.ending == state:
        guard_of(task.app).runs.told(task.request.id)


def is_told_otherwise(task: Any, state: str) -> bool:
    """Whether Celery's tracer tells a failure, its own, of a run that has succeeded."""
    traced = tracing(task.request)
    return traced is not None and traced.ending == states.SUCCESS and state == states.FAILURE


def told_otherwise(task: Any, run_id: str) -> bool:
    """Have a success told again of which the tracer tells a failure, because the result backend failed.

    Once: a backend that does not take this result would be asked for ever. A canvas is told until it has heard.
    """
    marked = _marked.get()
    if marked is None or marked.run_id != run_id:
        return False
    fate = "is told again" if marked.is_awaited else "is not told again"
    try:
        if not marked.is_awaited:
            fate = _have_told_again(guard_of(task.app), marked)
    except Exception as error:  # the row is right, whatever else goes wrong now
        fate = f"is not told again: {error}"
    logger.error("%s[%s] succeeded, and the result backend failed to hear of it: it %s", task.name, run_id, fate)
    return True


def _have_told_again(guard: Guard, marked: _Marked) -> str:
    if marked.token is None:
        guard.runs.told(marked.run_id)
        return "is not told a third time"
    return "is told again" if guard.runs.owe(marked.run_id, marked.token) else "can't be told again without its result"


def _end_what_can_not_start(guard: Guard, task: Any, delivery: Delivery) -> None:
    run = guard.runs.find(delivery.run_id)
    if run is None:
        logger.error(
            "%s[%s] has no row and is not run: it was pruned, or this worker uses another database or namespace",
            task.name,
            delivery.run_id,
        )
        raise Ignore("the run has no row")
    if run.state is not State.QUEUED or run.next_retry_at is not None or run.waits_for_permit:
        raise _dropped(guard, task, f"a copy of a run that is {run.state}")
    finish = _dead(guard, run)
    ended = guard.runs.finish_waiting(run.id, finish, token=delivery.token) if finish else None
    if ended is None:
        raise _dropped(guard, task, "another worker was faster")
    guard.announce(Transition.settled(ended.type, ended.claim, ended.finish, ended.meta, made_by="child"))


def _dropped(guard: Guard, task: Any, why: str) -> Ignore:
    """Count a message that is not run, and return what tells Celery so."""
    guard.count(Unrecorded.DUPLICATE_DROPPED, [task.name])
    return Ignore(why)


def _dead(guard: Guard, run: TaskRun) -> Finish | None:
    if guard.runs.clock() >= run.deadline_at:
        return Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)
    if run.attempt >= run.max_attempts:
        return Finish(State.DEAD, Reason.FAILED_DUE_MAX_ATTEMPTS)
    return None


def _tell_cancelled(guard: Guard, task: Any, request: Any) -> None:
    error = TaskRevokedError("cancelled")
    store = not get_actual_ignore_result(task, request)
    task.backend.mark_as_failure(request.id, error, request=request, store_result=store, state=states.REVOKED)
    guard.runs.told(request.id)
    raise Ignore("the run was cancelled")
