"""What a worker's main process brings along: a beat of its own, and the guard thread."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

from celery import bootsteps
from celery.worker import state as worker_state

from celery_guard.core.decide import Outcome
from celery_guard.errors import GuardError, StoreUnavailable
from celery_guard.flow.dispatch import Dispatcher
from celery_guard.flow.guard import Guard, guard_of
from celery_guard.flow.rescue import Rescuer, settle_for_child
from celery_guard.flow.settle import patiently
from celery_guard.observe.logs import logger
from celery_guard.store.workers import Beat

__all__ = ["GuardStep", "Keeper"]

#: How long a worker waits for its database when it starts, in seconds.
BOOT_PATIENCE = 60.0


class GuardStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts before the pool and the consumer, and stops after the pool is joined: the first step of the worker."""

    name = "celery_guard"

    def include(self, parent: Any) -> bool:
        """Take the first place among the steps: they start in order and stop in reverse."""
        self.obj = Keeper(guard_of(parent.app))
        parent.steps.insert(0, self)
        return True


@dataclass(frozen=True)
class HandedOver:
    """An attempt whose child can't end it."""

    request: Any
    outcome: Outcome


@dataclass
class Duty:
    """Work that comes round."""

    work: Callable[[], Any]
    every: float
    due: float = 0.0


class Keeper:
    """The beat thread and the guard thread of one worker boot."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.clock_offset = timedelta(0)
        self._inbox: queue.SimpleQueue[HandedOver | None] = queue.SimpleQueue()
        self._unsettled: list[HandedOver] = []
        self._stopping = threading.Event()
        self._beats: list[Beat] = []
        self._missed_a_beat = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Beat for the first time, then go on in two threads."""
        guard, settings = self.guard, self.guard.settings
        guard.worker_id, guard.keeper = uuid4().hex, self
        self._dispatcher, self._rescuer = Dispatcher(guard), Rescuer(guard)
        try:
            patiently(self._beat, BOOT_PATIENCE)
        except GuardError as refused:
            logger.critical("the worker can't start: %s", refused)
            raise SystemExit(1) from refused
        tick, beat = settings.dispatch_interval.total_seconds(), settings.heartbeat_interval.total_seconds()
        self._duties = [
            Duty(self._rescuer.sweep_waiting, tick),
            Duty(self._rescuer.sweep_running, tick),
            Duty(self._rescue, min(beat, settings.rescue_after.total_seconds() / 4)),
            Duty(self._audit, beat),
            Duty(self._look_for_lost, beat),
        ]
        for name, loop in (("beat", self._beat_loop), ("keeper", self._keeper_loop)):
            thread = threading.Thread(target=loop, name=f"celery-guard-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End both threads, after what was handed over is settled as far as the database allows."""
        self._stopping.set()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=10)
        try:
            self._settle_handed_over()
            if self.guard.worker_id is not None:
                self.guard.workers.stop(self.guard.worker_id)
        except StoreUnavailable as away:
            logger.warning("the store is away while the worker stops; others will end what is left: %s", away)

    terminate = stop

    def hand_over(self, request: Any, outcome: Outcome) -> None:
        """Take over an attempt from the worker's event loop, which never waits for the database."""
        self._inbox.put(HandedOver(request, outcome))

    def _beat(self) -> None:
        before = datetime.now(timezone.utc)
        clock = self.guard.workers.beat(
            self.guard.worker_id or "", host=socket.gethostname(), pid=os.getpid(), reserved=_reserved()
        )
        self.clock_offset = clock - before

    def _beat_loop(self) -> None:
        interval = self.guard.settings.heartbeat_interval.total_seconds()
        while not self._stopping.wait(interval):
            try:
                self._beat()
            except Exception as error:  # the beat must go on, whatever happens to one of them
                self._missed_a_beat = True
                logger.warning("a beat failed: %s", error)

    def _keeper_loop(self) -> None:
        interval = self.guard.settings.dispatch_interval.total_seconds()
        next_tick = time.monotonic() + interval
        while not self._stopping.is_set():
            self._wait_until(next_tick)
            if self._stopping.is_set():
                break
            try:
                self._settle_handed_over()
                if time.monotonic() >= next_tick:
                    self._tick()
            except StoreUnavailable as away:
                self._missed_a_beat = True
                logger.warning("the store is away: %s", away)
            except Exception:
                logger.exception("the guard thread goes on after an error")
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + interval

    def _wait_until(self, moment: float) -> None:
        try:
            handed_over = self._inbox.get(timeout=max(0.0, moment - time.monotonic()))
        except queue.Empty:
            return
        if handed_over is not None:
            self._unsettled.append(handed_over)

    def _settle_handed_over(self) -> None:
        while not self._inbox.empty():
            handed_over = self._inbox.get()
            if handed_over is not None:
                self._unsettled.append(handed_over)
        while self._unsettled:
            request, outcome = self._unsettled[0].request, self._unsettled[0].outcome
            settle_for_child(self.guard, request.task, request.id, request.token, outcome)
            self._unsettled.pop(0)
            request.acknowledge()

    def _tick(self) -> None:
        """Publish what is due; then at most two other duties whose time has come, the longest waiting first."""
        while self._dispatcher.tick() >= self.guard.settings.dispatch_batch and not self._stopping.is_set():
            pass
        now = time.monotonic()
        for duty in sorted((duty for duty in self._duties if duty.due <= now), key=lambda duty: duty.due)[:2]:
            duty.due = now + duty.every
            duty.work()

    def _rescue(self) -> None:
        if self._missed_a_beat:
            self._missed_a_beat = False
            self._rescuer.watch.forget()
        self._beats = self.guard.workers.alive()
        self._rescuer.rescue(self._beats)

    def _audit(self) -> None:
        self._rescuer.audit(_tokens())

    def _look_for_lost(self) -> None:
        self._dispatcher.look_for_lost(self._beats)


def _reserved() -> list[str]:
    """Return the ids that this worker has received and not started."""
    active = {request.id for request in _settled_copy(worker_state.active_requests)}
    waiting = (request for request in _settled_copy(worker_state.reserved_requests) if hasattr(request, "token"))
    return [request.id for request in waiting if request.id not in active]


def _tokens() -> set[str]:
    """Return the tokens of the deliveries that this worker is busy with."""
    return {request.token for request in _settled_copy(worker_state.requests.values()) if hasattr(request, "token")}


def _settled_copy(changing: Any) -> list[Any]:
    """Copy what the event loop may change while we look."""
    while True:
        try:
            return list(changing)
        except RuntimeError:  # changed during iteration
            continue
