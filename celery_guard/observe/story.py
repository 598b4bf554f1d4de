"""One run's life as a story: each attempt with its times, its fault and what was left to the deadline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_guard.core.states import State
from celery_guard.core.wording import spell, stamp

if TYPE_CHECKING:
    from celery_guard.store.records import Attempt, TaskRun
    from celery_guard.store.reports import Life, Place, ReportStore
    from celery_guard.store.runs import RunStore

__all__ = ["SHOWN", "Chapter", "Story", "facts", "said_reason", "stored_result", "tell"]

#: How much of a result or an error is shown to people.
SHOWN = 200


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

    @property
    def fault(self) -> str:
        """What went wrong, in one text; empty when nothing did."""
        return f"{self.error_type}: {self.error or ''}" if self.error_type else (self.error or "")

    @property
    def place(self) -> str:
        """Where it ran: host and process of the worker, or else the worker's id."""
        return f"{self.host}:{self.pid}" if self.host else (self.worker_id or "")


@dataclass(frozen=True)
class Story:
    """A run, what its snapshot does not show, and its attempts, the first one first."""

    run: TaskRun
    life: Life
    chapters: tuple[Chapter, ...]


@dataclass(frozen=True)
class _Told:
    attempt: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    failed: Attempt | None = None


def tell(run_id: str, runs: RunStore, reports: ReportStore) -> Story | None:
    """Read the life of a run: four rows by their keys, and its attempts. None: there is no such run."""
    run, life = runs.find(run_id, history=True), reports.life(run_id)
    if run is None or life is None:
        return None
    told = _attempts(run, life)
    places = reports.places({one.worker_id for one in told if one.worker_id})
    return Story(run, life, tuple(_chapters(run, life, told, places)))


def facts(story: Story) -> Iterator[tuple[str, str]]:
    """Return what is worth saying about a run besides its attempts: names and texts, which may be empty."""
    run, life = story.run, story.life
    yield "attempts", _count(run)
    yield "queue", run.queue
    yield "submitted", f"{stamp(run.created_at)}, {spell(life.now - run.created_at)} ago"
    if run.finished_at is not None:
        yield "ended", f"{stamp(run.finished_at)}, {spell(run.finished_at - run.created_at)} after its submission"
    yield "deadline", f"{stamp(run.deadline_at)}, {_left(run, life)}"
    if run.next_retry_at is not None and not run.is_terminal:
        yield "next attempt", f"{stamp(run.next_retry_at)}, in {spell(run.next_retry_at - life.now)}"
    if run.waits_for_permit:
        yield "waits", f"for a permit: as many runs of {run.concurrency_group} are running as may"
    elif run.state is State.QUEUED and run.next_retry_at is None:
        yield "waits", f"for a worker; published {life.publishes} times"
    yield "owed", "Celery is not told the ending yet" if run.owed else ""
    yield "error", f"{run.last_error} ({run.error_category})"[:SHOWN] if run.last_error else ""
    if run.state is State.SUCCEEDED:
        yield "result", json.dumps(stored_result(run), ensure_ascii=False)[:SHOWN]
    for name in ("idempotency_key", "parent_id", "root_id", "redrive_of", "same_as"):
        yield name.removeprefix("idempotency_").removesuffix("_id").replace("_", " "), getattr(run, name) or ""
    yield "meta", " ".join(f"{name}={value}" for name, value in run.meta.items())


def said_reason(run: TaskRun) -> str:
    """Return the terminal reason where it says more than the state, or what a queued run waits for."""
    if run.waits_for_permit:
        return "waiting for a permit"
    return run.terminal_reason.value if run.terminal_reason and run.terminal_reason.value != run.state.value else ""


def stored_result(run: TaskRun) -> Any:
    """Return the stored result of a run that succeeded, as its serializer wrote it where that is not JSON."""
    if run.state is not State.SUCCEEDED or run.encoded_result is None:
        return None
    try:
        return json.loads(run.encoded_result)
    except ValueError:
        return run.encoded_result


def _attempts(run: TaskRun, life: Life) -> list[_Told]:
    """The history holds what did not succeed; an attempt that runs or has succeeded is in the row itself."""
    told = [
        _Told(one.attempt, one.category or one.rule, one.started_at, one.finished_at, one.worker_id, one)
        for one in run.attempts
    ]
    if run.state is State.RUNNING or (run.state is State.SUCCEEDED and run.started_at is not None):
        told.append(_Told(run.attempt, run.state.value, run.started_at, run.finished_at, life.worker_id))
    return told


def _chapters(run: TaskRun, life: Life, told: list[_Told], places: Mapping[str, Place]) -> Iterator[Chapter]:
    for before, one, after in zip([None, *told], told, [*told[1:], None], strict=False):
        begun = before.finished_at if before else run.created_at
        then = after.started_at if after else run.next_retry_at
        yield _chapter(run, life, one, begun, then, places.get(one.worker_id or ""))


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


def _count(run: TaskRun) -> str:
    from celery_guard.settings import UNLIMITED_ATTEMPTS  # heavy, and loaded by whoever has read a run

    more = []
    if run.unknown_faults:
        more.append(f"{run.unknown_faults} of them with an unknown fault")
    if run.snoozes:
        more.append(f"put off {run.snoozes} times")
    most = "any number" if run.max_attempts >= UNLIMITED_ATTEMPTS else str(run.max_attempts)
    return ", ".join([f"{run.attempt} of {most}", *more])


def _left(run: TaskRun, life: Life) -> str:
    left = run.deadline_at - (run.finished_at or life.now)
    late = left.total_seconds() < 0
    verb = "were left" if run.is_terminal else "are left"
    return f"{spell(-left)} too late" if late else f"{spell(left)} {verb}"
