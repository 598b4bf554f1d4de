"""What a worker's main process brings along: a beat of its own, and the guard thread."""

from __future__ import annotations

import os
import queue
import random
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import uuid4

from celery import bootsteps
from celery.worker import state as worker_state

from celery_guard.core.decide import Outcome
from celery_guard.errors import GuardError, StoreUnavailable
from celery_guard.flow.body import is_kept
from celery_guard.flow.dispatch import Dispatcher
from celery_guard.flow.guard import Guard, guard_of, task_settings
from celery_guard.flow.herald import Herald
from celery_guard.flow.inhand import Stopper, copy_of, guarded_requests, reserved_ids
from celery_guard.flow.permits import grant_what_is_free
from celery_guard.flow.rescue import Rescuer, cancel_run, settle_for_child
from celery_guard.flow.rota import Duty, Rota
from celery_guard.flow.settle import patiently
from celery_guard.flow.sweep import Sweeper
from celery_guard.flow.timers import forget_cancelled
from celery_guard.flow.together import Together, let_children_leave, tasks_that_wait
from celery_guard.observe.events import TaskEvent
from celery_guard.observe.logs import logger
from celery_guard.store.database import RowLocked
from celery_guard.store.forking import ForkGate
from celery_guard.store.workers import Beat

__all__ = ["GuardStep", "Keeper"]

#: How long a worker waits for its database when it starts, in seconds.
BOOT_PATIENCE = 60.0

#: How long the fork of a pool child waits for our threads, in seconds.
FORK_PATIENCE = 1.0

#: How often at least runs are looked for whose deadline has passed, in seconds.
SWEEP_EVERY = 1.0

#: How often old runs of one terminal state are pruned, in seconds.
PRUNE_EVERY = 15.0

#: How often the time limits of bodies that have ended are forgotten, in seconds.
FORGET_EVERY = 20.0

#: How long a beat may take that tells the database's clock well.
_PROMPT = timedelta(seconds=0.1)


class GuardStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts before the pool and the consumer, and stops after the pool is joined: the first step of the worker."""

    name = "celery_guard"

    _forgetting: Any = None

    def include(self, parent: Any) -> bool:
        """Take the first place among the steps: they start in order and stop in reverse."""
        self.obj = Keeper(guard_of(parent.app), parent)
        parent.steps.insert(0, self)
        return True

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Keep the loop's timer as small as what is running; called again when the consumer restarts."""
        self.obj.settle_together(hub)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = hub.call_repeatedly(FORGET_EVERY, forget_cancelled, hub.timer)


@dataclass(frozen=True)
class HandedOver:
    """An attempt whose child can't end it."""

    request: Any
    outcome: Outcome


