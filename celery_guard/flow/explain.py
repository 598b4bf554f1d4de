"""``explain()``: what an error would mean for a task, without failing a run."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.local import maybe_evaluate

from celery_guard.core.decide import Claim
from celery_guard.core.explain import Explanation, Subject, explain as explain_claim
from celery_guard.flow.guard import task_settings
from celery_guard.flow.judge import judge

__all__ = ["explain"]


def explain(
    error: Subject, task: Any, *, attempt: int = 1, unknown_faults: int = 0, remaining: timedelta | None = None
) -> Explanation:
    """Say what an error would mean for a run of a task, and what would happen next.

    Args:
        error: an error, its class, the dotted name of its class, or an HTTP status. Of a class that is not imported
            only its own name is known, not its parents.
        task: the task whose declarations and settings count.
        attempt: the attempt that fails, from 1.
        unknown_faults: how many unknown faults the run had before.
        remaining: how long the run has left; all of the task's deadline when it is not given.

    Returns:
        An :class:`~celery_guard.Explanation`; as text it is one sentence.

    Raises:
        ValueError: ``error`` is none of these.
    """
    task = maybe_evaluate(task)
    settings = task_settings(task)
    now = datetime.now(timezone.utc)
    claim = Claim(
        run_id="",
        token="",
        attempt=attempt,
        max_attempts=settings.max_attempts,
        unknown_faults=unknown_faults,
        deadline_at=now + (settings.deadline if remaining is None else remaining),
    )
    limit = settings.error_max_length
    return explain_claim(
        error, settings.policy, claim, now=now, ask=lambda example: judge(task, example, now), limit=limit
    )
