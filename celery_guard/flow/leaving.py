"""In the child: a success is left to the worker's main process, which settles several in one commit.

Only where nobody in the child is to hear of the ending: Celery's tracer has nothing to tell then, and the child goes on
to the next body while the settlement is under way. What the main process says of the run, it says afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

from celery import signals as celery_signals

from celery_guard import signals
from celery_guard.core.decide import Finish, Returned
from celery_guard.core.states import Reason, State
from celery_guard.flow.body import Attempt, Executed, is_kept
from celery_guard.flow.deliver import DELIVERY
from celery_guard.observe.logs import LEVELS, logger
from celery_guard.observe.transitions import Transition

__all__ = ["Left", "carrying", "is_left"]

#: What Celery calls in a child for each message of a task.
Tracer: TypeAlias = Callable[..., tuple[Any, Any, Any, Any]]

#: Where the attempt that is traced here may leave what it did; None where nobody would carry it to the main process.
_desk: ContextVar[list[tuple[Attempt, Executed]] | None] = ContextVar("celery_guard_desk", default=None)

_SUCCESS = Finish(State.SUCCEEDED, Reason.SUCCEEDED)


class Left(str):
    """What Celery's tracer says of a result, and with it what is still to be settled."""

    #: The result for the row, where it is kept.
    encoded: str | None
    #: What to log once it is settled, where that is wished.
    transition: Transition | None


def is_left(attempt: Attempt, executed: Executed) -> bool:
    """Leave a success where somebody carries it to the main process. False: it is to be settled here."""
    desk = None if attempt.request.is_eager else _desk.get()
    if desk is None or executed.error is not None or not isinstance(executed.outcome, Returned):
        return False
    if attempt.run.now() >= attempt.run.deadline_at or _is_heard_of(attempt):
        return False
    desk.append((attempt, executed))
    return True


def carrying(tracer: Tracer, settle: Callable[[Attempt, Executed], object]) -> Tracer:
    """Have a task's tracer carry what an attempt has left, where the main process offers to settle it.

    Args:
        tracer: Celery's own.
        settle: settles here what can't be carried, because the tracer failed after the body.
    """

    def trace(uuid: str, args: Any, kwargs: Any, request: Any = None) -> tuple[Any, Any, Any, Any]:
        if not (request or {}).get(DELIVERY, {}).get("settles"):
            return tracer(uuid, args, kwargs, request)
        desk: list[tuple[Attempt, Executed]] = []
        info: Any = desk
        before = _desk.set(desk)
        try:
            result, info, runtime, said = tracer(uuid, args, kwargs, request)
        finally:
            _desk.reset(before)
            if desk and info is not None:
                settle(*desk[0])
        return result, info, runtime, _left(said, *desk[0]) if desk and info is None else said

    return trace


def _left(said: str, attempt: Attempt, executed: Executed) -> Left:
    left = Left(said)
    left.encoded, left.transition = executed.encoded, None
    if logger.isEnabledFor(LEVELS[State.SUCCEEDED]):
        claimed = attempt.claimed
        left.transition = Transition.settled(attempt.task.name, claimed.claim, _SUCCESS, claimed.meta, made_by="child")
    return left


def _is_heard_of(attempt: Attempt) -> bool:
    """Whether anybody in this process is told of the ending, or has more to do after it."""
    task = attempt.task
    return bool(
        attempt.held.owes
        or attempt.settings.concurrency is not None
        or task._guard_hears_success
        or is_kept(task, attempt.request)
        or celery_signals.task_success.receivers
        or celery_signals.task_failure.receivers
        or celery_signals.task_postrun.receivers
        or signals.run_finished.receivers
    )
