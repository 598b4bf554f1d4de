"""What an error means for one task: its own declarations, the configuration, the shipped rules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_guard.core.faults import Category, Classification, classify
from celery_guard.flow.guard import guard_of
from celery_guard.observe.logs import logger

__all__ = ["judge", "tell_trouble"]


def judge(task: Any, error: BaseException, now: datetime) -> Classification:
    """Classify an error that left the body of a task."""
    return classify(
        error,
        now=now,
        retryable=tuple(task.retryable),
        non_retryable=tuple(task.non_retryable),
        classifier=getattr(type(task), "classify", None),  # a plain function on the class, not a method
        configured=guard_of(task.app).settings.configured,
    )


def tell_trouble(task: Any, error: BaseException, found: Classification) -> None:
    """Log what a classification leaves for people to do: a classifier that failed, a class that no rule knows."""
    if found.trouble is not None:
        logger.error("%s: classifying %s: %s", task.name, type(error).__qualname__, found.trouble)
    if found.category is Category.UNKNOWN:
        _warn_once(task, type(error))


def _warn_once(task: Any, kind: type[BaseException]) -> None:
    """Tell how to classify an error that no rule knows, once per task and class in this process."""
    if (task.name, kind) not in _warned:
        _warned.add((task.name, kind))
        logger.warning(
            "%s: no rule knows %s.%s, so only guard_unknown_max_attempts of them are allowed; declare it in retryable="
            " or non_retryable= of the task, or in guard_retryable_errors or guard_non_retryable_errors",
            task.name,
            kind.__module__,
            kind.__qualname__,
        )


_warned: set[tuple[str, type[BaseException]]] = set()
