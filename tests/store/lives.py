"""Bring runs into the state in which a test begins, and look at their rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from celery_guard.core.decide import Claim, Finish, Retry, Settlement
from celery_guard.core.states import Reason, State
from celery_guard.store.models import task_run
from celery_guard.store.records import NewRun, Submitted
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_fault, a_new_run

NAMESPACE = "shop"

SUCCESS = Finish(State.SUCCEEDED, Reason.SUCCEEDED)
TOO_LATE = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)
CANCELLED = Finish(State.CANCELLED, Reason.CANCELLED)


class Clock:
    """A clock that moves when told to."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


def after(seconds: float) -> datetime:
    """The moment so many seconds after noon, when tests begin."""
    return NOON + timedelta(seconds=seconds)


def retry_at(seconds: float, **fault: Any) -> Retry:
    """The settlement of an attempt that is repeated so many seconds after noon."""
    return Retry(after(seconds), a_fault(**fault))


def submitted(runs: RunStore, run_id: str = "run-1", **given: Any) -> str:
    """A queued run whose message is on its way."""
    assert runs.submit(a_new_run(run_id, **given)) is not None
    return run_id


def claimed(
    runs: RunStore, run_id: str = "run-1", *, token: str = "token-1", worker_id: str = "worker-1", **given: Any
) -> Claim:
    """A new run in its first attempt."""
    submitted(runs, run_id, **given)
    return claim(runs, run_id, token=token, worker_id=worker_id)


def claim(runs: RunStore, run_id: str = "run-1", *, token: str = "token-1", worker_id: str = "worker-1") -> Claim:
    """One more attempt of a queued run."""
    found = runs.claim(run_id, token, worker_id=worker_id, fingerprint=None)
    assert found is not None
    return found.claim


def ended(runs: RunStore, run_id: str = "run-1", settlement: Settlement = SUCCESS, **how: Any) -> Claim:
    """A new run whose first attempt is over."""
    held = claimed(runs, run_id)
    assert runs.settle(held, settlement, **how)
    return held


def row(runs: RunStore, run_id: str = "run-1") -> dict[str, Any]:
    """The whole row, as it is stored."""
    with runs.database.connection() as connection:
        found = connection.execute(select(task_run).where(task_run.c.id == run_id)).mappings().one()
        return dict(found)


def history(runs: RunStore, run_id: str = "run-1") -> list[int]:
    """The attempts that did not succeed, by number."""
    run = runs.find(run_id, history=True)
    assert run is not None
    return [attempt.attempt for attempt in run.attempts]


def find(runs: RunStore, run_id: str = "run-1") -> Any:
    """A snapshot of a run that is there."""
    run = runs.find(run_id, history=True)
    assert run is not None
    return run


def due(runs: RunStore, *, limit: int = 100, lease: float = 20) -> list[str]:
    """Take what is due, and return the ids in their order."""
    return [row.id for row in runs.take_due(limit=limit, lease=lease)]


def write(runs: RunStore, run: NewRun) -> Submitted:
    """What a caller does: insert, else read who was there, else begin again."""
    for _ in range(10):
        found = runs.submit(run) or runs.taken_by(run)
        if found is not None:
            return found
    raise AssertionError(f"{run.id} neither written nor found")
