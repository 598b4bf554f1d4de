"""A run comes to be: new rows, their ids and keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    and_,
    bindparam,
    case,
    cast,
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
    ENDED_COLUMNS,
    GIVEN,
    IS_MINE,
    IS_QUEUED,
    IS_THIS,
    RUN,
    TRUE,
    checked,
    deadline,
    given,
    given_moment,
    insert_or_nothing,
    of_a_newer_payload,
)

__all__ = ["CLOCK", "FREE_KEY", "MOVE_IN", "PUBLISHED", "SUBMIT", "SUBMIT_FINISHED", "SUBMIT_FOLLOWER", "TAKEN_BY"]


def _submit() -> Any:
    starts_at = func.coalesce(given_moment("delay_until"), seconds_from_now("delay_for"))
    unpublished = ~cast(bindparam("published"), Boolean)
    columns = {
        **{name: given(name) for name in GIVEN},
        "state": constant(State.QUEUED),
        "deadline_at": deadline(),
        "next_retry_at": starts_at,
        "publish_at": func.coalesce(starts_at, seconds_from_now("lease")),
        "publishes": case((or_(starts_at.is_not(None), seconds_from_now("lease").is_(None), unpublished), 0), else_=1),
        "created_at": now(),
        "updated_at": now(),
    }
    in_time = and_(deadline() > now(), or_(starts_at.is_(None), starts_at < deadline()))
    return insert_or_nothing(columns, in_time).returning(RUN.deadline_at, RUN.next_retry_at)


def _submit_finished() -> Any:
    columns = {
        **{name: given(name) for name in GIVEN},
        "state": given("state"),
        "terminal_reason": given("terminal_reason"),
        "deadline_at": deadline(),
        "created_at": now(),
        "updated_at": now(),
        "finished_at": now(),
        "publish_at": now(),
        "owed": TRUE,
        "last_error": bindparam("summary", type_=RUN.last_error.type),
        "error_category": bindparam("category", type_=RUN.error_category.type),
        "error_type": given("error_type"),
    }
    return insert_or_nothing(columns).returning(*ENDED_COLUMNS)


def _submit_follower() -> Any:
    columns = {
        **{name: given(name) for name in GIVEN},
        "state": constant(State.QUEUED),
        "deadline_at": deadline(),
        "next_retry_at": deadline(),
        "created_at": now(),
        "updated_at": now(),
    }
    return insert_or_nothing(columns)


#: What a run that moves into a row brings along; the rest stays.
_MOVED = ("type", "queue", "payload", "options", "max_attempts", "concurrency_group")

#: Write a new row, unless its id or key is taken or its deadline has passed.
SUBMIT = Statement(_submit, every_run=True)

#: Write a row that is over before it began.
SUBMIT_FINISHED = Statement(_submit_finished)

#: Write a row that waits for the ending of another.
SUBMIT_FOLLOWER = Statement(_submit_follower)

#: Read the row that has this id, or else this key.
TAKEN_BY = Statement(
    lambda: (
        select(
            RUN.id,
            RUN.deadline_at,
            RUN.fingerprint,
            RUN.type,
            RUN.state,
            and_(RUN.finished_at.is_not(None), RUN.finished_at <= seconds_from_now("ago")).label("outlived"),
        )
        .where(
            or_(
                IS_THIS,
                and_(
                    IS_MINE,
                    RUN.idempotency_scope == bindparam("idempotency_scope"),
                    RUN.idempotency_key == bindparam("idempotency_key"),
                ),
            )
        )
        .order_by(case((IS_THIS, 0), else_=1))
        .limit(1)
    )
)

#: Take its key from a run that ended before a moment.
FREE_KEY = Statement(
    lambda: (
        update(task_run)
        .where(IS_THIS, checked(RUN.idempotency_key.is_not(None), RUN.finished_at <= seconds_from_now("ago")))
        .values(idempotency_key=None)
    )
)

#: Write a new run into a row that was left empty.
MOVE_IN = Statement(
    lambda: (
        update(task_run)
        .where(
            IS_THIS,
            checked(
                RUN.state == constant(State.RETRYING),
                RUN.publish_at.is_(None),
                RUN.claim_token.is_(None),
                RUN.deadline_at > now(),
            ),
        )
        .values(
            **{name: given(name) for name in _MOVED},
            fingerprint=of_a_newer_payload(),
            state=constant(State.QUEUED),
            permit=None,
            attempt=0,
            unknown_faults=0,
            next_retry_at=None,
            publish_at=seconds_from_now("lease"),
            publishes=1,
            updated_at=now(),
        )
        .returning(RUN.deadline_at)
    )
)

#: Rows that were due are published by their submitter.
PUBLISHED = Statement(
    lambda: (
        update(task_run)
        .where(
            among(RUN.id, "ids"),
            checked(IS_QUEUED, RUN.publishes == 0, RUN.next_retry_at.is_(None), RUN.publish_at.is_not(None)),
        )
        .values(publish_at=seconds_from_now("lease"), publishes=1)
    )
)

#: Read the clock.
CLOCK = Statement(lambda: select(now()))
