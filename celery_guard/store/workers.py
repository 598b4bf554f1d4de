"""The verbs of a worker's boot: it beats, it is watched, it stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql

from celery_guard.store.database import Database, Statement, parse_moment
from celery_guard.store.models import task_worker
from celery_guard.store.sql import now, seconds_from_now_for_scans

__all__ = ["Beat", "WorkerStore"]

WORKER = task_worker.c


@dataclass(frozen=True)
class Beat:
    """How often a worker has beaten, and which runs it holds without having started them."""

    worker_id: str
    count: int
    reserved: tuple[str, ...]


class WorkerStore:
    """The table ``task_worker`` of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def beat(self, worker_id: str, *, host: str, pid: int, reserved: Sequence[str]) -> datetime:
        """Beat once, the first time by writing the row; return the database's clock."""
        rows = self.database.execute(
            _BEAT, id=worker_id, namespace=self.namespace, host=host[:255], pid=pid, reserved=json.dumps(list(reserved))
        ).rows
        clock: datetime = parse_moment(rows[0][0])
        return clock

    def alive(self) -> list[Beat]:
        """Return the workers that have not stopped, as far as anybody said."""
        rows = self.database.execute(_ALIVE, namespace=self.namespace).rows
        return [Beat(id_, count, tuple(json.loads(reserved))) for id_, count, reserved in rows]

    def prune(self, age: timedelta) -> int:
        """Forget workers that stopped longer ago than that."""
        return self.database.execute(_PRUNE, namespace=self.namespace, ago=-age.total_seconds()).touched

    def stop(self, worker_id: str) -> None:
        """Write that a worker is gone."""
        self.database.execute(_STOP, id=worker_id)


def _beat() -> object:
    statement = postgresql.insert(task_worker).values(
        id=bindparam("id"),
        namespace=bindparam("namespace"),
        host=bindparam("host"),
        pid=bindparam("pid"),
        started_at=now(),
        beat=1,
        beat_at=now(),
        reserved=bindparam("reserved"),
    )
    return statement.on_conflict_do_update(
        index_elements=[WORKER.id],
        set_={
            "beat": WORKER.beat + 1,
            "beat_at": now(),
            "reserved": statement.excluded.reserved,
            "stopped_at": None,
        },
    ).returning(WORKER.beat_at)


_BEAT = Statement(_beat)

_ALIVE = Statement(
    lambda: select(WORKER.id, WORKER.beat, WORKER.reserved).where(
        WORKER.namespace == bindparam("namespace"), WORKER.stopped_at.is_(None)
    )
)

_PRUNE = Statement(
    lambda: delete(task_worker).where(
        WORKER.namespace == bindparam("namespace"), WORKER.stopped_at <= seconds_from_now_for_scans("ago")
    )
)

_STOP = Statement(
    lambda: (
        update(task_worker)
        .where(WORKER.id == bindparam("id"), WORKER.stopped_at.is_(None))
        .values(stopped_at=now(), reserved="[]")
    )
)
