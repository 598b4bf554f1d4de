"""What Celery's tracer has in hand, and what a guarded attempt knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery._state import _task_stack

if TYPE_CHECKING:
    from celery_guard.flow.context import CurrentRun

__all__ = ["Tracing", "begin_tracing", "in_hand", "tracing"]

_TRACING = "_guard_tracing"


@dataclass
class Tracing:
    """What Celery's tracer is doing with a guarded request, kept on the request while it lasts."""

    run: CurrentRun | None = None
    #: The ending that Celery is about to follow up, in Celery's words, and whether the row waits to hear that it did.
    ending: str | None = None
    owed: bool = False
    #: What Celery's soft time limit does: it raises, or calls something, or is noted because no body runs.
    hears_limit: bool = False
    on_limit: Callable[[], None] | None = None
    limit_came: bool = False


def tracing(request: Any) -> Tracing | None:
    """Return what is known of a request that a guarded attempt has begun with, else None."""
    found: Tracing | None = request.__dict__.get(_TRACING)
    return found


def begin_tracing(request: Any) -> Tracing:
    """Note that an attempt has begun: further calls of the task are plain calls."""
    found = Tracing()
    setattr(request, _TRACING, found)
    return found


def in_hand() -> Tracing | None:
    """Return the innermost attempt that this thread is in; direct calls and unguarded tasks in it change nothing."""
    for task in reversed(_task_stack.stack):
        for request in reversed(task.request_stack.stack):
            found = tracing(request)
            if found is not None:
                return found
    return None