class Keeper:
    """The beat thread and the guard thread of one worker boot."""

    def __init__(self, guard: Guard, worker: Any = None) -> None:
        self.guard = guard
        self._worker = worker
        #: What this worker says by Celery's events.
        self.herald = Herald(guard, worker)
        #: What to add to this machine's clock to get the database's.
        self.clock_offset = timedelta(0)
        self._inbox: queue.SimpleQueue[HandedOver | None] = queue.SimpleQueue()
        self._unsettled: list[HandedOver] = []
        self._stopping = threading.Event()
        self._beating, self._keeping = (ForkGate(patience=FORK_PATIENCE, is_outer=True) for _ in range(2))
        self._missed_a_beat = threading.Event()
        self._beats: list[Beat] = []
        self._revoked = 0
        self._not_cancelled: set[str] = set()
        self._threads: list[threading.Thread] = []
        #: Settles what children leave, once there is an event loop.
        self.together: Together | None = None
        let_children_leave(guard.app)
        self._stopper = Stopper(guard)
        self._dispatcher = Dispatcher(guard)
        self._rescuer = Rescuer(guard)
        self._rota = self._all_duties(Sweeper(guard))

    def _all_duties(self, sweeper: Sweeper) -> Rota:
        settings = self.guard.settings
        beat = settings.heartbeat_interval.total_seconds()
        dispatch = settings.dispatch_interval.total_seconds()
        sweep = min(dispatch, SWEEP_EVERY)
        duties = [
            Duty(sweeper.waiting, sweep),
            Duty(sweeper.running, sweep),
            Duty(sweeper.followers, 2 * sweep),
            Duty(partial(grant_what_is_free, self.guard), beat),
            Duty(self._rescue, min(beat, settings.rescue_after.total_seconds() / 4)),
            Duty(self._audit, beat),
            Duty(self._take_over, beat),
            Duty(self._look_for_lost, beat),
            Duty(self._cancel_again, beat),
            Duty(sweeper.prune, PRUNE_EVERY),
            Duty(sweeper.prune_workers, 40 * PRUNE_EVERY),
            Duty(sweeper.prune_retry_slots, 40 * PRUNE_EVERY),
        ]
        return Rota(duties, first=Duty(self._dispatch, dispatch), tick_every=min(sweep, beat))

    def start(self) -> None:
        """Beat for the first time, then go on in two threads."""
        self.guard.worker_id, self.guard.keeper = uuid4().hex, self
        try:
            patiently(self._beat, BOOT_PATIENCE)
        except GuardError as refused:
            logger.critical("the worker can't start: %s", refused)
            raise SystemExit(1) from refused
        for name, loop in (("beat", self._beat_loop), ("keeper", self._keeper_loop)):
            thread = threading.Thread(target=loop, name=f"celery-guard-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End both threads. The pool is gone by now, so what it has not ended is ended here, for the next worker."""
        self._stopping.set()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=10)
        if self.together is not None:
            self.together.close()
        try:
            self._settle_handed_over()
            for row in self._rescuer.running_here():
                self._rescuer.end(row, "the worker was shut down")
            if self.guard.worker_id is not None:
                self.guard.workers.stop(self.guard.worker_id)
        except StoreUnavailable as away:
            logger.warning("the store is away while the worker stops; others will end what is left: %s", away)
        self.guard.keeper = None

    terminate = stop

    def settle_together(self, hub: Any) -> None:
        """Offer children to settle their successes, where a task wishes that.

        SQLite has one writer at a time, and nothing to gain.
        """
        if self.together is None and not self.guard.database.is_sqlite and tasks_that_wait(self.guard.app):
            gate = ForkGate(patience=FORK_PATIENCE, is_outer=True)
            together = self.together = Together(self.guard, self._worker, gate)
            hub.on_close.add(lambda _: together.close())  # while messages can still be acknowledged

    def settles(self, task: Any) -> bool:
        """Whether children may leave successes of this task to this process."""
        return self.together is not None and task_settings(task).settle_within is not None

    def send_event(self, event: TaskEvent) -> None:
        """Send one of Celery's events as this worker."""
        self.herald.send(event)

    def hand_over(self, request: Any, outcome: Outcome) -> None:
        """Take over an attempt from the worker's event loop, which never waits for the database."""
        self._inbox.put(HandedOver(request, outcome))

    def _beat(self) -> None:
        before = datetime.now(timezone.utc)
        clock = self.guard.workers.beat(
            self.guard.worker_id or "", host=socket.gethostname(), pid=os.getpid(), reserved=reserved_ids()
        )
        self._read_the_clock(clock, sent=before, answered=datetime.now(timezone.utc))

    def _read_the_clock(self, clock: datetime, *, sent: datetime, answered: datetime) -> None:
        """Take over what a beat says of the database's clock: too late rather than too early, by a round trip at most.

        A soft limit that came before the deadline would be a fault like any other, and end in a hasty last attempt. A
        slow answer that fits what is known says nothing new.
        """
        offset, uncertain = clock - answered, answered - sent
        if uncertain < _PROMPT or not self.clock_offset - uncertain <= offset <= self.clock_offset + uncertain:
            self.clock_offset = offset

    def _beat_loop(self) -> None:
        interval = self.guard.settings.heartbeat_interval.total_seconds()
        while not self._stopping.wait(interval):
            try:
                with self._beating:
                    self._beat()
            except Exception as error:  # the beat must go on, whatever happens to one of them
                self._missed_a_beat.set()
                logger.warning("a beat failed: %s", error)

    def _keeper_loop(self) -> None:
        next_tick = time.monotonic() + self._rota.tick_every
        while not self._stopping.is_set():
            self._receive(until=next_tick)
            try:
                with self._keeping:
                    self._settle_handed_over()
                    if time.monotonic() >= next_tick and not self._stopping.is_set():
                        self._tick()
            except RowLocked as locked:
                logger.warning("something waits for another transaction: %s", locked)
            except StoreUnavailable as away:
                self._missed_a_beat.set()
                logger.warning("the store is away: %s", away)
            except Exception:
                logger.exception("the guard thread goes on after an error")
            if time.monotonic() >= next_tick:
                next_tick = self._next_tick(time.monotonic())

    def _receive(self, *, until: float) -> None:
        try:
            handed_over = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        if handed_over is not None:
            self._unsettled.append(handed_over)

    def _settle_handed_over(self) -> None:
        while not self._inbox.empty():
            self._receive(until=0.0)
        while self._unsettled:
            request, outcome = self._unsettled[0].request, self._unsettled[0].outcome
            try:
                settle_for_child(
                    self.guard,
                    request.task,
                    request.id,
                    request.token,
                    outcome,
                    attempts_before=request.attempts_before,
                    is_kept=is_kept(request.task, request),
                )
            except RowLocked as locked:
                logger.warning("%s[%s] is left to the audit: %s", request.name, request.id, locked)
            except StoreUnavailable:
                raise
            except Exception:  # one that can't be settled must not keep the others; the audit ends it
                logger.exception("%s[%s] could not be settled for its child", request.name, request.id)
            self._unsettled.pop(0)
            request.acknowledge()

    def _tick(self) -> None:
        """Do what has come round; what is due is published first."""
        self._cancel_revoked()
        self._stopper.tick()
        self.herald.tick()
        self._rota.tick(time.monotonic())

    def _next_tick(self, now: float) -> float:
        """Return when to tick, a little early by chance.

        In step with others' reads of the broker, what is published each time would go to the same one of them.
        """
        return now + (self._rota.next_tick(now) - now) * random.uniform(0.75, 1.0)

    def _dispatch(self) -> None:
        """Publish what is due, batch after batch."""
        while self._dispatcher.tick() >= self.guard.settings.dispatch_batch and not self._stopping.is_set():
            pass

    def _cancel_revoked(self) -> None:
        """Celery's ``revoke`` reaches waiting rows, too: no message of theirs may ever come by."""
        revoked = worker_state.revoked
        if len(revoked) != self._revoked:
            ids = copy_of(revoked)
            for run_id in ids[self._revoked if len(ids) > self._revoked else 0 :]:
                self._cancel(run_id)
            self._revoked = len(ids)

    def _cancel_again(self) -> None:
        """Cancel what was revoked while another transaction held its row."""
        for run_id in tuple(self._not_cancelled):
            self._cancel(run_id)

    def _cancel(self, run_id: str) -> None:
        try:
            cancel_run(self.guard, run_id)
        except RowLocked as locked:
            logger.warning("the run %s was revoked and is not cancelled yet: %s", run_id, locked)
            self._not_cancelled.add(run_id)
        else:
            self._not_cancelled.discard(run_id)

    def _rescue(self) -> None:
        if self._missed_a_beat.is_set():
            self._missed_a_beat.clear()
            self._rescuer.forget()
        self._beats = self.guard.workers.alive()
        self._rescuer.rescue(self._beats, monotonic=time.monotonic())

    def _take_over(self) -> None:
        self._rescuer.take_over(monotonic=time.monotonic())

    def _audit(self) -> None:
        for stray in self._rescuer.audit(guarded_requests()):
            self._stopper.stop(stray)

    def _look_for_lost(self) -> bool:
        """Look for lost messages, in one worker of all, so that nothing is taken for lost twice."""
        if self._beats and self.guard.worker_id == min(beat.worker_id for beat in self._beats):
            return self._dispatcher.look_for_lost(self._beats) > 0
        self._dispatcher.forget_lost()
        return False
