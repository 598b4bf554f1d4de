"""Celery's soft time limit reaches the body, and nothing but the body.

The signal can arrive before the body, while the run is claimed, or after it has returned: in our own statement, or
while Celery submits the next task of a chain. So in a prefork child its handler raises only while a body runs. Masking
the signal would not do: it would be delivered to any thread that a body has started, and Python runs its handler in
the main thread all the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from billiard.pool import soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_postrun

__all__ = ["calls", "hold_back", "let_through", "reaches_here"]

_SIGNAL: Any = getattr(signal, "SIGUSR1", None)

#: Whether the signal came while it was held back.
_came = False


def _hold(number: int, frame: Any) -> None:
    global _came
    _came = True


def reaches_here() -> bool:
    """Whether soft limits arrive as a signal in this very thread: a prefork child."""
    return (
        _SIGNAL is not None
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(_SIGNAL) in (soft_timeout_sighandler, _hold)
    )


def hold_back() -> None:
    """Keep the signal waiting from now on, until the tracer is done with the task."""
    global _came
    if reaches_here():
        task_postrun.connect(_release, dispatch_uid="celery_guard.softlimit")
        _came = False
        signal.signal(_SIGNAL, _hold)


def let_through(body: Callable[[], Any]) -> Any:
    """Run a body with the signal let through; one that came while the run was being claimed is raised at once."""
    if not reaches_here():
        return body()
    try:
        signal.signal(_SIGNAL, soft_timeout_sighandler)
        if _came:
            raise SoftTimeLimitExceeded
        return body()
    finally:
        signal.signal(_SIGNAL, _hold)


@contextmanager
def calls(stop: Callable[[], None]) -> Iterator[bool]:
    """Have the signal call something instead of raising in the middle of whatever runs, and hold it back afterwards.

    Gives whether it reaches this thread at all.
    """
    if not reaches_here():
        yield False
        return
    signal.signal(_SIGNAL, lambda number, frame: stop())
    try:
        yield True
    finally:
        signal.signal(_SIGNAL, _hold)


def _release(**_: Any) -> None:
    """Let the signal through to whatever this process does next."""
    if reaches_here():
        signal.signal(_SIGNAL, soft_timeout_sighandler)
