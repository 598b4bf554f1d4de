"""Work beside the caller that may be left undone: a few threads, and no more work than they can hope to do soon."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import Full, Queue

from celery_guard.observe.logs import logger

__all__ = ["beside"]

_THREADS = 4

#: How many pieces may wait for a thread.
_WAITING = 500

#: Seconds that a process which ends gives to what waits.
_PARTING = 2.0


class _Threads:
    """The threads of one process; they are started on first use, and never keep it from ending."""

    def __init__(self, waiting: int = _WAITING) -> None:
        self.pid = os.getpid()
        self._works: Queue[Callable[[], None]] = Queue(waiting)
        self._lock = threading.Lock()
        self._started = False

    def take(self, work: Callable[[], None]) -> bool:
        """Take work to do, or return False when there is no room for it."""
        try:
            self._works.put_nowait(partial(copy_context().run, work))
        except Full:
            return False
        with self._lock:
            if not self._started:
                self._started = True
                for number in range(_THREADS):
                    threading.Thread(target=self._serve, name=f"celery_guard beside {number}", daemon=True).start()
        return True

    def finish(self, within: float) -> None:
        """Wait until nothing is left to do, for so many seconds at most."""
        until = time.monotonic() + within
        with self._works.all_tasks_done:
            while self._works.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._works.all_tasks_done.wait(left)

    def _serve(self) -> None:
        while True:
            work = self._works.get()
            try:
                work()
            except Exception:
                logger.exception("work beside a caller failed")
            finally:
                self._works.task_done()


_threads = _Threads()


def beside(work: Callable[[], None]) -> bool:
    """Do work in another thread, in the caller's context, and don't wait for it.

    Returns:
        Whether it will be done, unless the process ends before; False: too much waits already.
    """
    global _threads
    if _threads.pid != os.getpid():  # a fork has no threads but its own
        _threads = _Threads()
    return _threads.take(work)


@atexit.register
def _part() -> None:
    if _threads.pid == os.getpid():
        _threads.finish(_PARTING)
