"""Celery's task events for the moves of a run that Celery itself does not tell: what Flower and others listen to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_guard.core.states import State
from celery_guard.observe.transitions import Transition

__all__ = ["TaskEvent", "event_of", "next_attempt"]

_NAMES = {
    State.QUEUED: "task-sent",
    State.RETRYING: "task-retried",
    State.SUCCEEDED: "task-succeeded",
    State.FAILED: "task-failed",
    State.DEAD: "task-failed",
    State.CANCELLED: "task-revoked",
}


@dataclass(frozen=True)
class TaskEvent:
    """One event, with the fields that Celery gives it. ``result`` says why, and ``expires`` is the deadline."""

    name: str
    fields: dict[str, Any]


def event_of(transition: Transition) -> TaskEvent | None:
    """Return the event of a move. None: the tracer of the child tells it, or the message does."""
    state, reason, fault = transition.state, transition.reason, transition.fault
    if transition.made_by == "child" or (state is State.QUEUED and transition.next_retry_at is None):
        return None
    fields: dict[str, Any] = {
        "uuid": transition.run_id,
        "name": transition.type,
        "retries": max(transition.attempt - 1, 0),
        "expires": transition.deadline_at.isoformat(),
    }
    if state in (State.RETRYING, State.FAILED, State.DEAD):
        fields["exception"] = fault.summary if fault else str(reason or "put off")
    if transition.next_retry_at is not None:
        fields.update(eta=transition.next_retry_at.isoformat(), result=next_attempt(transition.next_retry_at))
    if state is State.CANCELLED:
        fields.update(terminated=False, signum=None, expired=False)
    if reason is not None:
        fields["result"] = reason.value
    return TaskEvent(_NAMES[state], fields)


def next_attempt(moment: datetime) -> str:
    """Say when a run goes on."""
    return f"next attempt at {moment:%Y-%m-%d %H:%M:%S} UTC"
