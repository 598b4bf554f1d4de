"""Celery's soft time limit reaches the body, and nothing but the body.

The signal can arrive after the body has returned: in our own statement, or while Celery submits the next task of a
chain. So it is held back in a prefork child except while a body runs.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from billiard.pool import soft_timeout_sighandler
from celery.signals import task_postrun

__all__ = ["calls", "hold_back", "let_through", "reaches_here"]

_SIGNAL: Any = getattr(signal, "SIGUSR1", None)


def reaches_here() -> bool:
    """Whether soft limits arrive as a signal in this very thread: a prefork child."""
    return (
        _SIGNAL is not None
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(_SIGNAL) is soft_timeout_sighandler
    )


def hold_back() -> None:
    """Keep the signal waiting from now on, until the tracer is done with the task."""
    if reaches_here():
        task_postrun.connect(_release, dispatch_uid="celery_guard.softlimit")
        signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGNAL})


def let_through(body: Callable[[], Any]) -> Any:
    """Run a body with the signal let through; what was left over from before is dropped first."""
    if not reaches_here():
        return body()
    _drop_leftovers()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_SIGNAL})
        return body()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGNAL})


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
        signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGNAL})
        signal.signal(_SIGNAL, soft_timeout_sighandler)


def _release(**_: Any) -> None:
    if reaches_here():
        _drop_leftovers()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_SIGNAL})


def _drop_leftovers() -> None:
    while _SIGNAL in signal.sigpending():
        signal.sigwait({_SIGNAL})
