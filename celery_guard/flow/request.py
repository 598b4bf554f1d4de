"""In the worker's main process: hand over for a child that can't speak any more."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_guard.core.decide import Cancelled, Lost, Outcome
from celery_guard.core.states import Reason
from celery_guard.errors import GuardError, RunEnded
from celery_guard.flow.deliver import DELIVERY
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.leaving import Left
from celery_guard.flow.publish import HEADER
from celery_guard.flow.settle import lost_fault
from celery_guard.observe.events import next_attempt
from celery_guard.observe.logs import logger

__all__ = ["GuardedRequest"]

#: The least that a pool is given, in seconds: 0 would mean no limit.
_AT_ONCE = 0.05


class GuardedRequest(Request):  # type: ignore[misc]
    """A message being worked on. What only the main process learns of it goes to the guard thread."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Celery makes a class for each task, whose ``on_success`` would come before ours."""
        super().__init_subclass__(**kwargs)
        if "on_success" in cls.__dict__:
            cls.on_success = _unless_left(cls.on_success)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._given_limits: tuple[float | None, float | None] = (None, None)
        super().__init__(*args, **kwargs)
        self._guard = guard_of(self._app)
        #: Made for this delivery: main process and child share it.
        self.token = secrets.token_hex(8)
        told: dict[str, Any] = {"token": self.token, "worker": self._guard.worker_id}
        if self._guard.keeper is not None and self._guard.keeper.settles(self._task):
            told["settles"] = True
        self._request_dict[DELIVERY] = told
        header = self._request_dict.get(HEADER)
        self._header: Mapping[str, Any] = header if isinstance(header, Mapping) else {}
        self._deadline = _moment_of(self._header.get("deadline"))
        #: What the events of this message say besides Celery's own fields: why.
        self._said: dict[str, Any] = {}
        self._told_started = False

    @property
    def is_delivery(self) -> bool:
        """Whether this message tells an ending, and has no body to run."""
        return self._header.get("event") == "deliver"

    @property
    def may_be_a_copy(self) -> bool:
        """Whether this message may be one of several: that it begins an attempt is then told once the row says so."""
        is_sent_again = self._header.get("event") in ("deliver", "republish")
        return not self._told_started and (is_sent_again or bool(self.delivery_info.get("redelivered")))

    @property
    def expires(self) -> datetime | None:
        """The deadline, for those who look on; of a message that is not ours, what it says itself."""
        return self._deadline or self._expires

    def maybe_expire(self) -> bool:
        """It is the row that expires, and the claim that finds out."""
        return False if self._deadline else bool(super().maybe_expire())

    def send_event(self, type: str, **fields: Any) -> None:
        """Send one of Celery's events, with what we know besides. No copy is told to have started."""
        if not self._is_watched:
            return
        if type != "task-started":
            super().send_event(type, **fields, **self._always_said, **self._said)
        elif not self.may_be_a_copy:
            self.tell_started()

    @property
    def _is_watched(self) -> bool:
        """Whether this worker sends events at all, which most don't."""
        return bool(self._eventer is not None and self._eventer.enabled and self._task.send_events)

    @property
    def _always_said(self) -> dict[str, Any]:
        """The deadline; ``task-sent`` has none, and may be heard late."""
        return {"expires": self._deadline.isoformat()} if self._deadline else {}

    def tell_started(self) -> None:
        """Tell that an attempt has begun."""
        self._told_started = True
        super().send_event("task-started", **self._always_said)

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
        if self.is_delivery:
            return None
        keeper = self._guard.keeper
        now = datetime.now(timezone.utc) + (keeper.clock_offset if keeper else timedelta(0))
        if self._deadline is not None:
            return max((self._deadline - now).total_seconds(), _AT_ONCE)
        return task_settings(self._task).deadline.total_seconds()

    def revoked(self) -> bool:
        """A revoked run is not to be run; but its ending is to be told."""
        return False if self.is_delivery else bool(super().revoked())

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The child told its ending itself, or it can't: then nobody but the row may say what that means."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        if return_ok:
            self._said = _said_of(error)
            if isinstance(error, Ignore) and self._guard.keeper is not None:
                self._guard.keeper.herald.note_dropped(self)
            return super().on_failure(exc_info, send_failed_event, return_ok)
        task_ready(self)
        if not (self._already_revoked or self._already_cancelled):
            self._hand_over(_meaning(error))
        return None

    def left(self, said: Left, runtime: float) -> None:
        """The body returned, and its child has left the settlement to this process."""
        self.time_start = self.worker_pid = None  # nobody may stop the child for this run, it has another by now
        self._guard.keeper.together.take(self, said, runtime)  # type: ignore[union-attr]

    def settled(self, won: bool, said: str, runtime: float) -> None:
        """The success that the child left is written, or was not to be written any more: the message is done."""
        if won:
            self.on_success((0, said, runtime))
            return
        logger.warning("%s[%s] returned, and its success was not written", self.name, self.id)
        task_ready(self)
        self.acknowledge()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A limit was reached. The hard one also comes as a failure, which is where it is handled."""
        if soft:
            super().on_timeout(soft, timeout)
        else:
            logger.error("hard time limit (%.1f s) reached by %s[%s]", timeout, self.name, self.id)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Celery's ``revoke`` is a cancellation of the run."""
        task_ready(self)
        self._said = {"result": Reason.CANCELLED.value}
        self.send_event("task-revoked", terminated=terminated, signum=signum, expired=expired)
        self._already_revoked = True
        self._hand_over(Cancelled())
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


def _unless_left(succeeded: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what Celery does with a success, which a child may have left to be settled first."""

    @wraps(succeeded)
    def on_success(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        failed, said, runtime = failed__retval__runtime
        if isinstance(said, Left) and not failed:
            return self.left(said, runtime)
        return succeeded(self, failed__retval__runtime, **kwargs)

    return on_success


def _moment_of(text: Any) -> datetime | None:
    """Read the deadline of a message; anybody may have sent it, and the worker goes on whatever it says."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else None


def _said_of(error: BaseException) -> dict[str, Any]:
    """Say in the event why a run waits or ended; Celery's events have no field for that but the result."""
    if isinstance(error, RunEnded):
        return {"result": error.reason}
    if isinstance(error, Retry):
        when = error.when
        return {"eta": when.isoformat(), "result": next_attempt(when)} if isinstance(when, datetime) else {}
    if isinstance(error, (Ignore, Reject, GuardError)):
        return {}
    return {"result": Reason.FAILED_NON_RETRYABLE.value}


def _meaning(error: BaseException) -> Outcome:
    if isinstance(error, Terminated):
        return Cancelled()
    if isinstance(error, TimeLimitExceeded):
        return Lost(lost_fault("time_limit", f"the hard time limit of {error.args[0]:.1f} s was reached"))
    return Lost(lost_fault("worker_lost", str(error) or type(error).__name__))
