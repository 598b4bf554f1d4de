"""One attempt: the claim, the settlement, and what its holder writes in between."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    Text,
    and_,
    bindparam,
    case,
    column,
    func,
    insert as plain_insert,
    null,
    or_,
    select,
    update,
)

from celery_guard.core.states import State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt, task_run
from celery_guard.store.sql import (
    constant,
    now,
    seconds_from_now,
)
from celery_guard.store.statements.parts import (
    FALSE,
    HISTORY_COLUMNS,
    IS_HELD,
    IS_MINE,
    IS_QUEUED,
    IS_RUNNING,
    IS_THIS,
    IS_WAITING,
    LOCK_PATIENCE,
    RUN,
    checked,
    ending_columns,
    given,
    given_moment,
    of_a_newer_payload,
)

__all__ = [
    "CLAIM",
    "CLAIMED_COLUMNS",
    "HELD",
    "REQUEUE",
    "REWRITE",
    "SETTLE",
    "SETTLE_HISTORY",
    "SETTLE_ROW",
    "SNOOZE",
    "STATE_AND_TOKEN",
    "SUCCEED",
    "SUCCEED_TOGETHER",
    "VACATE",
    "claimable",
]

CLAIMED_COLUMNS = (
    RUN.attempt,
    RUN.max_attempts,
    RUN.unknown_faults,
    RUN.deadline_at,
    now().label("clock"),
    case((RUN.fingerprint == bindparam("fingerprint"), null()), else_=RUN.payload).label("payload"),
    case((RUN.fingerprint == bindparam("fingerprint"), null()), else_=RUN.options).label("options"),
    RUN.meta,
    RUN.idempotency_scope,
    RUN.idempotency_key,
    RUN.parent_id,
    RUN.root_id,
    RUN.snoozes,
)


def settle() -> Any:
    owed: Any = bindparam("owed")
    told_by = case((owed, func.coalesce(seconds_from_now("lease"), now())))
    return (
        update(task_run)
        .where(IS_HELD)
        .values(
            **ending_columns(),
            publish_at=case((bindparam("final"), told_by), else_=given("next_retry_at")),
            owed=case((bindparam("final"), owed), else_=FALSE),
            claim_token=bindparam("successor"),
            result=bindparam("result"),
        )
    )


def _history_of(source: Any) -> Any:
    return select(
        source.c.id,
        source.c.attempt,
        source.c.worker_id,
        source.c.started_at,
        now(),
        bindparam("category", type_=task_attempt.c.category.type),
        bindparam("rule", type_=task_attempt.c.rule.type),
        bindparam("error_type", type_=task_attempt.c.error_type.type),
        bindparam("error", type_=task_attempt.c.error.type),
        bindparam("traceback", type_=task_attempt.c.traceback.type),
    )


def _settle_with_history() -> Any:
    settled = settle().returning(RUN.id, RUN.attempt, RUN.worker_id, RUN.started_at).cte("settled")
    return plain_insert(task_attempt).from_select(HISTORY_COLUMNS, _history_of(settled))


def claimable() -> Any:
    """Whether this run is to be had now, as the task that it is to be run as."""
    fits = or_(given("type").is_(None), RUN.type == given("type"))
    is_in_time = and_(RUN.deadline_at > now(), RUN.attempt < RUN.max_attempts)
    return and_(IS_THIS, checked(IS_MINE, IS_QUEUED, RUN.next_retry_at.is_(None), fits, is_in_time))


def _claim() -> Any:
    return (
        update(task_run)
        .where(claimable())
        .values(
            state=constant(State.RUNNING),
            attempt=RUN.attempt + 1,
            claim_token=bindparam("token"),
            worker_id=bindparam("worker_id"),
            started_at=now(),
            updated_at=now(),
            publish_at=None,
            publishes=0,
        )
        .returning(*CLAIMED_COLUMNS)
    )


#: Take a queued run for one attempt.
CLAIM = Statement(_claim, every_run=True)

#: Read the attempt that a token holds.
HELD = Statement(lambda: select(*CLAIMED_COLUMNS).where(IS_HELD))

_SUCCESS: dict[str, Any] = {
    "state": constant(State.SUCCEEDED),
    "terminal_reason": constant("succeeded"),
    "finished_at": now(),
    "updated_at": now(),
}

#: The body returned in time.
SUCCEED = Statement(
    lambda: (
        update(task_run)
        .where(IS_HELD)
        .values(
            **_SUCCESS,
            result=bindparam("result"),
            owed=bindparam("owed"),
            publish_at=case((bindparam("owed"), func.coalesce(seconds_from_now("lease"), now()))),
            claim_token=bindparam("successor"),
        )
    ),
    every_run=True,
)


#: How long several successes wait for a row that another transaction holds, in seconds: it must not hold up the others.
_BRIEFLY = 0.05


def _succeed_together() -> Any:
    names = ("id", "token", "result")
    given_arrays = (bindparam(f"{name}s", type_=ARRAY(Text)) for name in names)
    each = func.unnest(*given_arrays).table_valued(*(column(name, Text) for name in names)).render_derived()
    return (
        update(task_run)
        .where(RUN.id == each.c.id, checked(RUN.claim_token == each.c.token, IS_RUNNING))
        .values(**_SUCCESS, result=each.c.result)
        .returning(RUN.claim_token)
    )


#: The bodies of several attempts returned in time, and nobody but their rows waits to hear of it.
SUCCEED_TOGETHER = Statement(_succeed_together, every_run=True, lock_patience=_BRIEFLY)

#: End the attempt in any other way and write its history, in one statement.
SETTLE = Statement(_settle_with_history, lock_patience=LOCK_PATIENCE)

#: The same for SQLite, which has no INSERT behind an UPDATE: two statements in one transaction.
SETTLE_ROW = Statement(settle)

SETTLE_HISTORY = Statement(
    lambda: plain_insert(task_attempt).from_select(HISTORY_COLUMNS, _history_of(task_run).where(IS_THIS))
)

#: Read who ended an attempt, and how.
STATE_AND_TOKEN = Statement(lambda: select(RUN.state, RUN.claim_token).where(IS_THIS))


def _put_off(**values: Any) -> Any:
    return update(task_run).where(IS_HELD).values(state=constant(State.RETRYING), updated_at=now(), **values)


#: Put off an attempt: it does not count.
SNOOZE = Statement(
    lambda: _put_off(
        attempt=RUN.attempt - 1,
        snoozes=RUN.snoozes + 1,
        next_retry_at=given_moment("at"),
        publish_at=given_moment("at"),
    )
)

#: Leave the row of a held run empty: it waits, without a due time, for a task under its id.
VACATE = Statement(lambda: _put_off(next_retry_at=RUN.deadline_at, publish_at=None, publishes=0, claim_token=None))

#: Give the run other arguments or options for its next attempt. A key goes on to know those of the submission.
REWRITE = Statement(
    lambda: (
        update(task_run)
        .where(IS_HELD)
        .values(
            payload=bindparam("payload"),
            options=bindparam("options"),
            queue=func.coalesce(given("queue"), RUN.queue),
            fingerprint=of_a_newer_payload(),
        )
    )
)

#: Make a waiting run claimable at once, without a message.
REQUEUE = Statement(
    lambda: (
        update(task_run)
        .where(IS_THIS, checked(IS_WAITING))
        .values(state=constant(State.QUEUED), permit=None, next_retry_at=None, publish_at=None, updated_at=now())
    )
)
