"""Rows as either database gives them, made into records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from celery_guard.core.decide import Claim, Finish
from celery_guard.core.faults import Category
from celery_guard.core.states import Permit, Reason, State
from celery_guard.store import statements as sql
from celery_guard.store.database import parse_moment
from celery_guard.store.records import Attempt, Claimed, Due, Ended, Running, TaskRun

__all__ = ["to_attempt", "to_claimed", "to_due", "to_ended", "to_running", "to_task_run"]


def to_claimed(run_id: str, token: str, row: Any) -> Claimed:
    (
        attempt,
        max_attempts,
        unknown,
        deadline_at,
        now,
        payload,
        options,
        meta,
        scope,
        key,
        parent,
        root,
        snoozes,
    ) = row
    return Claimed(
        claim=Claim(run_id, token, attempt, max_attempts, unknown, parse_moment(deadline_at), snoozes),
        now=parse_moment(now),
        payload=payload,
        options=options,
        meta=json.loads(meta) if meta else {},
        idempotency_scope=scope,
        idempotency_key=key,
        parent_id=parent,
        root_id=root,
    )


def to_running(row: Any) -> Running:
    id_, token, attempt, max_attempts, unknown, deadline_at, type_, now, meta = row
    claim = Claim(id_, token, attempt, max_attempts, unknown, parse_moment(deadline_at))
    return Running(claim, type_, parse_moment(now), json.loads(meta) if meta else {})


def to_ended(row: Any) -> Ended:
    *running, state, reason = row
    was = to_running(running)
    return Ended(was.claim, was.type, was.meta, Finish(State(state), Reason(reason)))


def to_due(row: Any) -> Due:
    *plain, state, owed, deadline_at = row
    typed: Sequence[Any] = (*plain, State(state), bool(owed), parse_moment(deadline_at))
    return Due(*typed)


def to_attempt(row: Any) -> Attempt:
    attempt, worker_id, started_at, finished_at, category, rule, error_type, error, traceback = row
    return Attempt(
        attempt,
        worker_id,
        parse_moment(started_at),
        parse_moment(finished_at),
        Category(category) if category else None,
        rule,
        error_type,
        error,
        traceback,
    )


def to_task_run(row: Any, attempts: tuple[Attempt, ...]) -> TaskRun:
    values = dict(zip(sql.SNAPSHOT, row, strict=True))
    for moment in ("deadline_at", "next_retry_at", "created_at", "started_at", "finished_at"):
        values[moment] = parse_moment(values[moment])
    values["state"] = State(values["state"])
    values["terminal_reason"] = Reason(values["terminal_reason"]) if values["terminal_reason"] else None
    values["error_category"] = Category(values["error_category"]) if values["error_category"] else None
    values["waits_for_permit"] = values.pop("permit") == Permit.WANTED and values["state"] is State.QUEUED
    if values["waits_for_permit"]:
        values["next_retry_at"] = None
    values["meta"] = json.loads(values["meta"]) if values["meta"] else {}
    values["owed"] = bool(values["owed"])
    return TaskRun(encoded_result=values.pop("result"), attempts=attempts, **values)
