"""The life of a run as data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["ENDINGS", "LIVE", "MOVES", "TERMINAL", "Permit", "Reason", "State", "can_move"]


class State(str, Enum):
    """Where a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        return self.value


class Reason(str, Enum):
    """Why a run ended."""

    SUCCEEDED = "succeeded"
    FAILED_NON_RETRYABLE = "failed_non_retryable"
    FAILED_DUE_DEADLINE = "failed_due_deadline"
    FAILED_DUE_MAX_ATTEMPTS = "failed_due_max_attempts"
    FAILED_DUE_WORKER_LOSS = "failed_due_worker_loss"
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        return self.value


class Permit(str, Enum):
    """Whether a run may run beside the others of its concurrency group."""

    WANTED = "wanted"
    GRANTED = "granted"

    def __str__(self) -> str:
        return self.value


MOVES: Mapping[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.RETRYING, State.DEAD, State.CANCELLED}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.RETRYING, State.FAILED, State.DEAD, State.CANCELLED}),
    State.RETRYING: frozenset({State.QUEUED, State.DEAD, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.DEAD: frozenset(),
    State.CANCELLED: frozenset(),
}

TERMINAL = frozenset(state for state, exits in MOVES.items() if not exits)
LIVE = frozenset(MOVES) - TERMINAL

ENDINGS: Mapping[State, frozenset[Reason]] = {
    State.SUCCEEDED: frozenset({Reason.SUCCEEDED}),
    State.FAILED: frozenset({Reason.FAILED_NON_RETRYABLE}),
    State.DEAD: frozenset({Reason.FAILED_DUE_DEADLINE, Reason.FAILED_DUE_MAX_ATTEMPTS, Reason.FAILED_DUE_WORKER_LOSS}),
    State.CANCELLED: frozenset({Reason.CANCELLED}),
}


def can_move(source: State, target: State) -> bool:
    """Say whether a run may go from one state to another in one step."""
    return target in MOVES[source]
