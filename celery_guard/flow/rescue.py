"""Ending what nobody else can end: attempts of dead workers and of lost children."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_guard.core.decide import Cancelled, Finish, Lost, Outcome, Settlement
from celery_guard.core.states import Reason, State
from celery_guard.flow.guard import Guard, task_settings
from celery_guard.flow.permits import free_permit
from celery_guard.flow.settle import lost_fault, settle
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import MadeBy, Transition
from celery_guard.store.database import RowLocked
from celery_guard.store.records import Running
from celery_guard.store.workers import Beat

__all__ = ["Rescuer", "Watch", "cancel_run", "end_unless_locked", "settle_for_child"]

_CANCELLED = Finish(State.CANCELLED, Reason.CANCELLED)


@dataclass
class _Seen:
    count: int
    unchanged_for: float = 0.0


@dataclass
class Watch:
    """Which workers have stopped beating, as this observer saw it on its own clock.

    Only counters are compared, never clocks. What counts is observed time: between two looks at most ``at_most``
    seconds pass, so an observer that was frozen, or waited for a frozen database, accuses nobody.

    Args:
        rescue_after: how long a counter may stand still, in seconds.
        at_most: how much one pause between two looks may add, in seconds.
    """

    rescue_after: float
    at_most: float
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _last_look: float | None = None

    def forget(self) -> None:
        """Start anew: what was seen before says nothing about the workers."""
        self._seen.clear()
        self._last_look = None

    def stale(self, beats: Sequence[Beat], *, monotonic: float) -> list[Beat]:
        """Return the workers whose counter stood still for too long."""
        passed = 0.0 if self._last_look is None else min(monotonic - self._last_look, self.at_most)
        self._last_look = monotonic
        before, self._seen = self._seen, {}
        for beat in beats:
            seen = before.get(beat.worker_id)
            still = seen is not None and seen.count == beat.count
            self._seen[beat.worker_id] = _Seen(beat.count, seen.unchanged_for + passed if still and seen else 0.0)
        return [beat for beat in beats if self._seen[beat.worker_id].unchanged_for >= self.rescue_after]


class Rescuer:
    """Settles the attempts of workers that are gone, and of children that are."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        rescue_after = guard.settings.rescue_after.total_seconds()
        self.watch = Watch(rescue_after, at_most=rescue_after / 3)
        self._left = Watch(rescue_after, at_most=rescue_after / 3)
        self._orphans: set[tuple[str, str]] = set()
        self._strays: set[str] = set()

    def rescue(self, beats: Sequence[Beat], *, monotonic: float) -> int:
        """End the attempts of workers that stopped beating, and make due what they held reserved."""
        stale = [
            beat for beat in self.watch.stale(beats, monotonic=monotonic) if beat.worker_id != self.guard.worker_id
        ]
        return sum(self.bury(beat) for beat in stale)

    def bury(self, beat: Beat) -> int:
        """Do that for one worker that is known to be gone; return how many attempts ended."""
        running = self.guard.runs.running_on(beat.worker_id)
        ended = sum(self.end(row, "its worker stopped beating") for row in running)
        if beat.reserved:
            self.guard.runs.publish_soon(beat.reserved, delay=0.0)
        logger.warning(
            "worker %s is gone: %d of its %d attempts ended, %d reserved runs made due",
            beat.worker_id,
            ended,
            len(running),
            len(beat.reserved),
        )
        self.guard.workers.stop(beat.worker_id)
        return ended

    def forget(self) -> None:
        """Start all observation anew."""
        self.watch.forget()
        self._left.forget()

    def take_over(self, *, monotonic: float) -> int:
        """End attempts of workers that are gone, where whoever noticed that could not.

        He may not have known the task, or another transaction held the row. A worker that was only frozen beats again
        before such an attempt has stood still for long enough.
        """
        rows = {row.claim.token: row for row in self.guard.runs.running_for_nobody()}
        still = self._left.stale([Beat(token, 0, ()) for token in rows], monotonic=monotonic)
        return sum(self.end(rows[beat.worker_id], "its worker is gone") for beat in still)

    def audit(self, in_hand: Sequence[Any]) -> list[Any]:
        """Compare what the table says this worker runs with what it does, both ways.

        Ends attempts that no request here knows. What two audits in a row agree on counts, so that a claim or a
        settlement on its way is left alone.

        Args:
            in_hand: the guarded requests that the main process has.

        Returns:
            Those whose bodies go on although their row is no longer theirs: they are to be stopped.
        """
        known = {request.token: request for request in in_hand}
        running = {(row.claim.run_id, row.claim.token): row for row in self.running_here()}
        busy = {token for token, request in known.items() if request.time_start and not request.is_delivery}
        orphans = {key for key in running if key[1] not in known}
        strays = busy - {token for _, token in running}
        for key in orphans & self._orphans:
            self.end(running[key], "its process is gone")
        confirmed = [known[token] for token in sorted(strays & self._strays)]
        self._orphans, self._strays = orphans, strays
        return [request for request in confirmed if self._goes_on(request)]

    def _goes_on(self, request: Any) -> bool:
        """Whether a body that holds nothing is there: its child may also have ended the attempt itself, and be busy
        with what follows, or wait for a database that lets it claim."""
        _, holder = self.guard.runs.holder(request.id)
        return holder != request.token and not _never_claimed(self.guard, request.id, request.attempts_before)

    def end(self, row: Running, why: str) -> bool:
        """End one attempt whose owner is gone. A task that this worker does not know is left to its deadline."""
        if row.type not in self.guard.app.tasks:
            return False
        return end_unless_locked(self.guard, row, Lost(lost_fault("worker_lost", why)))

    def running_here(self) -> list[Running]:
        """Return what the table says this worker runs."""
        worker_id = self.guard.worker_id
        return self.guard.runs.running_on(worker_id) if worker_id else []


