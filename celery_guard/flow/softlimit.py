"""Celery's soft time limit reaches the body, and nothing but the body.

The signal can arrive before the body, while the run is claimed, or after it has returned: in our own statement, or
while Celery submits the next task of a chain. So in a prefork child its handler asks what Celery's tracer has in hand,
and raises only while a body runs. Masking the signal would not do: it would be delivered to any thread that a body has
started, and Python runs its handler in the main thread all the same.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from billiard.pool import soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded

from celery_guard.flow.tracer import Tracing, in_hand

__all__ = ["answer", "calls", "let_through", "reaches_here"]

_SIGNAL: Any = getattr(signal, "SIGUSR1", None)

#: The process whose signal is answered here.
_pid = 0


def reaches_here() -> bool:
    """Whether soft limits arrive as a signal in this very thread: a prefork child."""
    if _SIGNAL is None or threading.get_ident() != threading.main_thread().ident:
        return False
    return _pid == os.getpid() or signal.getsignal(_SIGNAL) is soft_timeout_sighandler


def answer() -> None:
    """Answer the signal in this process from now on, where it comes here; for tasks of others as Celery does."""
    global _pid
    if _pid != os.getpid() and reaches_here():
        signal.signal(_SIGNAL, _handle)
        _pid = os.getpid()


def let_through(traced: Tracing, body: Callable[[], Any]) -> Any:
    """Run a body with the signal let through; one that came while the run was being claimed is raised at once."""
    traced.hears_limit = True
    try:
        if traced.limit_came:
            raise SoftTimeLimitExceeded
        return body()
    finally:
        traced.hears_limit = False


@contextmanager
def calls(stop: Callable[[], None]) -> Iterator[bool]:
    """Have the signal call something instead of raising in the middle of whatever runs, and hold it back afterwards.

    Gives whether it reaches this thread at all.
    """
    traced = in_hand()
    if traced is None or not reaches_here():
        yield False
        return
    traced.on_limit = stop
    try:
        yield True
    finally:
        traced.on_limit, traced.hears_limit = None, False


def _handle(number: int, frame: Any) -> None:
    traced = in_hand()
    if traced is None:
        raise SoftTimeLimitExceeded
    if traced.on_limit is not None:
        traced.on_limit()
    elif traced.hears_limit:
        raise SoftTimeLimitExceeded
    else:
        traced.limit_came = True
