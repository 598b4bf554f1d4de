"""In the worker's main process: successes that children left are settled together, beside the event loop."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.exceptions import Ignore
from celery.worker import state as worker_state

from celery_guard.errors import StoreUnavailable
from celery_guard.flow.attempt import settle_attempt
from celery_guard.flow.guard import Guard, guarded_tasks, task_settings
from celery_guard.flow.leaving import Left, carrying
from celery_guard.flow.settle import patiently
from celery_guard.observe.logs import logger
from celery_guard.store.database import RowLocked
from celery_guard.store.forking import ForkGate

__all__ = ["Together", "let_children_leave", "tasks_that_wait"]

#: Seconds until a row that another transaction holds is tried again.
_LOOK_AGAIN = 1.0


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
        self._locked: deque[_Success] = deque()
        self._look_again_at = 0.0
        self._written: deque[tuple[_Success, bool]] = deque()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="celery-guard-together", daemon=True)
        self._thread.start()

    def take(self, request: Any, left: Left, runtime: float) -> None:
        """Take over a success from the event loop, which never waits for the database."""
        self._waiting.put(_Success(request, left, runtime))
        if self._waiting.qsize() >= len(worker_state.reserved_requests) / 4:
            self._enough.set()

    def close(self) -> None:
        """Settle what is left, and end the thread; in a fork of this process there is none."""
        if self._pid == os.getpid() and self._thread.is_alive():
            self._waiting.put(None)
            self._enough.set()
            self._thread.join(timeout=10)
            self._tell()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._next_batch()
            try:
                self._settle(batch)
                self._try_locked(at_last=not is_open)
            except Exception:  # without this thread every later success would wait for ever
                logger.exception("%s could not be settled", _names(batch))
                self._hand_back(batch, set())

    def _next_batch(self) -> tuple[list[_Success], bool]:
        """Wait for successes; return them, and whether more may come."""
        batch: list[_Success] = []
        with suppress(queue.Empty):
            first = self._waiting.get(timeout=_LOOK_AGAIN if self._locked else None)
            if first is None:
                return batch, False
            within = task_settings(first.request.task).settle_within
            self._enough.wait(within.total_seconds() if within else 0)
            self._enough.clear()
            batch.append(first)
            while (success := self._waiting.get_nowait()) is not None:
                batch.append(success)
            return batch, False
        return batch, True

    def _settle(self, batch: list[_Success]) -> None:
        """Settle successes in one commit; one by one where one of them keeps the others from it."""
        if not batch:
            return
        try:
            won = patiently(lambda: self._write(batch))
        except StoreUnavailable as away:  # the audit ends these runs
            logger.error("%s could not be settled: %s", _names(batch), away)
            won = set()
        except Exception:  # of one of them, it may be
            logger.exception("settling %s failed", _names(batch))
            won = set() if len(batch) == 1 else None
        if won is not None:
            self._hand_back(batch, won)
        elif len(batch) == 1:
            self._locked.append(batch[0])
        else:
            for success in batch:
                self._settle([success])

    def _write(self, batch: list[_Success]) -> set[str] | None:
        """Return the tokens that won. None: another transaction holds one of the rows."""
        left = {success.request.token: (success.request.id, success.left.encoded) for success in batch}
        try:
            with self._gate:
                return self._guard.runs.succeed_together(left)
        except RowLocked:
            return None

    def _try_locked(self, *, at_last: bool) -> None:
        """Try again rows that others held, until one of them still does."""
        if time.monotonic() < self._look_again_at and not at_last:
            return
        for _ in range(len(self._locked)):
            before = len(self._locked)
            self._settle([self._locked.popleft()])
            if len(self._locked) == before and not at_last:
                break
        self._look_again_at = time.monotonic() + _LOOK_AGAIN
        if at_last and self._locked:
            logger.warning("%s are left to the audit: other transactions hold their rows", _names(self._locked))

    def _hand_back(self, batch: list[_Success], won: set[str]) -> None:
        for success in batch:
            token, transition = success.request.token, success.left.transition
            self._written.append((success, token in won))
            if token in won and transition is not None:
                self._guard.announce(transition)
        self._worker.consumer.call_soon(self._tell)

    def _tell(self) -> None:
        while self._written:
            success, won = self._written.popleft()
            try:
                success.request.settled(won, str(success.left), success.runtime)
            except Exception:  # of one message, which comes again
                logger.exception("%s could not be acknowledged", _names([success]))


def tasks_that_wait(app: Any) -> list[Any]:
    """Return the tasks whose successes may wait to be settled together."""
    return [task for task in guarded_tasks(app) if task_settings(task).settle_within is not None]


def let_children_leave(app: Any) -> None:
    """Prepare the pool's children, which are made later, to leave what they may."""
    main = os.getpid()

    def prepare(**_: Any) -> None:
        if os.getpid() == main:  # a pool whose bodies run in this process
            return
        for task in tasks_that_wait(app):
            task.__trace__ = carrying(task.__trace__, _settle_after_all)

    signals.worker_process_init.connect(prepare, weak=False, dispatch_uid=f"celery_guard.leaving.{id(app)}")


def _settle_after_all(attempt: Any, executed: Any) -> None:
    with suppress(Ignore):
        settle_attempt(attempt, executed)


def _names(batch: Iterable[_Success]) -> str:
    return ", ".join(f"{success.request.name}[{success.request.id}]" for success in batch)
