"""Questions about many runs, for people: they read only, and none of them is on the way of a run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg2  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from celery_guard.core.states import Reason, State
from celery_guard.store import report_statements as sql
from celery_guard.store.database import Database, Statement, parse_moment
from celery_guard.store.records import TaskRun
from celery_guard.store.report_statements import Cursor, RunFilter
from celery_guard.store.rows import to_task_run

__all__ = [
    "REFUSED",
    "Cursor",
    "EndedCount",
    "Life",
    "LiveCount",
    "Oldest",
    "Page",
    "Place",
    "ReportStore",
    "RunFilter",
    "WorkerReport",
]

#: What a database, its driver or its URL may raise besides what this package makes of it: no rights, a bad URL.
REFUSED: tuple[type[Exception], ...] = (SQLAlchemyError, psycopg2.Error, sqlite3.Error)


@dataclass(frozen=True)
class Page:
    """Runs, newest first, and where the next page goes on; None: there is none."""

    runs: tuple[TaskRun, ...]
    next: Cursor | None


@dataclass(frozen=True)
class Life:
    """What a snapshot does not show of a run."""

    worker_id: str | None
    updated_at: datetime
    publish_at: datetime | None
    publishes: int
    now: datetime


@dataclass(frozen=True)
class Place:
    """Where a worker ran."""

    host: str
    pid: int


@dataclass(frozen=True)
class LiveCount:
    """Live runs of one state and task."""

    state: State
    type: str
    count: int
    oldest: datetime
    soonest_deadline: datetime
    late: int


@dataclass(frozen=True)
class EndedCount:
    """Ended runs of one state, reason and task; margins are what was left to the deadline, in seconds."""

    state: State
    reason: Reason
    type: str
    count: int
    least_margin: float
    mean_margin: float
    tight: int


@dataclass(frozen=True)
class Oldest:
    """The run that has waited longest for a worker."""

    id: str
    type: str
    queue: str
    created_at: datetime
    deadline_at: datetime


@dataclass(frozen=True)
class WorkerReport:
    """One boot of a worker. ``silent_for`` is the database's clock since the last beat, to be looked at by people."""

    id: str
    host: str
    pid: int
    started_at: datetime
    beats: int
    beat_at: datetime
    silent_for: timedelta
    reserved: int
    stopped_at: datetime | None
    running: int = 0
    oldest_running: datetime | None = None


