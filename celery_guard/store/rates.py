"""The verb of a limited retry rate: each retry of a task takes a slot of its own, over all workers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from math import ceil
from typing import Any

from sqlalchemy import BigInteger, bindparam, case, cast, delete, func, literal_column, select
from sqlalchemy.dialects import postgresql

from celery_guard.store.database import Database, Statement
from celery_guard.store.models import task_rate

__all__ = ["RateStore"]

RATE = task_rate.c

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class RateStore:
    """The table ``task_rate`` of one namespace: the stretches of time, per task, in which every slot is taken.

    A slot takes the time up to the next one. Slots that follow each other without room for one more are one row, so an
    outage costs a row, however many retries wait for its end; a retry that is due far away takes nothing from those
    that are due before it.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def slot(self, task_type: str, wanted: datetime, seconds_between: float, *, before: datetime) -> datetime | None:
        """Take the first free slot at or after a moment. None: the other comes first, and none is taken."""
        rows = self.database.execute_behind(
            _LOCK_TASK,
            _TAKE_SLOT,
            namespace=self.namespace,
            type=task_type,
            wanted=_microseconds(wanted),
            between=ceil(seconds_between * 1_000_000),
            before=_microseconds(before),
        ).rows
        return _EPOCH + timedelta(microseconds=rows[0][0]) if rows else None

    def prune(self, before: datetime) -> int:
        """Forget the slots that were over at that moment."""
        return self.database.execute(_PRUNE, namespace=self.namespace, before=_microseconds(before)).touched


def _microseconds(moment: datetime) -> int:
    """Return a moment as the table has it; as numbers, slots are as exact on SQLite as on PostgreSQL."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _number(name: str) -> Any:
    return cast(bindparam(name), BigInteger)


def _last_that_begins_before(moment: Any, what: Any) -> Any:
    """Read of the stretches that begin before a moment the last: one look into the primary key."""
    return (
        select(what)
        .where(RATE.namespace == bindparam("namespace"), RATE.type == bindparam("type"), RATE.taken_from < moment)
        .order_by(RATE.taken_from.desc())
        .limit(1)
        .scalar_subquery()
    )


def _take_slot() -> Any:
    """Step from the wanted moment to the end of what is in its way, then of what is in the way of that, and so on."""
    steps = select(_number("wanted").label("at")).cte("steps", recursive=True)
    in_the_way = case((RATE.taken_until > steps.c.at, RATE.taken_until))
    following = _last_that_begins_before(steps.c.at + _number("between"), in_the_way)
    steps = steps.union_all(select(following).where(steps.c.at.is_not(None)))
    found: Any = select(func.max(steps.c.at).label("at")).subquery("found").c.at
    goes_on = _last_that_begins_before(found, case((RATE.taken_until == found, RATE.taken_from)))
    stretch = select(
        cast(bindparam("namespace"), RATE.namespace.type),
        cast(bindparam("type"), RATE.type.type),
        func.coalesce(goes_on, found),
        found + _number("between"),
    ).where(found < _number("before"))
    statement = postgresql.insert(task_rate).from_select([column.name for column in RATE], stretch)
    return statement.on_conflict_do_update(
        index_elements=[RATE.namespace, RATE.type, RATE.taken_from],
        set_={"taken_until": statement.excluded.taken_until},
    ).returning(RATE.taken_until - _number("between"))


def _lock_task() -> Any:
    name = func.concat("celery_guard/retry_rate/", bindparam("namespace"), literal_column("'/'"), bindparam("type"))
    return select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0)))


#: Let nobody else take a slot of this task until the transaction ends: it is sent in front of the next, on PostgreSQL.
_LOCK_TASK = Statement(_lock_task)

_TAKE_SLOT = Statement(_take_slot)

_PRUNE = Statement(
    lambda: delete(task_rate).where(RATE.namespace == bindparam("namespace"), RATE.taken_until <= bindparam("before"))
)
