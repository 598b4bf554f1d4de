"""One run's life as a story: each attempt with its times, its fault and what was left to the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from celery_guard.core.states import State

if TYPE_CHECKING:
    from celery_guard.store.records import Attempt, TaskRun
    from celery_guard.store.reports import Life, Place

__all__ = ["Chapter", "chapters", "workers_of"]


@dataclass(frozen=True)
class Chapter:
    """One attempt.

    Args:
        outcome: what became of it: a category of errors, ``succeeded``, ``running``, or how it was ended.
        waited: from the submission, or from the end of the attempt before, to the start.
        took: from start to end, or to now while it runs.
        left: from its end, or from now, to the deadline; negative when that had passed.
        delay: from its end to the next attempt's start, or to when that is due.
    """

    attempt: int
    outcome: str
    waited: timedelta | None
    started_at: datetime | None
    finished_at: datetime | None
    took: timedelta | None
    left: timedelta
    delay: timedelta | None
    rule: str | None
    error_type: str | None
    error: str | None
    traceback: str | None
    worker_id: str | None
    host: str | None
    pid: int | None


@dataclass(frozen=True)
class _Told:
    attempt: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    failed: Attempt | None = None


def chapters(run: TaskRun, life: Life, places: Mapping[str, Place]) -> list[Chapter]:
    """Tell the attempts of a run, the first one first."""
    told = _attempts(run, life)
    found: list[Chapter] = []
    for before, one, after in zip([None, *told], told, [*told[1:], None], strict=False):
        begun = before.finished_at if before else run.created_at
        then = after.started_at if after else run.next_retry_at
        found.append(_chapter(run, life, one, begun, then, places.get(one.worker_id or "")))
    return found


def workers_of(run: TaskRun, life: Life) -> set[str]:
    """Return the workers that a run met."""
    return {one.worker_id for one in _attempts(run, life) if one.worker_id}


def _attempts(run: TaskRun, life: Life) -> list[_Told]:
    """The history holds what did not succeed; an attempt that runs or has succeeded is in the row itself."""
    told = [
        _Told(one.attempt, one.category or one.rule, one.started_at, one.finished_at, one.worker_id, one)
        for one in run.attempts
    ]
    if run.state is State.RUNNING or (run.state is State.SUCCEEDED and run.started_at is not None):
        told.append(_Told(run.attempt, run.state.value, run.started_at, run.finished_at, life.worker_id))
    return told


def _chapter(
    run: TaskRun, life: Life, one: _Told, begun: datetime | None, then: datetime | None, place: Place | None
) -> Chapter:
    end = one.finished_at or life.now
    failed = one.failed
    return Chapter(
        attempt=one.attempt,
        outcome=str(one.outcome),
        waited=_between(begun, one.started_at),
        started_at=one.started_at,
        finished_at=one.finished_at,
        took=_between(one.started_at, end),
        left=run.deadline_at - end,
        delay=_between(one.finished_at, then),
        rule=failed.rule if failed else None,
        error_type=failed.error_type if failed else None,
        error=failed.error if failed else None,
        traceback=failed.traceback if failed else None,
        worker_id=one.worker_id,
        host=place.host if place else None,
        pid=place.pid if place else None,
    )


def _between(earlier: datetime | None, later: datetime | None) -> timedelta | None:
    return None if earlier is None or later is None else later - earlier
