"""The deadline in the threads pool, which enforces no limit by itself: raise in the thread whose body is late.

A raise reaches Python code only: a thread inside a C call (a socket without a timeout, a long query) sees it when that
call returns. The row is ended by the sweep all the same.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

__all__ = ["watched"]


class _Body:
    """A body that runs in a thread; once it has ended nothing may be raised in that thread any more."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._runs = True

    def end(self) -> None:
        with self._lock:
            self._runs = False

    def interrupt(self) -> None:
        with self._lock:
            if self._runs:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(SoftTimeLimitExceeded)
                )


class _Watchdog:
    """One thread that waits for the earliest moment of all."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, _Body]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def watch(self, body: _Body, moment: float) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (moment, next(self._order), body))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="celery-guard-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            self._next().interrupt()

    def _next(self) -> _Body:
        with self._changed:
            while True:
                left = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(left)


_watchdog = _Watchdog()


def watched(body: Callable[[], Any], seconds: float) -> Any:
    """Run a body in this thread, and raise ``SoftTimeLimitExceeded`` in it when it takes longer than that."""
    entry = _Body()
    _watchdog.watch(entry, time.monotonic() + seconds)
    try:
        return body()
    finally:
        entry.end()
