"""The statements behind reports: what they read is named at the verbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Float, and_, bindparam, case, func, null, or_, select, union_all
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement

from celery_guard.core.states import ENDINGS, LIVE, TERMINAL, Reason, State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_run, task_worker
from celery_guard.store.sql import Moment, among, constant, now, now_for_scans
from celery_guard.store.statements.parts import IS_LIVE, IS_MINE, SNAPSHOT

#: How much of the way to its deadline a run may use up before its ending counts as tight.
TIGHT = 0.9

RUN = task_run.c
WORKER = task_worker.c


@dataclass(frozen=True)
class RunFilter:
    """Which runs are meant; what is not given does not matter.

    Args:
        since: ended since then, or submitted since then and still live: a moment, or how long ago.
        meta: entries of the correlation data, as text.
    """

    states: tuple[State, ...] = ()
    reason: Reason | None = None
    type: str | None = None
    queue: str | None = None
    since: datetime | timedelta | None = None
    key: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> frozenset[State]:
        """The states that can match."""
        given = frozenset(self.states or State)
        return given if self.reason is None else frozenset(s for s in given if self.reason in ENDINGS.get(s, ()))


@dataclass(frozen=True)
class Cursor:
    """Where a page ended."""

    at: datetime
    id: str


class seconds_between(ColumnElement[Any]):
    """How many seconds lie between two moments."""

    inherit_cache = True
    type = Float()

    def __init__(self, later: Any, earlier: Any) -> None:
        self.later = later
        self.earlier = earlier


@compiles(seconds_between, "postgresql")
def _postgresql_seconds_between(element: Any, compiler: Any, **kw: Any) -> str:
    later, earlier = (compiler.process(moment, **kw) for moment in (element.later, element.earlier))
    return f"CAST(EXTRACT(EPOCH FROM ({later} - {earlier})) AS FLOAT)"


@compiles(seconds_between, "sqlite")
def _sqlite_seconds_between(element: Any, compiler: Any, **kw: Any) -> str:
    later, earlier = (compiler.process(moment, **kw) for moment in (element.later, element.earlier))
    return f"((julianday({later}) - julianday({earlier})) * 86400.0)"


class meta_says(ColumnElement[Any]):
    """Whether the correlation data has an entry of this value, as text."""

    inherit_cache = True

    def __init__(self, number: int) -> None:
        self.entry = bindparam(f"meta_key_{number}", None, type_=RUN.id.type)
        self.value = bindparam(f"meta_value_{number}", None, type_=RUN.id.type)


@compiles(meta_says, "postgresql")
def _postgresql_meta_says(element: Any, compiler: Any, **kw: Any) -> str:
    key, value = compiler.process(element.entry, **kw), compiler.process(element.value, **kw)
    return f"(CAST(task_run.meta AS JSON) ->> CAST({key} AS TEXT)) = {value}"


@compiles(meta_says, "sqlite")
def _sqlite_meta_says(element: Any, compiler: Any, **kw: Any) -> str:
    key, value = compiler.process(element.entry, **kw), compiler.process(element.value, **kw)
    text = "CASE entry.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(entry.value AS TEXT) END"
    return f"EXISTS (SELECT 1 FROM json_each(task_run.meta) AS entry WHERE entry.key = {key} AND {text} = {value})"


_ENDED = and_(RUN.finished_at.is_not(None), RUN.state.in_([constant(state) for state in sorted(TERMINAL)]))
_COLUMNS = [null().label(name) if name == "result" else RUN[name] for name in SNAPSHOT]


def listed(wanted: RunFilter, after: Cursor | None) -> Any:
    """One branch per order that an index has; the page is the first of all of them."""
    if wanted.key is not None:
        moment = func.coalesce(RUN.finished_at, RUN.created_at, type_=Moment())
        some = RUN.state.in_([constant(state) for state in sorted(wanted.wanted)])
        return _branch(wanted, after, moment, and_(some, RUN.idempotency_key == bindparam("key")))
    branches = [
        _branch(wanted, after, RUN.finished_at, and_(RUN.state == constant(state), RUN.finished_at.is_not(None)))
        for state in sorted(wanted.wanted & TERMINAL)
    ]
    live = wanted.wanted & LIVE
    if live:
        some = RUN.state.in_([constant(state) for state in sorted(live)])
        branches.append(_branch(wanted, after, RUN.created_at, IS_LIVE if live == LIVE else and_(IS_LIVE, some)))
    if len(branches) == 1:
        return branches[0]
    page = union_all(*(select(branch.subquery()) for branch in branches)).subquery("page")
    return select(page).order_by(page.c.moment.desc(), page.c.id.desc()).limit(bindparam("limit"))


def _branch(wanted: RunFilter, after: Cursor | None, moment: Any, where: Any) -> Any:
    conditions = [IS_MINE, where]
    for name in ("type", "queue"):
        if getattr(wanted, name) is not None:
            conditions.append(RUN[name] == bindparam(name))
    if wanted.reason is not None:
        conditions.append(RUN.terminal_reason == bindparam("reason"))
    conditions += [meta_says(number) for number in range(len(wanted.meta))]
    if wanted.since is not None:
        conditions.append(_since(moment))
    if after is not None:
        at = bindparam("after_at", type_=Moment())
        conditions += [moment <= at, or_(moment < at, RUN.id < bindparam("after_id"))]
    found = select(*_COLUMNS, moment.label("moment")).where(*conditions)
    return found.order_by(moment.desc(), RUN.id.desc()).limit(bindparam("limit"))


def _since(moment: Any) -> Any:
    return moment >= bindparam("since_at", type_=Moment())


def _count_if(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def ended_counts(since: bool) -> Any:
    margin = seconds_between(RUN.deadline_at, RUN.finished_at)
    way = seconds_between(RUN.deadline_at, RUN.created_at)
    tight = seconds_between(RUN.finished_at, RUN.created_at) > way * TIGHT
    grouped = (RUN.state, RUN.terminal_reason, RUN.type)
    counted = select(*grouped, func.count(), func.min(margin), func.avg(margin), _count_if(tight))
    return (
        counted.where(IS_MINE, _ENDED, *([_since(RUN.finished_at)] if since else []))
        .group_by(*grouped)
        .order_by(*grouped)
    )


#: Read the ids of runs that others were made from.
REDRIVEN = Statement(
    lambda: select(RUN.redrive_of).where(IS_MINE, RUN.redrive_of.is_not(None)).limit(bindparam("limit"))
)

#: Read what only people want to know of one run.
LIFE = Statement(
    lambda: select(RUN.worker_id, RUN.updated_at, RUN.publish_at, RUN.publishes, now().label("clock")).where(
        RUN.id == bindparam("id"), IS_MINE
    )
)

#: Read where workers ran.
PLACES = Statement(lambda: select(WORKER.id, WORKER.host, WORKER.pid).where(among(WORKER.id, "ids")))

#: Count live runs by state and task.
LIVE_COUNTS = Statement(
    lambda: (
        select(
            RUN.state,
            RUN.type,
            func.count(),
            func.min(RUN.created_at),
            func.min(RUN.deadline_at),
            _count_if(RUN.deadline_at <= now_for_scans()),
        )
        .where(IS_MINE, IS_LIVE)
        .group_by(RUN.state, RUN.type)
        .order_by(RUN.state, RUN.type)
    )
)

#: Count what ended badly by task, and how much of it was unknown.
UNKNOWN = Statement(
    lambda: (
        select(RUN.type, _count_if(RUN.error_category == constant("unknown")), func.count())
        .where(
            IS_MINE,
            RUN.finished_at.is_not(None),
            RUN.state.in_([constant(State.DEAD), constant(State.FAILED)]),
            _since(RUN.finished_at),
        )
        .group_by(RUN.type)
    )
)

#: Read the run that has waited longest for a worker.
OLDEST = Statement(
    lambda: (
        select(RUN.id, RUN.type, RUN.queue, RUN.created_at, RUN.deadline_at)
        .where(IS_MINE, IS_LIVE, RUN.state == constant(State.QUEUED), RUN.next_retry_at.is_(None))
        .order_by(RUN.created_at, RUN.id)
        .limit(1)
    )
)

_WORKER_COLUMNS = (
    WORKER.id,
    WORKER.host,
    WORKER.pid,
    WORKER.started_at,
    WORKER.beat,
    WORKER.beat_at,
    WORKER.reserved,
    WORKER.stopped_at,
    now().label("clock"),
)

#: Read the workers that have not stopped.
ALIVE = Statement(
    lambda: (
        select(*_WORKER_COLUMNS)
        .where(WORKER.namespace == bindparam("namespace"), WORKER.stopped_at.is_(None))
        .order_by(WORKER.started_at, WORKER.id)
    )
)

#: Read the workers that stopped last.
STOPPED = Statement(
    lambda: (
        select(*_WORKER_COLUMNS)
        .where(WORKER.namespace == bindparam("namespace"), WORKER.stopped_at.is_not(None))
        .order_by(WORKER.stopped_at.desc(), WORKER.id)
        .limit(bindparam("limit"))
    )
)

#: Count what workers run.
RUNNING = Statement(
    lambda: (
        select(RUN.worker_id, func.count(), func.min(RUN.started_at))
        .where(RUN.state == constant(State.RUNNING), among(RUN.worker_id, "ids"))
        .group_by(RUN.worker_id)
    )
)

#: Read the clock.
CLOCK = Statement(lambda: select(now()))

#: Read the version of the server.
VERSION = Statement(
    lambda: select(func.current_setting("server_version")), sqlite=lambda: select(func.sqlite_version())
)
