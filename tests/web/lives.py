"""Runs as they may have lived, without a database: what the picture is drawn from."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery_guard.core.faults import Category
from celery_guard.core.states import Reason, State
from celery_guard.observe.story import Story, tell
from celery_guard.store.records import Attempt, TaskRun
from celery_guard.store.reports import Life, Place
from tests.factories import NOON

RUN_ID = "01a22e67-49fa-76b6-969e-0e4a40b5c460"


def after(seconds: float) -> datetime:
    """Return a moment that many seconds after the submission."""
    return NOON + timedelta(seconds=seconds)


def failed(attempt: int, begin: float, end: float, **given: Any) -> Attempt:
    """An attempt that failed, in seconds after the submission."""
    values: dict[str, Any] = {
        "worker_id": "boot-1",
        "category": Category.RETRYABLE,
        "rule": "task_retryable",
        "error_type": "ServiceBusy",
        "error": "503 Service Unavailable from http://127.0.0.1:8000/orders/1004",
        "traceback": None,
    }
    return Attempt(attempt, started_at=after(begin), finished_at=after(end), **{**values, **given})


def a_story(*attempts: Attempt, now: float = 60, **given: Any) -> Story:
    """The life of a run, a minute after its submission; dead after these attempts unless something else is given."""
    ended = {"state": State.DEAD, "terminal_reason": Reason.FAILED_DUE_MAX_ATTEMPTS}
    values: dict[str, Any] = {
        **dict.fromkeys(TaskRun.__dataclass_fields__),
        **({} if "state" in given else ended),
        "id": RUN_ID,
        "type": "shop.export_order",
        "queue": "celery",
        "meta": {},
        "attempt": len(attempts),
        "max_attempts": 3,
        "unknown_faults": 0,
        "snoozes": 0,
        "owed": False,
        "created_at": NOON,
        "deadline_at": after(45),
        "attempts": attempts,
        **given,
    }
    if values["finished_at"] is None and values["state"] in (State.DEAD, State.FAILED, State.SUCCEEDED):
        values["finished_at"] = attempts[-1].finished_at
    run = TaskRun(**values)
    story = tell(run.id, _Shelf(run, now), _Shelf(run, now))  # type: ignore[arg-type]
    assert story is not None
    return story


class _Shelf:
    """Answers like the store, from memory."""

    def __init__(self, run: TaskRun, now: float) -> None:
        self.run = run
        self.now = after(now)

    def find(self, run_id: str, *, history: bool) -> TaskRun:
        return self.run

    def life(self, run_id: str) -> Life:
        return Life("boot-1", NOON, None, 1, self.now)

    def places(self, worker_ids: set[str]) -> dict[str, Place]:
        return {worker_id: Place("mill", 77) for worker_id in worker_ids}
