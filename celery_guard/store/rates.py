"""The verb of a limited retry rate: retries of one task get their slots from one row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, bindparam, case, cast
from sqlalchemy.dialects import postgresql

from celery_guard.store.database import Database, Statement, parse_moment
from celery_guard.store.models import task_rate
from celery_guard.store.sql import Moment, later

__all__ = ["RateStore"]

RATE = task_rate.c


class RateStore:
    """The table ``task_rate`` of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def slot(self, task_type: str, wanted: datetime, seconds_between: float) -> datetime:
        """Take the first free slot at or after a moment; the next one is that many seconds later."""
        rows = self.database.execute(
            _SLOT, namespace=self.namespace, type=task_type, wanted=wanted, between=seconds_between
        ).rows
        found: datetime = parse_moment(rows[0][0])
        return found


def _slot() -> Any:
    statement = postgresql.insert(task_rate).values(
        namespace=bindparam("namespace"), type=bindparam("type"), last_slot_at=bindparam("wanted", type_=Moment())
    )
    following = later(cast(bindparam("between"), Float), since=RATE.last_slot_at)
    wanted = statement.excluded.last_slot_at
    return statement.on_conflict_do_update(
        index_elements=[RATE.namespace, RATE.type],
        set_={"last_slot_at": case((following > wanted, following), else_=wanted)},
    ).returning(RATE.last_slot_at)


_SLOT = Statement(_slot)
