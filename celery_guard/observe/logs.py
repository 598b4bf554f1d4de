"""One structured record per transition, on the logger ``celery_guard``: never arguments, results or error texts."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

from celery_guard.core.states import State
from celery_guard.observe.transitions import Transition

__all__ = ["FIELDS", "LEVELS", "log_transition", "logger"]

logger = logging.getLogger("celery_guard")

#: How loudly a move is told, by the state that it leads to.
LEVELS = {
    State.QUEUED: logging.INFO,
    State.RUNNING: logging.INFO,
    State.SUCCEEDED: logging.INFO,
    State.CANCELLED: logging.INFO,
    State.RETRYING: logging.WARNING,
    State.FAILED: logging.ERROR,
    State.DEAD: logging.ERROR,
}

#: What a record of a transition carries besides its message, as attributes.
FIELDS = {
    "task_id": "the run's id, which is the Celery task id",
    "type": "the task's name",
    "attempt": "attempts used so far; the one that ended, where one did",
    "max_attempts": "how many there may be",
    "state": "where the run is now",
    "reason": "why it ended; null while it is live",
    "deadline_at": "when the run must be over: ISO 8601, UTC",
    "next_retry_at": "when it goes on, if it waits for a moment: ISO 8601, UTC",
    "error_category": "`retryable`, `non_retryable` or `unknown`; null without an error",
    "error_type": "the class of the error",
    "rule": "the rule that put it into its category",
    "made_by": "`submitter`, `child`, `worker` (lost children, rescue, sweep) or `canceller`",
    "meta": "the entries of the run's `meta` that `guard_log_meta` names",
}


def log_transition(transition: Transition, log_meta: Collection[str]) -> None:
    """Write what became of a run.

    Args:
        transition: what happened.
        log_meta: the entries of ``meta`` that may be written.
    """
    logger.log(LEVELS[transition.state], "%s", _sentence(transition), extra=_fields(transition, log_meta))


def _fields(transition: Transition, log_meta: Collection[str]) -> dict[str, Any]:
    fault = transition.fault
    return {
        "task_id": transition.run_id,
        "type": transition.type,
        "attempt": transition.attempt,
        "max_attempts": transition.max_attempts,
        "state": transition.state.value,
        "reason": transition.reason.value if transition.reason else None,
        "deadline_at": transition.deadline_at.isoformat(),
        "next_retry_at": _said(transition.next_retry_at),
        "error_category": fault.category.value if fault else None,
        "error_type": fault.error_type if fault else None,
        "rule": fault.rule if fault else None,
        "made_by": transition.made_by,
        "meta": {name: value for name, value in transition.meta.items() if name in log_meta},
    }


def _sentence(transition: Transition) -> str:
    state, reason, fault = transition.state, transition.reason, transition.fault
    parts = [f"{transition.type}[{transition.run_id}] {state}"]
    if reason and reason.value != state.value:
        parts.append(f", {reason}")
    if transition.next_retry_at:
        parts.append(f" until {_said(transition.next_retry_at)}")
    if state is State.RUNNING:
        parts.append(f", attempt {transition.attempt} of {transition.max_attempts}")
    elif state is not State.QUEUED:
        parts.append(f" after attempt {transition.attempt} of {transition.max_attempts}")
    if fault:
        parts.append(f": {fault.error_type} ({fault.rule})")
    return "".join(parts)


def _said(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
