"""What users write; a type checker has nothing to say against it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from fastapi import APIRouter, Request, Response

from celery_guard import (
    AttemptsExhausted,
    CurrentRun,
    DeadlineExceeded,
    EagerRun,
    GuardedResult,
    GuardedTask,
    GuardError,
    IdempotencyConflict,
    NonRetryableError,
    Reason,
    RetryableError,
    RunEnded,
    Snooze,
    State,
    TaskRun,
    cancel,
    compute_backoff_delay,
    current_run,
    explain,
    get_run,
    redrive,
    submit_many,
)
from celery_guard.contrib.fastapi import ANYBODY, accept, guard_router


class SmtpBusy(Exception):
    """Worth a repeat."""


class Mail(GuardedTask):
    """A task class with settings of its own."""

    abstract = True
    deadline = timedelta(minutes=10)
    max_attempts = 5
    backoff_base = 0.5
    on_worker_lost = "fail"
    retryable = (SmtpBusy,)
    non_retryable = (ValueError, KeyError)


app: Any = Celery("shop", task_cls=GuardedTask)


def body(order_id: int) -> str:
    run: CurrentRun = current_run()
    run.check()
    timeout: float | None = run.timeout(at_most=30)
    timeout = run.timeout(timedelta(seconds=5))
    left: timedelta = run.remaining()
    if run.is_last_attempt and left < timedelta(seconds=1):
        raise NonRetryableError("no time")
    if run.attempt > run.max_attempts:
        raise RetryableError("busy", retry_after=30)
    if left > timedelta(hours=1):
        raise Snooze(timedelta(minutes=5))
    charged: str = run.step("charge", str, order_id, deadline=5)
    print(charged, run.key_for("charge"))
    user: object = run.meta.get("user")
    return f"{run.id} {run.type} {run.idempotency_key} {run.deadline_at:%H:%M} {timeout} {user} {order_id}"


async def coroutine(order_id: int, session: object) -> str:
    run: CurrentRun = current_run()
    await run.check_async()
    charged: str = await run.step_async("charge", body, order_id, session=session, deadline=timedelta(seconds=5))
    await run.complete_in_async(session, result=charged)
    return charged


def submit(task: GuardedTask) -> GuardedResult:
    result: GuardedResult = task.apply_async(
        (42,),
        deadline=datetime.now(timezone.utc) + timedelta(minutes=2),
        max_attempts=3,
        idempotency_key="receipt-42",
        meta={"user": 7},
        countdown=5,
    )
    task.apply_async((42,), deadline=timedelta(minutes=2))
    task.apply_async((42,), deadline=120)
    task.delay(42)
    return result


def read(result: GuardedResult) -> str | None:
    run: TaskRun = result.run
    if run.state is State.DEAD and run.terminal_reason is Reason.FAILED_DUE_DEADLINE:
        return run.last_error
    for attempt in run.attempts:
        print(attempt.attempt, attempt.category, attempt.error)
    same: TaskRun = get_run(result.id, app=app)
    created: bool = result.created
    return f"{same.deadline_at} {run.next_retry_at} {created} {run.is_terminal}"


def wait(result: GuardedResult) -> Any:
    try:
        return result.get(timeout=10)
    except (DeadlineExceeded, AttemptsExhausted) as ended:
        return ended.reason
    except RunEnded as ended:
        return ended.message
    except (IdempotencyConflict, GuardError):
        return None


def look_after(task: GuardedTask, run_id: str) -> str:
    many = submit_many(task, [(1,), {"order_id": 2}], deadline=60, idempotency_keys=["one", None])
    ended: TaskRun = cancel(run_id, app=app)
    again: GuardedResult = redrive(ended.id, app=app)
    said = explain(503, task)
    return f"{len(many)} {again.run.redrive_of} {said.category} {said.rule}"


def serve() -> APIRouter:
    def same_user(request: Request, run: TaskRun) -> bool:
        return run.meta.get("user") == request.headers.get("x-user")

    return guard_router(app, authorize=same_user, result_url=lambda run: f"/files/{run.id}")


async def place(task: GuardedTask, request: Request) -> Response:
    return await accept(task, (42,), request=request, caller=ANYBODY, key_required=True, deadline=60)


def run_here(task: GuardedTask) -> bool:
    eager: EagerRun = task.apply((42,), deadline=60)
    return eager.created and eager.run.state is State.SUCCEEDED


delay: timedelta = compute_backoff_delay(3, base_seconds=1.0, cap_seconds=60.0, jitter=0.5, rng=random.Random(1))
delay = compute_backoff_delay(3, jitter="full")
