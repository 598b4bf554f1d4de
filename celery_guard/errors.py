"""Everything users raise and catch.

::

    GuardError
    ├── InvalidOption               also a ValueError: an option or setting that is not accepted
    ├── UnserializableArgument      also a TypeError: the serializer can't encode what was passed
    ├── RunExists                   the explicit task id belongs to another run
    ├── IdempotencyConflict         the key was used before with another payload
    ├── RunNotFound                 no run has this id
    ├── ResultNotKept               the run succeeded, and its result is in no place to read it from
    ├── StoreUnavailable            the database can't be reached
    ├── SchemaMismatch              the tables are missing, too old or too new
    ├── StepReused                  one attempt used a step's name twice
    └── RunEnded                    why a run ended without its own result
        ├── DeadlineExceeded
        ├── AttemptsExhausted
        ├── WorkerLost
        ├── TaskFailed
        └── RunCancelled

    RetryableError, NonRetryableError   raised by a body to say what its failure means
    Snooze                              raised by a body to say: not now

Celery moves exceptions between processes, so each one is built from plain positional arguments and survives pickle.
"""

from __future__ import annotations

from datetime import timedelta

__all__ = [
    "AttemptsExhausted",
    "DeadlineExceeded",
    "GuardError",
    "IdempotencyConflict",
    "InvalidOption",
    "NonRetryableError",
    "ResultNotKept",
    "RetryableError",
    "RunCancelled",
    "RunEnded",
    "RunExists",
    "RunNotFound",
    "SchemaMismatch",
    "Snooze",
    "StepReused",
    "StoreUnavailable",
    "TaskFailed",
    "UnserializableArgument",
    "WorkerLost",
]


class GuardError(Exception):
    """The root of what this package raises."""


class InvalidOption(GuardError, ValueError):
    """An option or setting has a value that is not accepted; the text names it, the value and what is accepted."""


class UnserializableArgument(GuardError, TypeError):
    """The task's serializer can't encode an argument; the text names the argument. Nothing was stored or sent."""


class RunExists(GuardError):
    """The explicit task id already belongs to a run that is finished, or that has another task or payload."""


class IdempotencyConflict(GuardError):
    """The idempotency key was used before with another payload."""


class RunNotFound(GuardError, LookupError):
    """No run has this id: it never existed, was rolled back, or was pruned."""


class ResultNotKept(GuardError):
    """The run succeeded, but no result backend is configured and the result was too large to keep in its row."""


class StoreUnavailable(GuardError):
    """The database of runs can't be reached. Nothing was stored or sent."""


class SchemaMismatch(GuardError):
    """The tables are missing or do not fit this version; the text says which command to run."""


class StepReused(GuardError):
    """One attempt used the same step name twice."""


class RunEnded(GuardError):
    """A run ended without a result of its own.

    Args:
        reason: the terminal reason, such as ``failed_due_deadline``.
        message: what happened, in words; it includes the last error where there was one.
    """

    def __init__(self, reason: str = "", message: str = "") -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class DeadlineExceeded(RunEnded):
    """The deadline passed, or the next attempt could not start before it."""


class AttemptsExhausted(RunEnded):
    """All attempts, or all attempts allowed for unknown faults, were used."""


class WorkerLost(RunEnded):
    """The process running the attempt was lost and the task forbids a repeat."""


class TaskFailed(RunEnded):
    """The task failed for good, and its own exception could not be kept."""


class RunCancelled(RunEnded):
    """A person or a Celery ``revoke`` stopped the run."""


class RetryableError(Exception):
    """Raise this in a body when a repeat may help.

    Args:
        message: what happened.
        retry_after: how long to wait before the next attempt, in seconds or as a ``timedelta``; the backoff decides
            when it is not given.
    """

    def __init__(self, message: str = "", retry_after: float | timedelta | None = None) -> None:
        super().__init__(message, retry_after)
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.message)


class NonRetryableError(Exception):
    """Raise this in a body when a repeat can't help."""


class Snooze(Exception):
    """Raise this in a body that can't do its work yet: it is run again later, and no attempt is used up.

    Args:
        delay: how long to wait, in seconds or as a ``timedelta``. A wait past the deadline ends the run.
    """

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        return (
            f"not before {self.delay} have passed" if isinstance(self.delay, timedelta) else f"not for {self.delay} s"
        )
