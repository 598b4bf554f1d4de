"""What statements are made of: conditions, columns, and the pieces that several of them share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Integer,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql

from celery_guard.core.states import State
from celery_guard.store.models import task_run
from celery_guard.store.sql import (
    constant,
    earlier_of,
    now,
    now_for_scans,
    seconds_from_now,
)

__all__ = [
    "ENDED_COLUMNS",
    "FALSE",
    "GIVEN",
    "HISTORY_COLUMNS",
    "IS_DUE",
    "IS_HELD",
    "IS_LIVE",
    "IS_MINE",
    "IS_PUBLISHED",
    "IS_QUEUED",
    "IS_RUNNING",
    "IS_THIS",
    "IS_WAITING",
    "LOCK_PATIENCE",
    "PATIENCE",
    "RUN",
    "RUNNING_COLUMNS",
    "SNAPSHOT",
    "TRUE",
    "checked",
    "deadline",
    "ending_columns",
    "first",
    "given",
    "given_moment",
    "insert_or_nothing",
    "of_a_newer_payload",
]

RUN = task_run.c

IS_QUEUED = RUN.state == constant(State.QUEUED)

#: How long a statement of the guard thread waits for a row, in seconds: one that a user's transaction holds must not
#: hold up all the others.
LOCK_PATIENCE = 1.0

IS_RUNNING = RUN.state == constant(State.RUNNING)

#: Said of its end and not of its state, else whoever asks for running rows could be given the index of all live ones.
IS_LIVE = RUN.finished_at.is_(None)

IS_WAITING = RUN.state.in_([constant(State.QUEUED), constant(State.RETRYING)])

FALSE: Any = literal_column("false")

TRUE: Any = literal_column("true")

IS_MINE = RUN.namespace == bindparam("namespace")

IS_THIS = RUN.id == bindparam("id")


def checked(*conditions: Any) -> Any:
    """Ask something of rows that their ids, or the index meant for them, find, so that no other index is tried.

    A partial index of live rows looks all but empty to statistics that were taken in a quiet hour. In a burst after
    it, each claim would read all that waits.
    """
    return case((and_(*conditions), TRUE), else_=FALSE)


IS_HELD = and_(IS_THIS, checked(RUN.claim_token == bindparam("token"), IS_RUNNING))

IS_DUE = and_(IS_MINE, RUN.publish_at <= now_for_scans())

#: A published row that nobody claimed, or whose ending nobody told: its message may be lost.
IS_PUBLISHED = and_(
    RUN.publish_at.is_not(None),
    RUN.publishes > 0,
    or_(and_(IS_QUEUED, RUN.next_retry_at.is_(None)), RUN.owed),
)

PATIENCE = seconds_from_now("lease", literal_column("(1 << CASE WHEN publishes < 6 THEN publishes ELSE 6 END)"))

#: What a snapshot shows, in the order of its columns.
SNAPSHOT = (
    "id type queue state terminal_reason attempt max_attempts unknown_faults deadline_at next_retry_at created_at"
    " started_at finished_at last_error error_category error_type idempotency_key parent_id root_id redrive_of same_as"
    " snoozes owed meta concurrency_group permit result"
).split()

#: What a submission gives as it is.
GIVEN = (
    "id namespace type queue payload options max_attempts idempotency_scope idempotency_key fingerprint parent_id"
    " root_id redrive_of same_as meta concurrency_group"
).split()

RUNNING_COLUMNS = (
    RUN.id,
    RUN.claim_token,
    RUN.attempt,
    RUN.max_attempts,
    RUN.unknown_faults,
    RUN.deadline_at,
    RUN.type,
    now().label("clock"),
    RUN.meta,
)

ENDED_COLUMNS = (*RUNNING_COLUMNS, RUN.state, RUN.terminal_reason)


def given(name: str) -> Any:
    """A bound value for a column; some drivers must be told the type of what is not text."""
    bound = bindparam(name, type_=RUN[name].type)
    return cast(bound, Integer) if isinstance(RUN[name].type, Integer) else bound


def given_moment(name: str) -> Any:
    return bindparam(name, type_=RUN.deadline_at.type)


def insert_or_nothing(columns: dict[str, Any], where: Any = None) -> Any:
    chosen = select(*columns.values())
    chosen = chosen.where(TRUE if where is None else where)
    statement = postgresql.insert(task_run).from_select(list(columns), chosen, include_defaults=False)
    return statement.on_conflict_do_nothing()


def deadline() -> Any:
    return earlier_of(given("deadline_at"), seconds_from_now("deadline_after"))


def ending_columns() -> dict[str, Any]:
    """Columns that every settlement but a success writes."""
    final: Any = bindparam("final")
    return {
        "state": bindparam("state"),
        "terminal_reason": bindparam("terminal_reason"),
        "next_retry_at": given("next_retry_at"),
        "publishes": 0,
        "updated_at": now(),
        "finished_at": case((final, now())),
        "unknown_faults": RUN.unknown_faults + bindparam("unknown"),
        "last_error": func.coalesce(bindparam("summary"), RUN.last_error),
        "error_category": func.coalesce(bindparam("category"), RUN.error_category),
        "error_type": func.coalesce(bindparam("error_type"), RUN.error_type),
    }


def first(where: Any, order: Any) -> Any:
    found = select(RUN.id).where(where).order_by(order).limit(bindparam("limit")).with_for_update(skip_locked=True)
    return RUN.id.in_(select(found.cte("found").c.id))


#: What is kept of an attempt that did not succeed.
HISTORY_COLUMNS = "run_id attempt worker_id started_at finished_at category rule error_type error traceback".split()


def of_a_newer_payload() -> Any:
    """The fingerprint of what an attempt brought, behind that of the submission, which a key goes on to know."""
    submitted_with = func.substr(RUN.fingerprint, 1, 42)
    both = submitted_with.concat(literal_column("'/'")).concat(func.substr(given("fingerprint"), 1, 20))
    return case((RUN.idempotency_key.is_(None), given("fingerprint")), else_=both)
