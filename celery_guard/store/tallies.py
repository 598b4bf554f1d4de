"""What metrics are made of: slices of time, live rows, and what was counted before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import Any

from celery_guard.core.faults import Category
from celery_guard.core.histogram import BOUNDS, Distribution, Measure
from celery_guard.core.states import Reason, State
from celery_guard.store import tally_statements as sql
from celery_guard.store.database import Database, parse_moment

__all__ = ["EndedGroup", "FaultGroup", "LiveGroup", "Saved", "TallyStore", "Unrecorded"]


class Unrecorded(str, Enum):
    """What happens to messages and leaves no row of its own."""

    DUPLICATE_DROPPED = "duplicate_dropped"
    REPUBLISHED = "republished"


@dataclass(frozen=True)
class EndedGroup:
    """Runs that ended in a slice of time in the same way."""

    type: str
    state: State
    reason: Reason
    count: int
    measures: dict[Measure, Distribution]


@dataclass(frozen=True)
class FaultGroup:
    """Faults of one kind in a slice of time."""

    type: str
    category: Category
    rule: str
    count: int


@dataclass(frozen=True)
class LiveGroup:
    """Live runs of one task in one state and queue; those that wait for a worker apart from those that wait."""

    type: str
    state: State
    queue: str
    waits_for_a_worker: bool
    count: int
    oldest_start: datetime | None
    oldest_update: datetime
    soonest_deadline: datetime
    overdue: int


@dataclass(frozen=True)
class Saved:
    """The database's clock, and what was counted so far, up to a moment."""

    now: datetime
    counted_to: datetime | None
    totals: str | None


class TallyStore:
    """What is counted in one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def load(self) -> Saved:
        """Return what was counted so far; one row."""
        now, counted_to, totals = self.database.execute(sql.LOAD, namespace=self.namespace).rows[0]
        return Saved(parse_moment(now), parse_moment(counted_to), totals)

    def save(self, totals: str, *, counted_before: datetime | None, counted_to: datetime) -> bool:
        """Write totals that go further. False: somebody else has, and theirs count."""
        values = {"namespace": self.namespace, "totals": totals, "until_at": counted_to}
        if counted_before is None:
            return bool(self.database.execute(sql.START, **values).rows)
        return bool(self.database.execute(sql.SAVE, since_at=counted_before, **values).touched)

    def ended(self, since: datetime, until: datetime) -> list[EndedGroup]:
        """Count what ended after a moment and up to another, through ``task_run_ended``."""
        rows = self.database.execute(sql.ENDED, namespace=self.namespace, since_at=since, until_at=until).rows
        return [_ended_group(type_, state, reason, count, numbers) for type_, state, reason, count, *numbers in rows]

    def faults(self, since: datetime, until: datetime) -> list[FaultGroup]:
        """Count the faults after a moment and up to another, through ``task_attempt_recent``."""
        rows = self.database.execute(sql.FAULTS, namespace=self.namespace, since_at=since, until_at=until).rows
        return [FaultGroup(type_, Category(category), rule, count) for type_, category, rule, count in rows]

    def live(self) -> list[LiveGroup]:
        """Count live runs; all of them are read through ``task_run_live``."""
        rows = self.database.execute(sql.LIVE, namespace=self.namespace).rows
        return [
            LiveGroup(
                type_,
                State(state),
                queue,
                bool(waits),
                count,
                parse_moment(start),
                parse_moment(update),
                parse_moment(deadline),
                int(overdue),
            )
            for type_, state, queue, waits, count, start, update, deadline, overdue in rows
        ]

    def due_since(self, now: datetime) -> datetime | None:
        """Return since when the row waits that has waited longest for its message, through ``task_run_to_publish``."""
        rows = self.database.execute(sql.DUE_SINCE, namespace=self.namespace, until_at=now).rows
        return parse_moment(rows[0][0]) if rows else None

    def count(self, event: Unrecorded, types: Iterable[tuple[str, int]]) -> None:
        """Count, by task, something that leaves no row."""
        for type_, times in types:
            self.database.execute(sql.COUNT, namespace=self.namespace, event=event.value, type=type_, times=times)

    def counted(self) -> list[tuple[Unrecorded, str, int]]:
        """Return how often things happened that leave no row, by task."""
        rows = self.database.execute(sql.COUNTED, namespace=self.namespace).rows
        return [(Unrecorded(event), type_, times) for event, type_, times in rows]


def _ended_group(type_: str, state: str, reason: str, count: int, numbers: Sequence[Any]) -> EndedGroup:
    wholes, counts = iter(numbers[: 2 * len(BOUNDS)]), iter(numbers[2 * len(BOUNDS) :])
    measures = {}
    for measure, bounds in BOUNDS.items():
        values, total = next(wholes), next(wholes)
        measures[measure] = Distribution([*islice(counts, len(bounds)), values], float(total or 0))
    return EndedGroup(type_, State(state), Reason(reason), count, measures)
