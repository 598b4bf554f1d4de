"""What users get wrong, and a type checker tells them: each mistake is one that it must see."""

from __future__ import annotations

from celery_guard import GuardedResult, GuardedTask, RetryableError, State, compute_backoff_delay, current_run


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


compute_backoff_delay(1, jitter="half")  # type: ignore[arg-type]
