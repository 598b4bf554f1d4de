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
    now_for_scans,
    seconds_from_now,
    seconds_from_now_for_scans,
)
from celery_guard.store.statements.parts import (
    IS_DUE,
    IS_MINE,
    IS_PUBLISHED,
    LOCK_PATIENCE,
    PATIENCE,
    RUN,
    checked,
    first,
)

__all__ = ["EXTEND_LEASES", "PUBLISH_SOON", "TAKE_DUE", "TAKE_LOST", "WAITING"]

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
        permit=case((RUN.state != constant(State.RETRYING), RUN.permit)),  # a retry asks again
        next_retry_at=None,
        publish_at=PATIENCE,
        publishes=RUN.publishes + 1,
        updated_at=now(),
    )


#: Take rows to publish: whose wait is over, whose publishing failed, whose ending is owed.
TAKE_DUE = Statement(
    lambda: _publish(and_(IS_DUE, or_(RUN.next_retry_at.is_not(None), RUN.publishes == 0))).returning(*DUE_COLUMNS)
)


def _waiting() -> Any:
    on_its_way = RUN.updated_at > seconds_from_now_for_scans("ago")
    outlived = RUN.publish_at <= now_for_scans()
    elsewhere = or_(on_its_way, among(RUN.id, "reserved").self_group())
    columns = (func.sum(case((elsewhere, 0), else_=1)), func.sum(case((outlived, 1), else_=0)))
    return select(RUN.queue, *columns).where(IS_MINE, IS_PUBLISHED).group_by(RUN.queue)


#: Count published rows whose message should be in a queue, and those among them that outlived their lease, by queue.
WAITING = Statement(_waiting)


def _take_lost() -> Any:
    longer_ago = and_(RUN.publishes > 1, RUN.updated_at <= seconds_from_now_for_scans("ago"))
    is_unclaimed = and_(IS_MINE, IS_PUBLISHED, or_(RUN.publish_at <= now_for_scans(), longer_ago))
    return _publish(
        and_(is_unclaimed, RUN.queue == bindparam("queue"), ~among(RUN.id, "reserved").self_group())
    ).returning(*DUE_COLUMNS)


#: Take rows that no worker holds reserved and that outlived their lease, were patience not doubled.
TAKE_LOST = Statement(_take_lost)

#: Double the patience with published rows of one queue that outlived their lease. That of an owed ending names the
#: message that may tell it, and stays as it is.
EXTEND_LEASES = Statement(
    lambda: (
        update(task_run)
        .where(first(and_(IS_DUE, IS_PUBLISHED, RUN.queue == bindparam("queue")), RUN.publish_at))
        .values(publish_at=PATIENCE, publishes=RUN.publishes + case((RUN.owed, 0), else_=1))
        .returning(RUN.id)  # sqlite3 counts no rows of a statement that begins with WITH
    )
)

#: Make rows due again that were published in vain.
PUBLISH_SOON = Statement(
    lambda: (
        update(task_run)
        .where(among(RUN.id, "ids"), checked(RUN.publish_at.is_not(None)))
        .values(publish_at=seconds_from_now("delay"), publishes=0)
    ),
    lock_patience=LOCK_PATIENCE,
)
