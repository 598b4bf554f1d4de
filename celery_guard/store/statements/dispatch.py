"""Rows to the broker: what is due, and what may be lost."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    update,
)

from celery_guard.core.states import State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_run
from celery_guard.store.sql import (
    among,
    constant,
    now,
    seconds_from_now,
)
from celery_guard.store.statements.parts import (
    IS_DUE,
    IS_LIVE,
    IS_MINE,
    IS_PUBLISHED,
    PATIENCE,
    RUN,
    first,
)

__all__ = ["EXTEND_LEASES", "PUBLISH_SOON", "SUSPECTS", "TAKE_DUE", "TAKE_LOST", "WAITING_IN"]

DUE_COLUMNS = (
    RUN.id,
    RUN.type,
    RUN.queue,
    RUN.payload,
    RUN.options,
    RUN.fingerprint,
    RUN.attempt,
    RUN.publishes,
    RUN.state,
    RUN.owed,
    RUN.deadline_at,
)


def _publish(where: Any) -> Any:
    taken = update(task_run).where(first(where, RUN.publish_at))
    return taken.values(
        state=case((RUN.state == constant(State.RETRYING), constant(State.QUEUED)), else_=RUN.state),
        next_retry_at=None,
        publish_at=PATIENCE,
        publishes=RUN.publishes + 1,
        updated_at=now(),
    )


#: Take rows to publish: whose wait is over, whose publishing failed, whose ending is owed.
TAKE_DUE = Statement(
    lambda: _publish(and_(IS_DUE, or_(RUN.owed, RUN.next_retry_at.is_not(None), RUN.publishes == 0))).returning(
        *DUE_COLUMNS
    )
)

#: Count published rows that outlived their lease, by queue.
SUSPECTS = Statement(lambda: select(RUN.queue, func.count()).where(IS_DUE, IS_PUBLISHED).group_by(RUN.queue))

#: Count published rows of one queue that nobody has claimed.
WAITING_IN = Statement(
    lambda: select(func.count()).where(IS_MINE, IS_LIVE, IS_PUBLISHED, RUN.queue == bindparam("queue"))
)

#: Take published rows that outlived their lease and that no worker holds reserved.
TAKE_LOST = Statement(
    lambda: _publish(
        and_(IS_DUE, IS_PUBLISHED, RUN.queue == bindparam("queue"), ~among(RUN.id, "reserved").self_group())
    ).returning(*DUE_COLUMNS)
)

#: Double the patience with published rows of one queue that outlived their lease.
EXTEND_LEASES = Statement(
    lambda: (
        update(task_run)
        .where(first(and_(IS_DUE, IS_PUBLISHED, RUN.queue == bindparam("queue")), RUN.publish_at))
        .values(publish_at=PATIENCE, publishes=RUN.publishes + 1)
        .returning(RUN.id)  # sqlite3 counts no rows of a statement that begins with WITH
    )
)

#: Make rows due again that were published in vain.
PUBLISH_SOON = Statement(
    lambda: (
        update(task_run)
        .where(among(RUN.id, "ids"), RUN.publish_at.is_not(None))
        .values(publish_at=seconds_from_now("delay"), publishes=0)
    )
)
