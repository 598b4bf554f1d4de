"""Work beside the caller that may be left undone: a few threads, and no more work than they can hope to do soon."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

__all__ = ["beside"]

_THREADS = 4

#: How many pieces may wait for a thread.
_WAITING = 500


class _Threads:
    """The threads of one process; they are started on first use."""

    def __init__(self, waiting: int = _WAITING) -> None:
        self.pid = os.getpid()
        self._places = threading.BoundedSemaphore(_THREADS + waiting)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="celery_guard beside")

    def take(self, work: Callable[[], None]) -> bool:
        if not self._places.acquire(blocking=False):
            return False
        context = copy_context()
        try:
            future = self._pool.submit(context.run, work)
        except RuntimeError:  # the interpreter is shutting down
            self._places.release()
            return False
        future.add_done_callback(lambda _: self._places.release())
        return True


_threads = _Threads()


def beside(work: Callable[[], None]) -> bool:
    """Do work in another thread, in the caller's context, and don't wait for it.

    Returns:
        Whether it will be done; False: too much waits already.
    """
    global _threads
    if _threads.pid != os.getpid():  # a fork has no threads but its own
        _threads = _Threads()
    return _threads.take(work)
