"""What an error means for one task: its own declarations, the configuration, the shipped rules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_guard.core.faults import Classification, classify
from celery_guard.flow.guard import guard_of

__all__ = ["judge"]


def judge(task: Any, error: BaseException, now: datetime) -> Classification:
    """Classify an error that left the body of a task."""
    return classify(
        error,
        now=now,
        retryable=tuple(task.retryable),
        non_retryable=tuple(task.non_retryable),
        configured=guard_of(task.app).settings.configured,
    )
