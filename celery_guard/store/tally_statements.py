"""The statements behind metrics: each reads a slice of time through an index, or live rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, bindparam, case, cast, func, literal_column, or_, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import BigInteger, Float

from celery_guard.core.histogram import BOUNDS, Measure
from celery_guard.core.states import TERMINAL
from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt, task_count, task_run, task_tally
from celery_guard.store.report_statements import seconds_between
from celery_guard.store.sql import Moment, constant, now, now_for_scans
from celery_guard.store.statements.parts import IS_LIVE, IS_MINE, IS_QUEUED, RUN

__all__ = ["COUNT", "COUNTED", "DUE_SINCE", "ENDED", "FAULTS", "LIVE", "LOAD", "SAVE", "START"]

COUNTS = task_count.c
FAULT = task_attempt.c
TALLY = task_tally.c


def _between(moment: Any) -> Any:
    since, until = bindparam("since_at", type_=Moment()), bindparam("until_at", type_=Moment())
    return and_(moment > since, moment <= until)


def _started() -> Any:
    """One row per run that ended in a slice of time; where it was tried again, its history knows the first start."""
    first = task_attempt.alias("first")
    found = select(first.c.started_at).where(first.c.run_id == RUN.id, first.c.attempt == literal_column("1"))
    in_history = func.coalesce(found.scalar_subquery(), RUN.started_at, type_=Moment())
    was_tried_again = RUN.attempt > literal_column("1")
    started = case((was_tried_again, in_history), else_=RUN.started_at).label("started_at")
    kept = (RUN.type, RUN.state, RUN.terminal_reason, RUN.attempt, RUN.created_at, RUN.deadline_at, RUN.finished_at)
    ended = RUN.state.in_([constant(state) for state in sorted(TERMINAL)])
    rows = select(*kept, started).where(IS_MINE, RUN.finished_at.is_not(None), ended, _between(RUN.finished_at))
    return _computed_once(rows, "ended")


def _measured() -> Any:
    run = _started().c
    allowed = func.nullif(seconds_between(run.deadline_at, run.created_at), literal_column("0"), type_=Float())
    measures = {
        Measure.ATTEMPTS: cast(run.attempt, Float),
        Measure.START_DELAY: seconds_between(run.started_at, run.created_at),
        Measure.DURATION: seconds_between(run.finished_at, run.started_at),
        Measure.DEADLINE_USED: seconds_between(run.finished_at, run.created_at) / allowed,
    }
    values = (value.label(measure.value) for measure, value in measures.items())
    return _computed_once(select(run.type, run.state, run.terminal_reason, *values), "measured")


def _computed_once(rows: Any, name: str) -> Any:
    """Fence a subquery: else PostgreSQL computes what it selects anew wherever that is used."""
    return rows.offset(literal_column("0")).subquery(name)


def _ended() -> Any:
    run = _measured().c
    groups = (run.type, run.state, run.terminal_reason)
    counts = [
        func.count().filter(run[measure.value] <= literal_column(repr(bound)))
        for measure, bounds in BOUNDS.items()
        for bound in bounds
    ]
    wholes = [whole(run[measure.value]) for measure in BOUNDS for whole in (func.count, func.sum)]
    return select(*groups, func.count(), *wholes, *counts).group_by(*groups)


#: Count what ended in a slice of time by type, state and reason; of each measure its values, their sum, and how many
#: are at most as large as each bound.
ENDED = Statement(_ended)

#: Count the faults of a slice of time.
FAULTS = Statement(
    lambda: (
        select(RUN.type, FAULT.category, FAULT.rule, func.count())
        .select_from(task_attempt.join(task_run, RUN.id == FAULT.run_id))
        .where(IS_MINE, FAULT.category.is_not(None), _between(FAULT.finished_at))
        .group_by(RUN.type, FAULT.category, FAULT.rule)
    )
)

#: Count live runs.
LIVE = Statement(
    lambda: (
        select(
            RUN.type,
            RUN.state,
            RUN.queue,
            and_(IS_QUEUED, RUN.next_retry_at.is_(None)).label("waits_for_a_worker"),
            func.count(),
            func.min(RUN.started_at, type_=Moment()),
            func.min(RUN.updated_at, type_=Moment()),
            func.min(RUN.deadline_at, type_=Moment()),
            func.sum(case((RUN.deadline_at <= now_for_scans(), 1), else_=0)),
        )
        .where(IS_MINE, IS_LIVE)
        .group_by(RUN.type, RUN.state, RUN.queue, literal_column("waits_for_a_worker"))
    )
)

#: Read since when the row waits that has waited longest for its message. A planner that knows the moment knows how few
#: rows lie before it; else, on a large table, PostgreSQL compiles a plan for many.
DUE_SINCE = Statement(
    lambda: (
        select(RUN.publish_at)
        .where(IS_MINE, RUN.publish_at.is_not(None), RUN.publish_at <= bindparam("until_at", type_=Moment()))
        .where(or_(RUN.owed, RUN.next_retry_at.is_not(None), RUN.publishes == literal_column("0")))
        .order_by(RUN.publish_at)
        .limit(literal_column("1"))
    )
)

#: Read the clock, and what was counted so far.
LOAD = Statement(
    lambda: select(now(), TALLY.counted_to, TALLY.totals).select_from(
        select(literal_column("1")).subquery("one").outerjoin(task_tally, _is_mine(TALLY))
    )
)

#: Write the first totals of a namespace, unless somebody has.
START = Statement(
    lambda: (
        postgresql.insert(task_tally)
        .values(
            namespace=bindparam("namespace"),
            counted_to=bindparam("until_at", type_=Moment()),
            totals=bindparam("totals"),
        )
        .on_conflict_do_nothing()
        .returning(TALLY.namespace)
    )
)

#: Write totals that go further, unless somebody has.
SAVE = Statement(
    lambda: (
        update(task_tally)
        .where(_is_mine(TALLY), TALLY.counted_to == bindparam("since_at", type_=Moment()))
        .values(counted_to=bindparam("until_at", type_=Moment()), totals=bindparam("totals"))
    )
)


def _count() -> Any:
    statement = postgresql.insert(task_count).values(
        namespace=bindparam("namespace"),
        event=bindparam("event"),
        type=bindparam("type"),
        times=cast(bindparam("times"), BigInteger),
    )
    return statement.on_conflict_do_update(
        index_elements=[COUNTS.namespace, COUNTS.event, COUNTS.type],
        set_={"times": COUNTS.times + statement.excluded.times},
    )


def _is_mine(columns: Any) -> Any:
    return columns.namespace == bindparam("namespace")


#: Count something that leaves no row.
COUNT = Statement(_count)

#: Read what was counted so.
COUNTED = Statement(lambda: select(COUNTS.event, COUNTS.type, COUNTS.times).where(_is_mine(COUNTS)))
