"""Reading runs."""

from __future__ import annotations

from sqlalchemy import (
    bindparam,
    exists,
    not_,
    select,
)

from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt, task_worker
from celery_guard.store.statements.parts import (
    HISTORY_COLUMNS,
    IS_MINE,
    IS_RUNNING,
    IS_THIS,
    RUN,
    RUNNING_COLUMNS,
    SNAPSHOT,
    checked,
)

__all__ = ["FIND", "HISTORY", "PAYLOAD", "RUNNING", "RUNNING_FOR_NOBODY", "RUNNING_ON"]

#: Read what a worker runs.
RUNNING_ON = Statement(lambda: select(*RUNNING_COLUMNS).where(RUN.worker_id == bindparam("worker_id"), IS_RUNNING))

_HAS_A_WORKER = exists().where(task_worker.c.id == RUN.worker_id, task_worker.c.stopped_at.is_(None))

#: Read what workers run that are gone.
RUNNING_FOR_NOBODY = Statement(
    lambda: select(*RUNNING_COLUMNS).where(
        IS_RUNNING, RUN.worker_id.is_not(None), checked(IS_MINE), checked(not_(_HAS_A_WORKER))
    )
)

#: Read one running row.
RUNNING = Statement(lambda: select(*RUNNING_COLUMNS).where(IS_THIS, checked(IS_MINE, IS_RUNNING)))

#: Read a snapshot.
FIND = Statement(lambda: select(*(RUN[name] for name in SNAPSHOT)).where(IS_THIS, IS_MINE))

#: Read the attempts that did not succeed, oldest first.
HISTORY = Statement(
    lambda: (
        select(*(task_attempt.c[name] for name in HISTORY_COLUMNS[1:]))
        .where(task_attempt.c.run_id == bindparam("id"))
        .order_by(task_attempt.c.attempt)
    )
)

#: Read the encoded arguments and options.
PAYLOAD = Statement(lambda: select(RUN.payload, RUN.options).where(IS_THIS))
