"""Permits: which runs of a group with a concurrency limit may run, and which wait."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, bindparam, case, func, or_, select, update

from celery_guard.core.states import Permit, State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_run
from celery_guard.store.sql import constant, now, seconds_from_now
from celery_guard.store.statements.attempt import CLAIMED_COLUMNS, claimable
from celery_guard.store.statements.dispatch import DUE_COLUMNS
from celery_guard.store.statements.parts import IS_THIS, RUN, given

__all__ = ["CLAIM_WITH_PERMIT", "GRANT", "GROUPS_THAT_WAIT", "LOCK_GROUP"]


def _has(table: Any, permit: Permit) -> Any:
    at_hand = table.c.state.in_([constant(State.QUEUED), constant(State.RUNNING)])
    return and_(table.c.namespace == bindparam("namespace"), table.c.permit == constant(permit), at_hand)


def _holds(table: Any) -> Any:
    """A run that is running, or whose message with the permit was sent a moment ago."""
    on_its_way = table.c.updated_at > seconds_from_now("kept")
    return and_(_has(table, Permit.GRANTED), or_(table.c.state == constant(State.RUNNING), on_its_way))


def _waits(table: Any) -> Any:
    return and_(_has(table, Permit.WANTED), table.c.deadline_at > now())


def _group_of_this() -> Any:
    this = task_run.alias("this")
    return select(this.c.concurrency_group).where(this.c.id == bindparam("id")).scalar_subquery()


def _lock_group() -> Any:
    group = func.coalesce(RUN.concurrency_group, given("concurrency_group"))
    name = func.concat("celery_guard/", RUN.namespace, "/", group)
    return select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))).where(IS_THIS)


def _claim_with_permit() -> Any:
    others, group = task_run.alias("others"), func.coalesce(_group_of_this(), given("concurrency_group"))
    holders = select((func.count() < bindparam("limit")).label("fit")).where(
        _holds(others), others.c.concurrency_group == group, others.c.id != bindparam("id")
    )
    room: Any = holders.subquery("room").c.fit
    return (
        update(task_run)
        .where(claimable())
        .values(
            concurrency_group=func.coalesce(RUN.concurrency_group, given("concurrency_group")),
            permit=case((room, constant(Permit.GRANTED)), else_=constant(Permit.WANTED)),
            state=case((room, constant(State.RUNNING)), else_=RUN.state),
            attempt=case((room, RUN.attempt + 1), else_=RUN.attempt),
            claim_token=case((room, bindparam("token")), else_=RUN.claim_token),
            worker_id=case((room, bindparam("worker_id")), else_=RUN.worker_id),
            started_at=case((room, now()), else_=RUN.started_at),
            next_retry_at=case((~room, RUN.deadline_at)),
            updated_at=now(),
            publish_at=None,
            publishes=0,
        )
        .returning(*CLAIMED_COLUMNS, RUN.permit)
    )


def _grant() -> Any:
    holder, waiter, group = task_run.alias("holder"), task_run.alias("waiter"), _group_of_this()
    held = select(func.count()).where(_holds(holder), holder.c.concurrency_group == group).scalar_subquery()
    limit: Any = bindparam("limit")
    longest = (
        select(waiter.c.id)
        .where(_waits(waiter), waiter.c.concurrency_group == group)
        .order_by(waiter.c.created_at)
        .limit(case((held < limit, limit - held), else_=0))
        .with_for_update(skip_locked=True)
        .cte("longest")
    )
    return (
        update(task_run)
        .where(RUN.id.in_(select(longest.c.id)))
        .values(
            permit=constant(Permit.GRANTED),
            next_retry_at=None,
            publish_at=func.coalesce(seconds_from_now("lease"), now()),
            publishes=case((seconds_from_now("lease").is_(None), 0), else_=1),
            updated_at=now(),
        )
        .returning(*DUE_COLUMNS)
    )


def _groups_that_wait() -> Any:
    """Walk the index from one group to the next, so that it costs a look per group, however many runs wait."""
    first, next_, holder, oldest = (task_run.alias(name) for name in ("first", "next", "holder", "oldest"))
    groups = (
        select(func.min(first.c.concurrency_group).label("name")).where(_waits(first)).cte("groups", recursive=True)
    )
    following = select(func.min(next_.c.concurrency_group)).where(
        _waits(next_), next_.c.concurrency_group > groups.c.name
    )
    groups = groups.union_all(select(following.scalar_subquery()).where(groups.c.name.is_not(None)))
    name = groups.c.name
    held = select(func.count()).where(_holds(holder), holder.c.concurrency_group == name).scalar_subquery()
    waits = and_(_waits(oldest), oldest.c.concurrency_group == name)
    run_id = select(oldest.c.id).where(waits).order_by(oldest.c.created_at).limit(1).scalar_subquery()
    found = select(run_id.label("run_id"), held.label("held")).where(name.is_not(None)).subquery("found")
    return select(RUN.id, RUN.type, found.c.held).where(RUN.id == found.c.run_id)


#: Let nobody else take or grant a permit of this run's group until the transaction ends. PostgreSQL only: it is sent in
#: front of the next two, each of which must see what those before it have done.
LOCK_GROUP = Statement(_lock_group)

#: Take a queued run for one attempt if its group has room, else let it wait.
CLAIM_WITH_PERMIT = Statement(_claim_with_permit)

#: Give what room there is in the group of a run to those that wait longest.
GRANT = Statement(_grant)

#: Read one run of each group in which runs wait, and how many hold a permit there.
GROUPS_THAT_WAIT = Statement(_groups_that_wait)
