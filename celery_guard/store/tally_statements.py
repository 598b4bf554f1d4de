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


def _measured() -> Any:
    """One row per run that ended in a slice of time; the first attempt's start is in its history, or in the row."""
    first = task_attempt.alias("first")
    started = func.coalesce(first.c.started_at, RUN.started_at, type_=Moment())
    allowed = func.nullif(seconds_between(RUN.deadline_at, RUN.created_at), literal_column("0"), type_=Float())
    ended = RUN.state.in_([constant(state) for state in sorted(TERMINAL)])
    return (
        select(
            RUN.type,
            RUN.state,
            RUN.terminal_reason,
            cast(RUN.attempt, Float).label(Measure.ATTEMPTS.value),
            seconds_between(started, RUN.created_at).label(Measure.START_DELAY.value),
            seconds_between(RUN.finished_at, started).label(Measure.DURATION.value),
            (seconds_between(RUN.finished_at, RUN.created_at) / allowed).label(Measure.DEADLINE_USED.value),
        )
        .select_from(task_run.outerjoin(first, and_(first.c.run_id == RUN.id, first.c.attempt == literal_column("1"))))
        .where(IS_MINE, RUN.finished_at.is_not(None), ended, _between(RUN.finished_at))
        .offset(literal_column("0"))  # a fence: each measure is computed once, not once per bucket
        .subquery("measured")
    )


def _bucket(value: Any, bounds: tuple[float, ...]) -> Any:
    """The number of the first bucket that a value fits into; NULL for no value."""
    known: Any = (
        (value <= literal_column(repr(bound)), literal_column(str(place))) for place, bound in enumerate(bounds)
    )
    return case((value.is_(None), None), *known, else_=literal_column(str(len(bounds))))


def _ended() -> Any:
    run = _measured()
    buckets = [_bucket(run.c[measure.value], bounds).label(f"{measure}_bucket") for measure, bounds in BOUNDS.items()]
    groups = [run.c.type, run.c.state, run.c.terminal_reason, *buckets]
    sums = [func.sum(run.c[measure.value]) for measure in BOUNDS]
    return select(*groups, func.count(), *sums).group_by(*groups)


#: Count what ended in a slice of time, by type, state, reason and the bucket of each measure.
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

#: Read since when the row waits that has waited longest for its message.
DUE_SINCE = Statement(
    lambda: (
        select(RUN.publish_at)
        .where(IS_MINE, RUN.publish_at.is_not(None), RUN.publish_at <= now_for_scans())
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