def end_unless_locked(guard: Guard, row: Running, outcome: Outcome) -> bool:
    """End an attempt in the place of its holder, unless another transaction holds its row: then it is ended later."""
    try:
        return settle_from_outside(guard, row, outcome, made_by="worker") is not None
    except RowLocked as locked:
        logger.warning("%s[%s] can't be ended yet: %s", row.type, row.claim.run_id, locked)
        return False


def settle_from_outside(guard: Guard, row: Running, outcome: Outcome, *, made_by: MadeBy) -> Settlement | None:
    """End an attempt in the place of its holder, who is told by the changed token that it is no longer his."""
    task = guard.app.tasks.get(row.type)
    settlement = settle(
        guard,
        row.type,
        task_settings(task) if task is not None else guard.settings.task,
        row.claim,
        outcome,
        now=row.now,
        meta=row.meta,
        made_by=made_by,
        owed=True,
        lease=0.0,
        successor=secrets.token_hex(8),
    )
    if settlement is not None:
        free_permit(guard, row.type, row.claim.run_id)
    return settlement


def settle_for_child(
    guard: Guard,
    task: Any,
    run_id: str,
    token: str,
    outcome: Outcome,
    *,
    attempts_before: int | None,
    is_kept: bool = False,
) -> Settlement | None:
    """End the attempt of a child that can't, with the token that both share.

    A child lost before its claim costs an attempt too, so the claim is made up for, unless the run has moved on.

    Args:
        attempts_before: how many attempts the run had used when this message was published, where the message says so.
        is_kept: whether a result backend keeps how the run ended.
    """
    if isinstance(outcome, Cancelled) and _cancel_waiting(guard, run_id, token):
        return _CANCELLED
    claimed = guard.runs.held(run_id, token)
    if claimed is None and isinstance(outcome, Lost) and _never_claimed(guard, run_id, attempts_before):
        claimed = guard.runs.claim(run_id, token, worker_id=guard.worker_id, fingerprint=None, type_=task.name)
    if claimed is None:
        _have_told(guard, run_id, token, is_kept=is_kept)
        return None
    row = Running(claimed.claim, task.name, claimed.now, claimed.meta)
    made_by: MadeBy = "canceller" if isinstance(outcome, Cancelled) else "worker"
    return settle_from_outside(guard, row, outcome, made_by=made_by)


def _have_told(guard: Guard, run_id: str, token: str, *, is_kept: bool) -> None:
    """It was settled, and its child may not have told Celery: it was killed, or the result backend is down."""
    if not guard.runs.tell_soon(run_id, token) and is_kept:
        guard.runs.owe(run_id, token)


def _never_claimed(guard: Guard, run_id: str, attempts_before: int | None) -> bool:
    run = guard.runs.find(run_id)
    return run is not None and run.state is State.QUEUED and attempts_before in (None, run.attempt)


def _cancel_waiting(guard: Guard, run_id: str, token: str) -> bool:
    ended = guard.runs.finish_waiting(run_id, _CANCELLED, token=token)
    if ended is not None:
        cancelled = Transition.settled(ended.type, ended.claim, ended.finish, ended.meta, made_by="canceller")
        guard.announce(cancelled)
    return ended is not None


def cancel_run(guard: Guard, run_id: str) -> bool:
    """End a run that is live, whatever it does. Return whether this call did it; False: it had ended, or never was."""
    for _ in range(100):
        run = guard.runs.find(run_id)
        if run is None or run.is_terminal:
            return False
        if run.state is State.RUNNING:
            row = guard.runs.running(run_id)
            if row and settle_from_outside(guard, row, Cancelled(), made_by="canceller"):
                return True
        elif _cancel_waiting(guard, run_id, secrets.token_hex(8)):
            return True
    return False
