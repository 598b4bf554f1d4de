"""What the store hands out: frozen rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_guard.core.deadline import CENTURY, FAR
from celery_guard.core.decide import Claim, Finish
from celery_guard.core.faults import Category
from celery_guard.core.states import TERMINAL, Reason, State

__all__ = ["Attempt", "Claimed", "Due", "Ended", "Ending", "NewRun", "Running", "Submitted", "TaskRun"]


@dataclass(frozen=True)
class Attempt:
    """One attempt that did not succeed."""

    attempt: int
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime
    category: Category | None
    rule: str
    error_type: str | None
    error: str | None
    traceback: str | None


@dataclass(frozen=True)
class TaskRun:
    """A snapshot of one submission's whole life. Moments are aware and in UTC."""

    id: str
    type: str
    queue: str
    state: State
    terminal_reason: Reason | None
    attempt: int
    max_attempts: int
    unknown_faults: int
    deadline_at: datetime
    next_retry_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    error_category: Category | None
    error_type: str | None
    idempotency_key: str | None
    parent_id: str | None
    root_id: str | None
    redrive_of: str | None
    same_as: str | None
    snoozes: int
    owed: bool
    meta: dict[str, Any]
    #: Whose concurrency limit it shares; None: no limit was met.
    concurrency_group: str | None = None
    #: Whether it waits, without a due moment, until fewer runs of that group are running.
    waits_for_permit: bool = False
    encoded_result: str | None = field(default=None, repr=False)
    attempts: tuple[Attempt, ...] = field(default=(), repr=False)

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return self.state in TERMINAL


@dataclass(frozen=True)
class NewRun:
    """What a submission writes. The deadline is the earlier of a moment and a duration by the database's clock."""

    id: str
    namespace: str
    type: str
    queue: str
    payload: str
    options: str
    fingerprint: str
    max_attempts: int
    deadline_at: datetime = FAR
    deadline_after: float = CENTURY.total_seconds()
    delay_until: datetime | None = None
    delay_for: float | None = None
    lease: float | None = None
    published: bool = True
    idempotency_scope: str | None = None
    idempotency_key: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    redrive_of: str | None = None
    same_as: str | None = None
    meta: str | None = None
    concurrency_group: str | None = None


@dataclass(frozen=True)
class Submitted:
    """What a submission became: a new row, or the one that was there."""

    id: str
    created: bool
    deadline_at: datetime
    fingerprint: str
    type: str
    state: State
    #: When it may start, where that is later than its submission.
    starts_at: datetime | None = None
    #: Whether it ended so long ago that its key is no longer kept.
    outlived_its_key: bool = False

    @property
    def waits(self) -> bool:
        """Whether it is not to be published yet."""
        return self.starts_at is not None


@dataclass(frozen=True)
class Claimed:
    """One attempt that is ours."""

    claim: Claim
    now: datetime
    payload: str | None
    options: str | None
    meta: dict[str, Any]
    idempotency_scope: str | None
    idempotency_key: str | None
    parent_id: str | None
    root_id: str | None


@dataclass(frozen=True)
class Running:
    """A running row, as somebody other than its holder sees it."""

    claim: Claim
    type: str
    now: datetime
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """A row that was ended while nobody ran it; the token of its claim says nothing."""

    claim: Claim
    type: str
    meta: dict[str, Any]
    finish: Finish


@dataclass(frozen=True)
class Due:
    """A row to hand to the broker."""

    id: str
    type: str
    queue: str
    payload: str
    options: str
    fingerprint: str
    attempt: int
    ticket: int
    state: State
    owed: bool
    deadline_at: datetime


@dataclass(frozen=True)
class Ending:
    """The stored ending of a run that is owed to Celery."""

    state: State
    reason: Reason
    result: str | None
    last_error: str | None
    error_type: str | None
