"""What would happen to a run that failed with an error, without failing one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_guard.core.category import Category, Classification
from celery_guard.core.decide import Claim, Finish, Policy, Raised, Retry, Settlement, decide
from celery_guard.core.faults import classify, fault_of
from celery_guard.core.rules import read

__all__ = ["Explanation", "Subject", "explain"]

#: An error, its class, the dotted name of its class, or an HTTP status.
Subject = BaseException | type[BaseException] | str | int

#: How an error is classified: with a task's declarations, or without any.
Ask = Callable[[BaseException], Classification]


@dataclass(frozen=True)
class Explanation:
    """What an error means, and what would happen next.

    Args:
        error: the dotted name of the error's class, or the HTTP status.
        category: what a repeat would do about it.
        rule: the name of the rule that said so.
        outcome: ``retrying``, or the terminal reason.
        shortest: the shortest possible wait before the next attempt; None where there is none.
        longest: the longest possible wait.
        asked: the error asked for its wait itself.
        attempt: the attempt that failed.
        max_attempts: how many the run may have.
        trouble: why a classifier could not do its work.
    """

    error: str
    category: Category
    rule: str
    outcome: str
    shortest: timedelta | None
    longest: timedelta | None
    asked: bool
    attempt: int
    max_attempts: int
    trouble: str | None = None

    def __str__(self) -> str:
        said = f"{self.error} is {str(self.category).replace('_', '-')} (rule {self.rule}): {self.next}"
        return f"{said} ({self.trouble})" if self.trouble else said

    @property
    def next(self) -> str:
        """What would happen next, in words."""
        if self.shortest is None or self.longest is None:
            return f"the run ends as {self.outcome}"
        asked = ", as the error asks" if self.asked else ""
        return (
            f"retry after {_spelled(self.shortest, self.longest)}{asked},"
            f" as attempt {self.attempt + 1} of {self.max_attempts}"
        )


class _Edge(random.Random):
    """Chance at one of its ends."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


_EDGES = (0.0, 1.0 - 2**-53)


def explain(
    subject: Subject, policy: Policy, claim: Claim, *, now: datetime, ask: Ask | None = None, limit: int = 2_000
) -> Explanation:
    """Say what an error would mean for the attempt of a claim, by the same rules that decide about real ones.

    Args:
        subject: an error, a class of errors, the dotted name of one, or an HTTP status. Of a class that is not imported
            only its own name is known, not its parents.
        policy: what the task allows.
        claim: the attempt that fails.
        now: the moment at which it fails.
        ask: how the task classifies errors; only the shipped rules when it is not given.
        limit: the longest text of an error that is stored.

    Raises:
        ValueError: the subject is none of these.
    """
    name, error = _example(subject)
    found = classify(error, now=now) if ask is None else ask(error)
    outcome = Raised(fault_of(error, found, limit=limit))
    settled = [decide(outcome, claim, policy, now=now, rng=_Edge(edge)) for edge in _EDGES]
    waits = sorted(settlement.at - now for settlement in settled if isinstance(settlement, Retry))
    return Explanation(
        error=name,
        category=found.category,
        rule=found.rule,
        outcome=_outcome(settled),
        shortest=waits[0] if waits else None,
        longest=waits[-1] if waits else None,
        asked=found.retry_after is not None,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        trouble=found.trouble,
    )


def _outcome(settled: list[Settlement]) -> str:
    endings = [settlement.reason.value for settlement in settled if isinstance(settlement, Finish)]
    return endings[0] if len(endings) == len(settled) else "retrying"


def _example(subject: Subject) -> tuple[str, BaseException]:
    """An error that stands for the subject, and what to call it."""
    if isinstance(subject, BaseException):
        return _name_of(type(subject)), subject
    if isinstance(subject, type) and issubclass(subject, BaseException):
        return _name_of(subject), _unmade(subject)
    status = _status(subject)
    if status is not None:
        return f"HTTP {status}", _Answered(status)
    if isinstance(subject, str) and all(part.isidentifier() for part in subject.split(".")):
        return subject, _by_name(subject)
    raise ValueError(f"an error, a class of errors, its dotted name or an HTTP status is needed, not {subject!r}")


def _status(subject: object) -> int | None:
    if isinstance(subject, str) and subject.isascii() and subject.isdigit():
        subject = int(subject) if len(subject) == 3 else 0
    if isinstance(subject, bool) or not isinstance(subject, int):
        return None
    if not 100 <= subject < 600:
        raise ValueError(f"an HTTP status is a number from 100 to 599, not {subject!r}")
    return subject


class _Response:
    def __init__(self, status: int) -> None:
        self.status_code = status
        self.headers: dict[str, str] = {}


class _Answered(Exception):
    """An HTTP response that was not wanted."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = _Response(status)


def _by_name(name: str) -> BaseException:
    """An error of the class of this name; where it is not imported, one that only has its name."""
    module, _, attribute = name.rpartition(".")
    found = read(sys.modules.get(module or "builtins"), "__dict__", attribute)
    if isinstance(found, type) and issubclass(found, BaseException):
        return _unmade(found)
    return _unmade(type(attribute, (Exception,), {"__module__": module or "builtins"}))


def _unmade(cls: type[BaseException]) -> BaseException:
    """An error of a class whose constructor may ask for anything."""
    error: BaseException = cls.__new__(cls)
    return error


def _name_of(cls: type[BaseException]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


def _spelled(shortest: timedelta, longest: timedelta) -> str:
    low, high = (f"{round(wait.total_seconds(), 2):.10g}" for wait in (shortest, longest))
    return f"{low} s" if low == high else f"{low} to {high} s"
