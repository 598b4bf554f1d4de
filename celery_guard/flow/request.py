"""In the worker's main process: hand over for a child that can't speak any more."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Terminated, TimeLimitExceeded
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_guard.core.decide import Cancelled, Lost, Outcome
from celery_guard.flow.deliver import DELIVERY
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.publish import HEADER
from celery_guard.flow.settle import lost_fault
from celery_guard.observe.logs import logger

__all__ = ["GuardedRequest"]

#: The least that a pool is given, in seconds: 0 would mean no limit.
_AT_ONCE = 0.05


class GuardedRequest(Request):  # type: ignore[misc]
    """A message being worked on. What only the main process learns of it goes to the guard thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given_limits: tuple[float | None, float | None] = (None, None)
        super().__init__(*args, **kwargs)
        self._guard = guard_of(self._app)
        #: Made for this delivery: main process and child share it.
        self.token = secrets.token_hex(8)
        self._request_dict[DELIVERY] = {"token": self.token, "worker": self._guard.worker_id}
        self._header: Mapping[str, Any] = self._request_dict.get(HEADER) or {}

    @property
    def is_delivery(self) -> bool:
        """Whether this message tells an ending, and has no body to run."""
        return self._header.get("event") == "deliver"

    @property
    def attempts_before(self) -> int | None:
        """How many attempts the run had used when this message was published; None where the message is not ours."""
        return self._header.get("attempt")

    @property
    def time_limits(self) -> tuple[float | None, float | None]:
        """Celery's limits (hard, soft) for this attempt in seconds, never later than the deadline and its grace."""
        hard, soft = self._given_limits
        hard, soft = hard or self._task.time_limit, soft or self._task.soft_time_limit
        left = self._left()
        if left is None:
            return hard, soft
        grace = task_settings(self._task).deadline_grace.total_seconds()
        hard = min(hard or left + grace, left + grace)
        soft = min(soft or left, left)
        return (hard, soft) if soft < hard else (hard, None)

    @time_limits.setter
    def time_limits(self, limits: Any) -> None:
        self._given_limits = tuple(limits)

    def _left(self) -> float | None:
        header = self._header
        if self.is_delivery:
            return None
        keeper = self._guard.keeper
        now = datetime.now(timezone.utc) + (keeper.clock_offset if keeper else timedelta(0))
        if header.get("deadline"):
            return max((datetime.fromisoformat(header["deadline"]) - now).total_seconds(), _AT_ONCE)
        return task_settings(self._task).deadline.total_seconds()

    def revoked(self) -> bool:
        """A revoked run is not to be run; but its ending is to be told."""
        return False if self.is_delivery else bool(super().revoked())

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The child told its ending itself, or it can't: then nobody but the row may say what that means."""
        if return_ok:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        task_ready(self)
        if not (self._already_revoked or self._already_cancelled):
            self._hand_over(_meaning(error))
        return None

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A limit was reached. The hard one also comes as a failure, which is where it is handled."""
        if soft:
            super().on_timeout(soft, timeout)
        else:
            logger.error("hard time limit (%.1f s) reached by %s[%s]", timeout, self.name, self.id)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Celery's ``revoke`` is a cancellation of the run."""
        task_ready(self)
        self.send_event("task-revoked", terminated=terminated, signum=signum, expired=expired)
        self._already_revoked = True
        self._hand_over(Cancelled("revoke"))
        signals.task_revoked.send(
            self.task, request=self._context, terminated=terminated, signum=signum, expired=expired
        )

    def _announce_cancelled(self, emit_retry: bool = True) -> None:
        """The worker gives the attempt up: it lost its connection or shuts down."""
        task_ready(self)
        self.send_event("task-cancelled")
        self._already_cancelled = True
        self._hand_over(Lost(lost_fault("worker_lost", "the worker gave the attempt up")))

    def _hand_over(self, outcome: Outcome) -> None:
        if self._guard.keeper is not None:
            self._guard.keeper.hand_over(self, outcome)


def _meaning(error: BaseException) -> Outcome:
    if isinstance(error, Terminated):
        return Cancelled("terminate")
    if isinstance(error, TimeLimitExceeded):
        return Lost(lost_fault("time_limit", f"the hard time limit of {error.args[0]:.1f} s was reached"))
    return Lost(lost_fault("worker_lost", str(error) or type(error).__name__))
