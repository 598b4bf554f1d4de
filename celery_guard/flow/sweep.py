"""Ending runs whose deadline has passed, and forgetting runs that ended long ago."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from celery_guard.core.decide import Expired, Finish
from celery_guard.core.faults import Category, Fault
from celery_guard.core.states import TERMINAL, Reason, State
from celery_guard.flow.guard import Guard, guarded_tasks, task_settings
from celery_guard.flow.rescue import end_unless_locked
from celery_guard.observe.transitions import Transition
from celery_guard.store.records import Ended

__all__ = ["Sweeper"]

_DEADLINE_PASSED = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE)

_STILL_RUNNING = Fault(
    Category.RETRYABLE, "deadline", "DeadlineExceeded", "the body was still running after the deadline and its grace"
)

#: How many rows one pruning statement takes.
PRUNE_BATCH = 1_000

#: How many running rows are looked at whose deadline has passed; some tasks may have a longer grace than others.
OVERDUE_BATCH = 1_000

#: How long one round may take, in seconds.
ROUND = 0.5


class Sweeper:
    """Looks at the whole namespace; several workers may do so at once."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._states = sorted(TERMINAL)

    def waiting(self) -> int:
        """End waiting runs whose deadline has passed; return how many."""
        return self._in_batches(partial(self.guard.runs.finish_expired, _DEADLINE_PASSED))

    def running(self) -> int:
        """End running runs whose deadline and grace have passed: nobody stopped the body, or nobody is there."""
        common = self.guard.settings.task.deadline_grace
        own = {task.name: task_settings(task).deadline_grace for task in guarded_tasks(self.guard.app)}
        rows = self.guard.runs.overdue(min([common, *own.values()]), limit=OVERDUE_BATCH)
        late = [row for row in rows if row.now >= row.claim.deadline_at + own.get(row.type, common)]
        return sum(end_unless_locked(self.guard, row, Expired(_STILL_RUNNING)) for row in late)

    def followers(self) -> int:
        """Give runs whose key was in use the ending of the run that had it."""
        return self._in_batches(self.guard.runs.follow)

    def _in_batches(self, end: Callable[..., list[Ended]]) -> int:
        """End runs, batch after batch for a bounded time: however many have one deadline, they end by it."""
        limit, until, count = self.guard.settings.dispatch_batch, time.monotonic() + ROUND, 0
        while True:
            ended = end(limit=limit)
            for row in ended:
                self.guard.announce(Transition.settled(row.type, row.claim, row.finish, row.meta, made_by="worker"))
            count += len(ended)
            if len(ended) < limit or time.monotonic() >= until:
                return count

    def prune(self) -> bool:
        """Delete runs of one terminal state that ended longer ago than they are kept; return whether there may be more.

        Each batch is a transaction of its own, so this may be killed at any moment.
        """
        state = self._states[0]
        until = time.monotonic() + ROUND
        age, key_age = self.guard.settings.retention[state.value], self._longest_ttl()
        any_deleted = False
        while self.guard.runs.prune(state, age, key_age, limit=PRUNE_BATCH):
            any_deleted = True
            if time.monotonic() >= until:
                return True
        self._states.append(self._states.pop(0))
        return any_deleted

    def prune_workers(self) -> None:
        """Delete workers that stopped longer ago than any run is kept that may name them."""
        self.guard.workers.prune(max(self.guard.settings.retention.values()))

    def prune_retry_slots(self) -> None:
        """Delete what ``retry_rate`` keeps of times that are over."""
        self.guard.rates.prune(before=self.guard.runs.clock())

    def _longest_ttl(self) -> timedelta:
        """Return how long a key may be kept: a task may keep its own for longer than the others."""
        own = [task_settings(task).idempotency_ttl for task in guarded_tasks(self.guard.app)]
        return max([self.guard.settings.task.idempotency_ttl, *own])
