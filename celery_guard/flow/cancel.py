"""Stopping a run from outside."""

from __future__ import annotations

from typing import Any

from celery.app import app_or_default

from celery_guard.flow.guard import guard_of
from celery_guard.flow.rescue import cancel_run
from celery_guard.flow.result import get_run
from celery_guard.store.records import TaskRun

__all__ = ["cancel"]


def cancel(run_id: str, *, app: Any = None) -> TaskRun:
    """End a run now, whether it waits or runs. A body that runs is stopped by its worker, within about two heartbeats.

    Args:
        run_id: the Celery task id.
        app: the Celery app; the current one by default.

    Returns:
        A snapshot of the run; its state is ``cancelled`` unless it had ended before.

    Raises:
        RunNotFound: no run of this app's namespace has this id.
        StoreUnavailable: the database can't be reached.
    """
    app = app_or_default(app)
    cancel_run(guard_of(app), run_id)
    return get_run(run_id, app=app)
