"""What an attempt holds: its claim, the database's clock, and a way into the caller's transaction."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from celery_guard.core.decide import Claim, Finish
from celery_guard.core.states import Reason, State
from celery_guard.errors import RunCancelled
from celery_guard.flow import codec
from celery_guard.flow.guard import Guard
from celery_guard.flow.settle import TELLING_LEASE
from celery_guard.flow.steps import Steps
from celery_guard.store.effects import EffectStore
from celery_guard.store.joined import Joined, in_async_session
from celery_guard.store.runs import RunStore

__all__ = ["Held"]


@dataclass
class Held:
    """The hold of one attempt on its row.

    Args:
        guard: the app's guard.
        claim: what was claimed.
        claimed_at: when, by the database's clock.
        owes: whether Celery does something after this task ends.
    """

    guard: Guard
    claim: Claim
    claimed_at: datetime
    owes: bool
    _monotonic: float = field(default_factory=time.monotonic)
    #: What the body completed the run with, in a transaction that may have committed.
    completed: tuple[Any, str] | None = None
    #: Whether the row was given up for a task that replaces this one.
    vacated: bool = False

    def now(self) -> datetime:
        """Return the moment by the database's clock: as it was at the claim, plus the time since; or a test's clock."""
        clock = self.guard.database.clock
        if clock is not None:
            return clock()
        return self.claimed_at + timedelta(seconds=time.monotonic() - self._monotonic)

    def still_holds(self) -> bool:
        """Whether the run is still this attempt's; costs one statement."""
        state, token = self.guard.runs.holder(self.claim.run_id)
        return state is State.RUNNING and token == self.claim.token

    @cached_property
    def steps(self) -> Steps:
        """The steps of this attempt."""
        return Steps(self.claim.run_id, self.claim.token, self.guard.effects)

    def effects_in(self, session: Any) -> EffectStore:
        """Return the steps' store inside a transaction of the caller's."""
        return EffectStore(Joined(self.guard.database, session))

    async def keep_async(self, name: str, session: Any, result: Any) -> Any:
        """Store what a step returned without blocking the event loop, in an asynchronous session where one is given.

        Raises:
            InvalidOption: the session is not asynchronous.
        """
        if session is None:
            return await asyncio.to_thread(self.steps.keep, name, result)
        return await in_async_session(session, lambda joined: self.steps.keep(name, result, self.effects_in(joined)))

    def complete_in(self, session: Any, result: Any) -> None:
        """Write the success of the run in a transaction of the caller's.

        Raises:
            RunCancelled: the run is no longer this attempt's.
        """
        runs = RunStore(Joined(self.guard.database, session), self.guard.settings.namespace)
        encoded = codec.encode_result(result, self.guard.result_serializer)
        success = Finish(State.SUCCEEDED, Reason.SUCCEEDED, result=result)
        if not runs.settle(self.claim, success, result=encoded, owed=self.owes, lease=TELLING_LEASE):
            raise RunCancelled("cancelled", f"the run {self.claim.run_id} is no longer this attempt's; roll back")
        self.completed = (result, encoded)

    def vacate(self, *, for_a_successor: bool) -> bool:
        """Give the row up: to a task that will be submitted under its id, or for good, as succeeded."""
        runs, self.vacated = self.guard.runs, True
        if for_a_successor:
            return runs.vacate(self.claim)
        success = Finish(State.SUCCEEDED, Reason.SUCCEEDED)
        return runs.settle(self.claim, success, result=codec.TOLD_ELSEWHERE, owed=False)

    def is_completed(self) -> bool:
        """Whether the caller's transaction with the success has committed."""
        if self.completed is None:
            return False
        state, token = self.guard.runs.holder(self.claim.run_id)
        return state is State.SUCCEEDED and token == self.claim.token
