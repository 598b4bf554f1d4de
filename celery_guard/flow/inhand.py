"""What this worker has in hand: which deliveries it holds, and how to stop a body that lost its claim."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any, TypeVar

from celery.worker import state as worker_state

from celery_guard.flow import eventloop
from celery_guard.flow.guard import Guard, task_settings
from celery_guard.observe.logs import logger

__all__ = ["Stopper", "copy_of", "guarded_requests", "reserved_ids"]

T = TypeVar("T")


def guarded_requests() -> list[Any]:
    """Return the guarded deliveries that the main process has in hand, started or not.

    Celery's map of requests goes by id and forgets one of two deliveries of a run, so its sets are asked.
    """
    in_hand = {*copy_of(worker_state.reserved_requests), *copy_of(worker_state.active_requests)}
    return [request for request in in_hand if hasattr(request, "token")]


def reserved_ids() -> list[str]:
    """Return the ids of runs that this worker has received and not started."""
    return [request.id for request in guarded_requests() if request.time_start is None]


def copy_of(changing: Iterable[T]) -> list[T]:
    """Copy what the event loop may change while we look."""
    while True:
        try:
            return list(changing)
        except RuntimeError:  # changed during iteration
            continue


class Stopper:
    """Stops bodies whose claim is gone: the soft limit's signal, the grace, then the kill.

    A coroutine is cancelled in every pool. A plain body in a thread goes on to its end, and what it settles is refused.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._to_kill: dict[str, tuple[float, Any]] = {}

    def stop(self, request: Any) -> None:
        """Ask the body to stop, and remember to kill its process when it does not."""
        if request.token in self._to_kill or request.worker_pid is None:
            return
        if request.worker_pid == os.getpid():
            if eventloop.stop(request.token):
                _tell_stopped(request)
            return
        grace = task_settings(request.task).deadline_grace.total_seconds()
        _tell_stopped(request)
        self._to_kill[request.token] = (time.monotonic() + grace, request)
        _signal(request, signal.SIGUSR1)

    def tick(self) -> None:
        """Kill what outlived its grace."""
        alive = {request.token for request in guarded_requests()} if self._to_kill else set()
        for token, (moment, request) in list(self._to_kill.items()):
            if token not in alive:
                del self._to_kill[token]
            elif time.monotonic() >= moment:
                del self._to_kill[token]
                _signal(request, signal.SIGKILL)


def _tell_stopped(request: Any) -> None:
    logger.warning("%s[%s] lost its claim; its body is stopped", request.name, request.id)


def _signal(request: Any, number: int) -> None:
    try:
        os.kill(request.worker_pid, number)
    except ProcessLookupError:
        logger.debug("process %s has ended already", request.worker_pid)
