"""Say what matters to a test, default the rest."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery_guard.core.decide import Claim
from celery_guard.core.faults import Category, Fault
from celery_guard.store.records import NewRun

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)


def a_claim(
    *,
    run_id: str = "run-1",
    token: str = "token-1",
    attempt: int = 1,
    max_attempts: int = 5,
    unknown_faults: int = 0,
    deadline_at: datetime = NOON + timedelta(hours=1),
) -> Claim:
    """One attempt, an hour before its deadline."""
    return Claim(run_id, token, attempt, max_attempts, unknown_faults, deadline_at)


def a_fault(
    category: Category = Category.RETRYABLE,
    *,
    rule: str = "task_retryable",
    error_type: str = "ConnectionError",
    error: str = "refused",
    retry_after: timedelta | None = None,
) -> Fault:
    """One classified error."""
    return Fault(category, rule, error_type, error, retry_after=retry_after)


def a_new_run(run_id: str = "run-1", **given: Any) -> NewRun:
    """A submission that may take an hour, five attempts and no wait, and is being published."""
    values: dict[str, Any] = {
        "namespace": "shop",
        "type": "shop.send",
        "queue": "celery",
        "payload": "[[42], {}]",
        "options": "{}",
        "fingerprint": "1:abc",
        "max_attempts": 5,
        "deadline_at": datetime.max.replace(tzinfo=timezone.utc),
        "deadline_after": 3_600.0,
        "lease": 20.0,
    }
    return NewRun(run_id, **{**values, **given})