class ReportStore:
    """Reports on one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def runs(self, wanted: RunFilter, *, limit: int, after: Cursor | None = None) -> Page:
        """List runs, newest first: by the moment they ended or, while they are live, were submitted.

        Ended runs are read in the order of ``task_run_ended`` until the page is full, so a filter that hardly matches
        reads on to ``since``, or all of the table. All live runs are read through ``task_run_live``; a key is found in
        ``task_run_key``.
        """
        if not wanted.wanted:
            return Page((), None)
        listed = Statement(lambda: sql.listed(wanted, after))
        values = {**self._values(wanted), **({"after_at": after.at, "after_id": after.id} if after else {})}
        rows = self.database.execute(listed, namespace=self.namespace, limit=limit + 1, **values).rows
        runs = tuple(to_task_run(row[:-1], ()) for row in rows[:limit])
        return Page(runs, Cursor(parse_moment(rows[limit - 1][-1]), runs[-1].id) if len(rows) > limit else None)

    def all_ids(self, wanted: RunFilter, *, page: int = 1_000) -> Iterator[str]:
        """Return the ids of matching runs, newest first, page by page."""
        after: Cursor | None = None
        while True:
            found = self.runs(wanted, limit=page, after=after)
            yield from (run.id for run in found.runs)
            after = found.next
            if after is None:
                return

    def redriven(self, *, limit: int = 1_000_000) -> frozenset[str]:
        """Return the ids of runs that were driven again. A scan of the whole table, bounded by ``limit`` ids."""
        rows = self.database.execute(sql.REDRIVEN, namespace=self.namespace, limit=limit).rows
        return frozenset(row[0] for row in rows)

    def life(self, run_id: str) -> Life | None:
        """Return what a snapshot does not show of a run; one row, by its primary key."""
        rows = self.database.execute(sql.LIFE, id=run_id, namespace=self.namespace).rows
        if not rows:
            return None
        worker_id, updated_at, publish_at, publishes, clock = rows[0]
        return Life(worker_id, parse_moment(updated_at), parse_moment(publish_at), publishes, parse_moment(clock))

    def places(self, worker_ids: Iterable[str]) -> dict[str, Place]:
        """Return where workers ran, as far as that is known; rows by their primary key."""
        rows = self.database.execute(sql.PLACES, ids=sorted(set(worker_ids))).rows
        return {id_: Place(host, pid) for id_, host, pid in rows}

    def live_counts(self) -> list[LiveCount]:
        """Count live runs by state and task; all of them are read through ``task_run_live``."""
        rows = self.database.execute(sql.LIVE_COUNTS, namespace=self.namespace).rows
        return [
            LiveCount(State(state), type_, count, parse_moment(oldest), parse_moment(soonest), int(late))
            for state, type_, count, oldest, soonest, late in rows
        ]

    def ended_counts(self, since: datetime | timedelta | None) -> list[EndedCount]:
        """Count ended runs by state, reason and task, by ``task_run_ended``; without ``since``, all that are kept."""
        statement = Statement(lambda: sql.ended_counts(since is not None))
        rows = self.database.execute(statement, namespace=self.namespace, since_at=self._moment(since)).rows
        return [
            EndedCount(State(state), Reason(reason), type_, count, float(least), float(mean), int(tight))
            for state, reason, type_, count, least, mean, tight in rows
        ]

    def unknown_shares(self, since: timedelta) -> dict[str, tuple[int, int]]:
        """Return, by task, how many runs failed or died of an unknown error, and of any, through ``task_run_ended``."""
        rows = self.database.execute(sql.UNKNOWN, namespace=self.namespace, since_at=self._moment(since)).rows
        return {type_: (int(unknown), all_) for type_, unknown, all_ in rows}

    def oldest_queued(self) -> Oldest | None:
        """Return the run that has waited longest for a worker; live runs are read through ``task_run_live``."""
        rows = self.database.execute(sql.OLDEST, namespace=self.namespace).rows
        if not rows:
            return None
        id_, type_, queue, created_at, deadline_at = rows[0]
        return Oldest(id_, type_, queue, parse_moment(created_at), parse_moment(deadline_at))

    def workers(self, *, stopped: int = 0) -> list[WorkerReport]:
        """Return the workers that have not stopped, and the last of those that have.

        The former are read through ``task_worker_alive``, what they run through ``task_run_running``; ``stopped`` reads
        the whole table of workers, a row per boot.
        """
        rows = self.database.execute(sql.ALIVE, namespace=self.namespace).rows
        if stopped:
            rows = [*rows, *self.database.execute(sql.STOPPED, namespace=self.namespace, limit=stopped).rows]
        busy = {
            id_: (count, parse_moment(oldest))
            for id_, count, oldest in self.database.execute(sql.RUNNING, ids=[row[0] for row in rows]).rows
        }
        return [_worker(row, *busy.get(row[0], (0, None))) for row in rows]

    def _moment(self, since: datetime | timedelta | None) -> datetime | None:
        """Read the clock first: a planner that knows the moment knows how little lies behind it."""
        if not isinstance(since, timedelta):
            return since
        clock: datetime = parse_moment(self.database.execute(sql.CLOCK).rows[0][0])
        return clock - since

    def _values(self, wanted: RunFilter) -> dict[str, Any]:
        given = {name: getattr(wanted, name) for name in ("type", "queue", "key")}
        values = {**given, "since_at": self._moment(wanted.since), "reason": wanted.reason and wanted.reason.value}
        for number, (key, value) in enumerate(wanted.meta.items()):
            values |= {f"meta_key_{number}": key, f"meta_value_{number}": value}
        return {name: value for name, value in values.items() if value is not None}

    def server_version(self) -> str:
        """Return the version of the database server, or of SQLite."""
        return str(self.database.execute(sql.VERSION).rows[0][0])


def _worker(row: Sequence[Any], running: int, oldest: datetime | None) -> WorkerReport:
    id_, host, pid, started_at, beats, beat_at, reserved, stopped_at, clock = row
    silent_for = max(parse_moment(clock) - parse_moment(beat_at), timedelta(0))
    held, began, beat = len(json.loads(reserved)), parse_moment(started_at), parse_moment(beat_at)
    return WorkerReport(id_, host, pid, began, beats, beat, silent_for, held, parse_moment(stopped_at), running, oldest)
