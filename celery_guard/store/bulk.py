"""Many new rows in one statement: they travel as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, Float, Text, and_, bindparam, cast, column, func, literal_column, or_, select, type_coerce
from sqlalchemy.dialects import postgresql

from celery_guard.core.states import State
from celery_guard.store.database import Statement, parse_moment
from celery_guard.store.effects import Executes
from celery_guard.store.models import task_run
from celery_guard.store.records import NewRun, Submitted
from celery_guard.store.sql import Moment, constant, earlier_of, later, now, sortable_text

__all__ = ["submit_many"]

RUN = task_run.c

#: What is taken from each row as it is.
_GIVEN = (
    "id namespace type queue payload options max_attempts idempotency_scope idempotency_key fingerprint parent_id"
    " root_id redrive_of same_as meta concurrency_group"
).split()
_MOMENTS = ("deadline_at", "delay_until")
_SECONDS = ("deadline_after", "delay_for", "lease")


def submit_many(database: Executes, runs: Sequence[NewRun]) -> dict[str, Submitted]:
    """Write rows, in the order of their keys, so that two callers can't block each other; return those written, by id.

    They count as published once their submitter says so: else those of a batch under way would look like lost messages.
    A row whose id or key is taken, or whose deadline has passed, is left out.
    """
    ordered = sorted(runs, key=lambda run: (run.idempotency_scope or "", run.idempotency_key or ""))
    by_id = {run.id: run for run in runs}
    done = database.execute(_SUBMIT_MANY, rows=json.dumps([_document(run) for run in ordered]))
    return {
        id_: Submitted(
            id_,
            True,
            parse_moment(deadline_at),
            by_id[id_].fingerprint,
            by_id[id_].type,
            State.QUEUED,
            parse_moment(next_retry_at),
        )
        for id_, deadline_at, next_retry_at in done.rows
    }


def _document(run: NewRun) -> dict[str, Any]:
    return {name: sortable_text(value) if name in _MOMENTS and value else value for name, value in vars(run).items()}


def _postgresql() -> Any:
    columns = [column(name, RUN[name].type) for name in _GIVEN]
    columns += [column(name, Moment()) for name in _MOMENTS] + [column(name, Float()) for name in _SECONDS]
    rows = func.json_to_recordset(cast(bindparam("rows"), JSON)).table_valued(*columns).render_derived(with_types=True)
    return _insert(lambda name, type_: rows.c[name])


def _sqlite() -> Any:
    rows = func.json_each(bindparam("rows", type_=Text())).table_valued("value")
    return _insert(lambda name, type_: type_coerce(func.json_extract(rows.c.value, f"$.{name}"), type_))


def _insert(value: Any) -> Any:
    def after(name: str) -> Any:
        return later(value(name, Float()))

    starts_at = func.coalesce(value("delay_until", Moment()), after("delay_for"))
    deadline = earlier_of(value("deadline_at", Moment()), after("deadline_after"))
    columns = {
        **{name: value(name, RUN[name].type) for name in _GIVEN},
        "state": constant(State.QUEUED),
        "deadline_at": deadline,
        "next_retry_at": starts_at,
        "publish_at": func.coalesce(starts_at, after("lease")),
        "publishes": literal_column("0"),
        "created_at": now(),
        "updated_at": now(),
    }
    in_time = and_(deadline > now(), or_(starts_at.is_(None), starts_at < deadline))
    chosen = select(*columns.values()).where(in_time)
    statement = postgresql.insert(task_run).from_select(list(columns), chosen, include_defaults=False)
    return statement.on_conflict_do_nothing().returning(RUN.id, RUN.deadline_at, RUN.next_retry_at)


#: Write many rows at once.
_SUBMIT_MANY = Statement(_postgresql, sqlite=_sqlite)
