"""For Flower's configuration: ``from celery_guard.contrib.flower import format_task``."""

from __future__ import annotations

from datetime import timezone
from typing import Any

from celery import states
from celery.utils.time import maybe_iso8601

from celery_guard.core.states import Reason

__all__ = ["format_task"]

_WHY = {
    Reason.FAILED_NON_RETRYABLE: "the error is permanent, so a repeat can't help",
    Reason.FAILED_DUE_DEADLINE: "the deadline passed, or the next attempt could not start before it",
    Reason.FAILED_DUE_MAX_ATTEMPTS: "all attempts were used",
    Reason.FAILED_DUE_WORKER_LOSS: "the process that ran it was lost, and it must not run twice",
    Reason.CANCELLED: "somebody stopped it",
}


def format_task(task: Any) -> Any:
    """Put ``attempt``, ``deadline`` and ``reason`` at the head of a task's fields; what is not known is left out.

    Args:
        task: Flower's copy of Celery's ``celery.events.state.Task``.

    Returns:
        The same object.
    """
    shown = {"attempt": _attempt(task), "deadline": _deadline(task), "reason": _reason(task)}
    known = {name: value for name, value in shown.items() if value is not None}
    task.__dict__.update(known, _fields=(*known, *task._fields))
    return task


def _attempt(task: Any) -> int | None:
    """Count as the rows do: from 1, and 0 as long as none has started."""
    if task.retries is None:
        return None
    return int(task.retries) + (1 if task.started else 0)


def _deadline(task: Any) -> str | None:
    try:
        moment = maybe_iso8601(task.expires)
    except ValueError:  # other clients of Celery write it in other ways
        return None
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if moment else None


def _reason(task: Any) -> str | None:
    if task.state == states.RETRY:
        return f"{task.result}: {task.exception}" if task.result else None
    try:
        reason = Reason(task.result) if task.state in (states.FAILURE, states.REVOKED) else None
    except ValueError:  # not a guarded task's
        return None
    return f"{reason}: {_WHY[reason]}" if reason in _WHY else None
