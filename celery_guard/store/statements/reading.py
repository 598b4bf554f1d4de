"""Reading runs."""

from __future__ import annotations

from sqlalchemy import (
    bindparam,
    select,
)

from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt
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

__all__ = ["FIND", "HISTORY", "PAYLOAD", "RUNNING", "RUNNING_ON"]

#: Read what a worker runs.
RUNNING_ON = Statement(lambda: select(*RUNNING_COLUMNS).where(RUN.worker_id == bindparam("worker_id"), IS_RUNNING))

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
