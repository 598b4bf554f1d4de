"""What Celery's tracer has in hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, _state

from celery_guard.flow.tracer import Tracing, begin_tracing

__all__ = ["in_hand"]


@contextmanager
def in_hand(*, guarded: bool = True) -> Iterator[Tracing | None]:
    """Have a request in hand, as Celery's tracer does; give what is known of it where an attempt has begun with it."""

    def job() -> None: ...

    task: Any = Celery(set_as_current=False).task(job, name="job")
    _state.push_current_task(task)
    task.push_request(id="run-1")
    try:
        yield begin_tracing(task.request) if guarded else None
    finally:
        task.pop_request()
        _state.pop_current_task()
