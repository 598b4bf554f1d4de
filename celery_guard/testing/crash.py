"""Where a worker may be made to die."""

from __future__ import annotations

from typing import Any, Literal, get_args

from celery_guard.core.decide import Claim, Settlement
from celery_guard.core.states import State
from celery_guard.errors import InvalidOption
from celery_guard.store.records import Claimed
from celery_guard.store.runs import RunStore

__all__ = ["CrashPoint", "Crashes", "MortalRuns", "WorkerDied"]

#: ``before_claim``: the message has arrived, and nothing is written. ``after_claim``: the attempt is counted, and its
#: body has not begun. ``after_body``: the body has done its work, and nobody knows. ``after_settle``: the row says what
#: became of the attempt, and neither Celery nor the broker has heard of it.
CrashPoint = Literal["before_claim", "after_claim", "after_body", "after_settle"]


class WorkerDied(BaseException):
    """Takes a worker away in the middle of its work: no task and no hook may catch it."""


class Crashes:
    """The crashes that a test has asked for; each happens once, to the first attempt that gets there."""

    def __init__(self) -> None:
        self.awaited: list[CrashPoint] = []
        #: Whether a worker is at work: only then can one die.
        self.at_work = False

    def ask_for(self, point: CrashPoint) -> None:
        """Have a worker die.

        Raises:
            InvalidOption: there is no such point.
        """
        if point not in get_args(CrashPoint):
            raise InvalidOption(f"a worker can be made to die at {', '.join(get_args(CrashPoint))}, not at {point!r}")
        self.awaited.append(point)

    def reach(self, point: CrashPoint) -> None:
        """Die here, when that was asked for."""
        if self.at_work and point in self.awaited:
            self.awaited.remove(point)
            raise WorkerDied(point)


class MortalRuns(RunStore):
    """The runs as a worker sees them that may die between two of its statements."""

    def __init__(self, runs: RunStore, crashes: Crashes) -> None:
        super().__init__(runs.database, runs.namespace)
        self._crashes = crashes

    def claim(self, run_id: str, token: str, **how: Any) -> Claimed | None:
        """Claim; a worker may die before and after."""
        self._crashes.reach("before_claim")
        claimed = super().claim(run_id, token, **how)
        if claimed is not None:
            self._crashes.reach("after_claim")
        return claimed

    def settle(self, claim: Claim, settlement: Settlement, **how: Any) -> bool:
        """Settle; the holder of the claim may die before and after."""
        if how.get("successor") is not None:  # somebody else ends the attempt of a worker that is gone
            return super().settle(claim, settlement, **how)
        self._crashes.reach("after_body")
        settled = super().settle(claim, settlement, **how)
        self._crashes.reach("after_settle")
        return settled

    def holder(self, run_id: str) -> tuple[State | None, str | None]:
        """Read who holds a run; a body that has completed it in a transaction of its own settles no more."""
        state, token = super().holder(run_id)
        if state is State.SUCCEEDED:
            self._crashes.reach("after_body")
            self._crashes.reach("after_settle")
        return state, token
