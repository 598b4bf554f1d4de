"""Ending what nobody else can end: attempts of dead workers, of lost children, and runs whose deadline has passed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_guard.core.decide import Cancelled, Claim, Expired, Finish, Lost, Outcome, Settlement
from celery_guard.core.states import Reason, State
from celery_guard.flow.guard import Guard, task_settings
from celery_guard.flow.settle import lost_fault, settle
from celery_guard.observe.logs import logger
from celery_guard.store.records import Running
from celery_guard.store.workers import Beat

__all__ = ["Rescuer", "Watch", "settle_for_child"]

_DEADLINE_PASSED = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)


class Watch:
    """Which workers have stopped beating, as this observer saw it on its own clock.

    Only counters are compared, never clocks; and the count starts anew whenever the observer itself could not beat, so
    an outage of the database accuses nobody.
    """

    def __init__(self, rescue_after: timedelta) -> None:
        self._rescue_after = rescue_after.total_seconds()
        self._seen: dict[str, tuple[int, float]] = {}

    def forget(self) -> None:
        """Start anew: what was seen before says nothing about the workers."""
        self._seen.clear()

    def stale(self, beats: Sequence[Beat], *, monotonic: float) -> list[Beat]:
        """Return the workers whose counter has not moved for ``guard_rescue_after``."""
        seen, self._seen = self._seen, {}
        stale = []
        for beat in beats:
            count, since = seen.get(beat.worker_id, (beat.count, monotonic))
            if count != beat.count:
                since = monotonic
            self._seen[beat.worker_id] = (beat.count, since)
            if monotonic - since >= self._rescue_after:
                stale.append(beat)
        return stale


class Rescuer:
    """Settles attempts from outside, through the same door as everybody."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.watch = Watch(guard.settings.rescue_after)
        self._orphans: set[tuple[str, str]] = set()

    def rescue(self, beats: Sequence[Beat]) -> int:
        """End the attempts of workers that stopped beating, and make due what they held reserved."""
        rescued = 0
        for beat in self.watch.stale(beats, monotonic=time.monotonic()):
            if beat.worker_id == self.guard.worker_id:
                continue
            running = self.guard.runs.running_on(beat.worker_id)
            ended = [self.end(row, "its worker stopped beating") for row in running]
            self.guard.runs.publish_soon(beat.reserved, delay=0.0) if beat.reserved else 0
            logger.warning(
                "worker %s is gone: %d attempts ended, %d reserved runs made due",
                beat.worker_id,
                sum(ended),
                len(beat.reserved),
            )
            rescued += sum(ended)
            if all(ended):
                self.guard.workers.stop(beat.worker_id)
        return rescued

    def audit(self, tokens: Collection[str]) -> int:
        """End attempts that the table says are ours and no request here knows, once two audits in a row saw them."""
        running = {(row.claim.run_id, row.claim.token): row for row in self._running_here()}
        orphans = {key for key in running if key[1] not in tokens}
        confirmed, self._orphans = orphans & self._orphans, orphans
        return sum(self.end(running[key], "its process is gone") for key in confirmed)

    def end(self, row: Running, why: str) -> bool:
        """End one attempt whose owner is gone. A task that this worker does not know is left to its deadline."""
        return self._settle(row.claim, row.type, Lost(lost_fault("worker_lost", why)), now=row.now)

    def sweep_waiting(self) -> int:
        """End waiting runs whose deadline has passed."""
        ended = self.guard.runs.finish_expired(_DEADLINE_PASSED, limit=self.guard.settings.dispatch_batch)
        for run_id in ended:
            logger.error("run %s is dead, %s: the deadline passed while it waited", run_id, _DEADLINE_PASSED.reason)
        return len(ended)

    def sweep_running(self) -> int:
        """End running runs whose deadline and grace have passed: nobody stopped the body, or nobody is there."""
        settings = self.guard.settings
        overdue = self.guard.runs.overdue(settings.task.deadline_grace, limit=settings.dispatch_batch)
        return sum(self._settle(row.claim, row.type, Expired(), now=row.now) for row in overdue)

    def _running_here(self) -> list[Running]:
        worker_id = self.guard.worker_id
        return self.guard.runs.running_on(worker_id) if worker_id else []

    def _settle(self, claim: Claim, task_type: str, outcome: Outcome, *, now: datetime) -> bool:
        task = self.guard.app.tasks.get(task_type)
        if task is None and not isinstance(outcome, (Expired, Cancelled)):
            return False
        policy = (task_settings(task) if task is not None else self.guard.settings.task).policy()
        successor = secrets.token_hex(8)
        settled = settle(
            self.guard.runs, task_type, claim, outcome, policy, now=now, owed=True, lease=0.0, successor=successor
        )
        return settled is not None


def settle_for_child(guard: Guard, task: Any, run_id: str, token: str, outcome: Outcome) -> Settlement | None:
    """End the attempt of a child that can't, with the token that both share.

    A child lost before its claim costs an attempt too, so the claim is made up for first.
    """
    if isinstance(outcome, Cancelled) and guard.runs.finish_waiting(
        run_id, Finish(State.CANCELLED, Reason.CANCELLED), token=token
    ):
        return Finish(State.CANCELLED, Reason.CANCELLED)
    claimed = guard.runs.held(run_id, token) or guard.runs.claim(
        run_id, token, worker_id=guard.worker_id, fingerprint=None
    )
    if claimed is None:
        return None
    policy = task_settings(task).policy()
    return settle(guard.runs, task.name, claimed.claim, outcome, policy, now=claimed.now, owed=True, lease=0.0)
