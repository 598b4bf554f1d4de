"""What users get wrong, and a type checker tells them: each mistake is one that it must see."""

from __future__ import annotations

from fastapi import Request

from celery_guard import GuardedResult, GuardedTask, RetryableError, State, compute_backoff_delay, current_run
from celery_guard.contrib.fastapi import accept, guard_router


class Mail(GuardedTask):
    abstract = True
    on_worker_lost = "ignore"  # type: ignore[assignment]
    max_attempts = "3"  # type: ignore[assignment]


def body() -> None:
    run = current_run()
    run.attempt = 2  # type: ignore[misc]
    run.timeout(at_most="5")  # type: ignore[call-overload]
    run.deadline  # type: ignore[attr-defined]  # noqa: B018
    raise RetryableError("busy", retry_after="soon")  # type: ignore[arg-type]


def submit(task: GuardedTask) -> None:
    task.apply_async(deadline="2 minutes")  # type: ignore[arg-type]
    task.apply_async(max_attempts=1.5)  # type: ignore[arg-type]
    task.apply_async(meta=["user"])  # type: ignore[arg-type]


def read(result: GuardedResult) -> None:
    result.run.state = State.DEAD  # type: ignore[misc]
    result.run.nonsense  # type: ignore[attr-defined]  # noqa: B018


async def serve(task: GuardedTask, request: Request) -> None:
    guard_router(None)  # type: ignore[call-arg]
    guard_router(None, authorize="anybody")  # type: ignore[arg-type]
    await accept(task, request=request)  # type: ignore[call-arg]


compute_backoff_delay(1, jitter="half")  # type: ignore[arg-type]
