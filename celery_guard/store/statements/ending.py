"""Ends that come from outside, what Celery is owed, and pruning."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    and_,
    bindparam,
    delete,
    or_,
    select,
    update,
)

from celery_guard.core.states import State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt, task_effect, task_run
from celery_guard.store.sql import (
    among,
    constant,
    now,
    now_for_scans,
    seconds_from_now,
    seconds_from_now_for_scans,
)
from celery_guard.store.statements.parts import (
    ENDED_COLUMNS,
    FALSE,
    IS_LIVE,
    IS_MINE,
    IS_RUNNING,
    IS_THIS,
    IS_WAITING,
    LOCK_PATIENCE,
    RUN,
    RUNNING_COLUMNS,
    TRUE,
    checked,
    ending_columns,
    first,
)

__all__ = [
    "DELETE_ATTEMPTS",
    "DELETE_EFFECTS",
    "DELETE_RUNS",
    "FINISH_EXPIRED",
    "FINISH_WAITING",
    "FOLLOW",
    "OVERDUE",
    "OWE",
    "PRUNABLE",
    "TAKE_ENDING",
    "TELL_SOON",
    "TOLD",
]


def _finish_waiting(where: Any) -> Any:
    ended = update(task_run).where(where).values(**ending_columns(), publish_at=now(), owed=TRUE)
    return ended.returning(*ENDED_COLUMNS)


def _follow() -> Any:
    first = task_run.alias("first")
    follows = and_(IS_MINE, IS_LIVE, RUN.same_as.is_not(None))
    ended = select(RUN.id).where(follows, first.c.id == RUN.same_as, first.c.finished_at.is_not(None))
    found = ended.limit(bindparam("limit")).with_for_update(skip_locked=True, of=task_run).cte("found")
    taken = ("state", "terminal_reason", "result", "last_error", "error_category", "error_type")
    return (
        update(task_run)
        .where(RUN.id.in_(select(found.c.id)), first.c.id == RUN.same_as)
        .values(
            **{name: first.c[name] for name in taken},
            finished_at=now(),
            next_retry_at=None,
            owed=TRUE,
            publish_at=now(),
            publishes=0,
            updated_at=now(),
        )
        .returning(*ENDED_COLUMNS)
    )


#: End a run that is not running.
FINISH_WAITING = Statement(lambda: _finish_waiting(and_(IS_THIS, checked(IS_WAITING))), lock_patience=LOCK_PATIENCE)

#: End waiting runs whose deadline has passed, earliest first.
FINISH_EXPIRED = Statement(
    lambda: _finish_waiting(
        and_(
            checked(IS_WAITING),
            first(and_(IS_MINE, IS_LIVE, IS_WAITING, RUN.deadline_at <= now_for_scans()), RUN.deadline_at),
        )
    )
)

#: Read running rows whose deadline passed some time ago.
OVERDUE = Statement(
    lambda: (
        select(*RUNNING_COLUMNS)
        .where(IS_MINE, IS_LIVE, checked(IS_RUNNING), RUN.deadline_at <= seconds_from_now_for_scans("ago"))
        .order_by(RUN.deadline_at)
        .limit(bindparam("limit"))
    )
)

#: Give rows the ending of the run that they are the same as.
FOLLOW = Statement(_follow)

#: Take an owed ending to tell Celery.
TAKE_ENDING = Statement(
    lambda: (
        update(task_run)
        .where(IS_THIS, RUN.owed, RUN.publishes == bindparam("ticket"))
        .values(publishes=0, publish_at=seconds_from_now("lease"))
        .returning(RUN.state, RUN.terminal_reason, RUN.result, RUN.last_error, RUN.error_type)
    )
)

_CAN_BE_TOLD = and_(RUN.finished_at.is_not(None), or_(RUN.state != constant(State.SUCCEEDED), RUN.result.is_not(None)))

#: Owe an ending of which Celery has told nothing, or something else.
OWE = Statement(
    lambda: (
        update(task_run)
        .where(IS_THIS, checked(RUN.claim_token == bindparam("token"), ~RUN.owed, _CAN_BE_TOLD))
        .values(owed=TRUE, publish_at=now(), publishes=0)
    )
)

#: Make due an ending whose teller is gone.
TELL_SOON = Statement(
    lambda: (
        update(task_run)
        .where(IS_THIS, RUN.claim_token == bindparam("token"), RUN.owed)
        .values(publish_at=now(), publishes=0)
    ),
    lock_patience=LOCK_PATIENCE,
)

#: Nothing is owed any more.
TOLD = Statement(lambda: update(task_run).where(IS_THIS, RUN.owed).values(owed=FALSE, publish_at=None))

#: Read ended rows that are no longer kept, oldest first.
PRUNABLE = Statement(
    lambda: (
        select(RUN.id)
        .where(
            IS_MINE,
            RUN.state == bindparam("state"),
            RUN.finished_at.is_not(None),
            RUN.finished_at <= seconds_from_now_for_scans("ago"),
            or_(RUN.idempotency_key.is_(None), RUN.finished_at <= seconds_from_now_for_scans("key_ago")),
        )
        .order_by(RUN.finished_at)
        .limit(bindparam("limit"))
    )
)

#: Delete rows that have ended, and what belongs to them.
DELETE_RUNS = Statement(
    lambda: delete(task_run).where(among(RUN.id, "ids"), checked(RUN.finished_at.is_not(None))),
    lock_patience=LOCK_PATIENCE,
)

DELETE_ATTEMPTS = Statement(lambda: delete(task_attempt).where(among(task_attempt.c.run_id, "ids")))

DELETE_EFFECTS = Statement(lambda: delete(task_effect).where(among(task_effect.c.run_id, "ids")))
