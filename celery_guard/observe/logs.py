"""One structured record per transition, on the logger ``celery_guard``."""

from __future__ import annotations

import logging
from datetime import datetime

from celery_guard.core.decide import Claim, Finish, Settlement, Wait
from celery_guard.core.states import State

__all__ = ["log_settlement", "logger"]

logger = logging.getLogger("celery_guard")

_LEVELS = {
    State.SUCCEEDED: logging.INFO,
    State.CANCELLED: logging.INFO,
    State.RETRYING: logging.WARNING,
    State.FAILED: logging.ERROR,
    State.DEAD: logging.ERROR,
}


def log_settlement(task_type: str, claim: Claim, settlement: Settlement) -> None:
    """Write what became of an attempt: never arguments, never results."""
    finish = settlement if isinstance(settlement, Finish) else None
    state = finish.state if finish else State.RETRYING
    next_retry_at: datetime | None = None if isinstance(settlement, Finish) else settlement.at
    fault = None if isinstance(settlement, Wait) else settlement.fault
    record = {
        "task_id": claim.run_id,
        "type": task_type,
        "attempt": claim.attempt,
        "max_attempts": claim.max_attempts,
        "state": state.value,
        "reason": finish.reason.value if finish else None,
        "deadline_at": claim.deadline_at.isoformat(),
        "next_retry_at": next_retry_at.isoformat() if next_retry_at else None,
        "error_category": fault.category.value if fault else None,
        "error_type": fault.error_type if fault else None,
        "rule": fault.rule if fault else None,
    }
    why = f", {finish.reason}" if finish and finish.reason.value != state.value else ""
    error = f": {fault.error_type} ({fault.rule})" if fault else ""
    logger.log(
        _LEVELS[state],
        "%s[%s] %s%s after attempt %d of %d%s",
        task_type,
        claim.run_id,
        state,
        why,
        claim.attempt,
        claim.max_attempts,
        error,
        extra=record,
    )
