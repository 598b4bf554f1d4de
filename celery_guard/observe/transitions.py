"""What happened to a run: the frozen fact that every watcher gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from celery_guard.core.decide import Claim, Finish, Settlement, Wait
from celery_guard.core.faults import Fault
from celery_guard.core.states import TERMINAL, Reason, State

__all__ = ["MadeBy", "Transition"]

#: Who made a move: who submitted the run; the child that has its message, whose tracer tells Celery the same; a
#: worker's main process for others (lost children, rescue, sweep); whoever cancelled it.
MadeBy: TypeAlias = Literal["submitter", "child", "worker", "canceller"]


@dataclass(frozen=True)
class Transition:
    """One move of a run that was won and committed. Moments are aware and in UTC.

    Args:
        run_id: the Celery task id.
        type: the task's name.
        state: where the run is now.
        attempt: attempts used so far; the one that ended, where one did.
        max_attempts: how many there may be.
        deadline_at: when the run must be over.
        made_by: ``"submitter"``, ``"child"``, ``"worker"`` or ``"canceller"``.
        reason: why it ended, if it did.
        next_retry_at: when it goes on, if it waits for a moment.
        fault: the error behind the move, if there is one.
        meta: the run's correlation data.
    """

    run_id: str
    type: str
    state: State
    attempt: int
    max_attempts: int
    deadline_at: datetime
    made_by: MadeBy
    reason: Reason | None = None
    next_retry_at: datetime | None = None
    fault: Fault | None = field(default=None, repr=False)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return self.state in TERMINAL

    @classmethod
    def submitted(
        cls,
        run_id: str,
        type_: str,
        *,
        max_attempts: int,
        deadline_at: datetime,
        starts_at: datetime | None = None,
        meta: Mapping[str, Any],
    ) -> Transition:
        """A new run waits for a worker, or for the moment when it may start."""
        return cls(
            run_id,
            type_,
            State.QUEUED,
            0,
            max_attempts,
            deadline_at,
            made_by="submitter",
            next_retry_at=starts_at,
            meta=meta,
        )

    @classmethod
    def started(cls, type_: str, claim: Claim, meta: Mapping[str, Any]) -> Transition:
        """An attempt was claimed by the child that runs it."""
        return cls(
            claim.run_id,
            type_,
            State.RUNNING,
            claim.attempt,
            claim.max_attempts,
            claim.deadline_at,
            made_by="child",
            meta=meta,
        )

    @classmethod
    def settled(
        cls, type_: str, claim: Claim, settlement: Settlement, meta: Mapping[str, Any], *, made_by: MadeBy
    ) -> Transition:
        """An attempt, or a wait, was ended. The attempt that was put off did not count."""
        finish = settlement if isinstance(settlement, Finish) else None
        return cls(
            claim.run_id,
            type_,
            finish.state if finish else State.RETRYING,
            claim.attempt - isinstance(settlement, Wait),
            claim.max_attempts,
            claim.deadline_at,
            made_by,
            reason=finish.reason if finish else None,
            next_retry_at=None if isinstance(settlement, Finish) else settlement.at,
            fault=None if isinstance(settlement, Wait) else settlement.fault,
            meta=meta,
        )
