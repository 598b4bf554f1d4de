"""In the worker's main process: successes that children left are settled together, beside the event loop."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.exceptions import Ignore
from celery.worker import state as worker_state

from celery_guard.flow.attempt import settle_attempt
from celery_guard.flow.guard import Guard, task_settings
from celery_guard.flow.leaving import Left, carrying
from celery_guard.flow.settle import patiently
from celery_guard.observe.logs import logger
from celery_guard.store.database import RowLocked
from celery_guard.store.forking import ForkGate

__all__ = ["Together", "let_children_leave"]


@dataclass(frozen=True)
class _Success:
    request: Any
    left: Left
    runtime: float


class Together:
    """A thread that settles what children left: together, once that is a quarter of what the worker holds.

    A batch waits no longer than the task of its first success allows (``settle_within``). After the commit messages are
    acknowledged, and events sent, on the event loop.

    Args:
        guard: the app's guard.
        worker: Celery's worker; its consumer has the event loop.
        gate: what a fork of a pool child waits for.
    """

    def __init__(self, guard: Guard, worker: Any, gate: ForkGate) -> None:
        self._guard = guard
        self._worker = worker
        self._gate = gate
        self._waiting: queue.SimpleQueue[_Success | None] = queue.SimpleQueue()
        self._enough = threading.Event()
        self._written: deque[tuple[_Success, bool]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="celery-guard-together", daemon=True)
        self._thread.start()

    def take(self, request: Any, left: Left, runtime: float) -> None:
        """Take over a success from the event loop, which never waits for the database."""
        self._waiting.put(_Success(request, left, runtime))
        if self._waiting.qsize() >= len(worker_state.reserved_requests) / 4:
            self._enough.set()

    def close(self) -> None:
        """Settle what is left, and end the thread."""
        self._closing = True
        self._enough.set()
        self._waiting.put(None)
        self._thread.join(timeout=10)
        self._tell()

    def _serve(self) -> None:
        while (first := self._waiting.get()) is not None:
            within = task_settings(first.request.task).settle_within
            self._enough.wait(within.total_seconds() if within else 0)
            if not self._closing:
                self._enough.clear()
            with self._gate:
                self._settle([first, *self._others()])

    def _others(self) -> list[_Success]:
        found: list[_Success] = []
        with suppress(queue.Empty):
            while (success := self._waiting.get_nowait()) is not None:
                found.append(success)
            self._waiting.put(None)  # the end is for the thread itself
        return found

    def _settle(self, batch: list[_Success]) -> None:
        try:
            won = patiently(lambda: self._written_now(batch))
        except Exception as error:  # whatever it is, the messages are done, and the audit ends the runs
            logger.error("%s could not be settled: %r", _names(batch), error)
            won = set()
        if won is None:
            self._settle_apart(batch)
            return
        for success in batch:
            token, transition = success.request.token, success.left.transition
            self._written.append((success, token in won))
            if token in won and transition is not None:
                self._guard.announce(transition)
        self._worker.consumer.call_soon(self._tell)

    def _written_now(self, batch: list[_Success]) -> set[str] | None:
        """Return the tokens that won. None: somebody's transaction holds one of the rows."""
        left = {success.request.token: (success.request.id, success.left.encoded) for success in batch}
        try:
            return self._guard.runs.succeed_together(left)
        except RowLocked:
            return None

    def _settle_apart(self, batch: list[_Success]) -> None:
        """Have a row that another transaction holds hold up no other."""
        if len(batch) > 1:
            for success in batch:
                self._settle([success])
        elif not self._closing:
            self._waiting.put(batch[0])
        else:
            logger.warning("%s is left to the audit: another transaction holds its row", _names(batch))

    def _tell(self) -> None:
        while self._written:
            success, won = self._written.popleft()
            success.request.settled(won, str(success.left), success.runtime)


def let_children_leave(app: Any) -> None:
    """Prepare the pool's children, which are made later, to leave what they may."""
    main = os.getpid()

    def prepare(**_: Any) -> None:
        if os.getpid() == main:  # a pool whose bodies run in this process
            return
        for task in app.tasks.values():
            if hasattr(task, "_guard_bound") and task_settings(task).settle_within is not None:
                task.__trace__ = carrying(task.__trace__, _settle_after_all)

    signals.worker_process_init.connect(prepare, weak=False, dispatch_uid=f"celery_guard.leaving.{id(app)}")


def _settle_after_all(attempt: Any, executed: Any) -> None:
    with suppress(Ignore):
        settle_attempt(attempt, executed)


def _names(batch: list[_Success]) -> str:
    return ", ".join(f"{success.request.name}[{success.request.id}]" for success in batch)
