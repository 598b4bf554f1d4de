"""What an error means: a category, with the rule that said so."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from celery_guard.errors import NonRetryableError, RetryableError

__all__ = ["Category", "Classification", "Fault", "Rule", "classify", "cut", "fault_of", "shipped_rules"]


class Category(str, Enum):
    """What a repeat would do about an error."""

    RETRYABLE = "retryable"
    NON_RETRYABLE = "non_retryable"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Classification:
    """What one rule said about an error."""

    category: Category
    rule: str
    retry_after: timedelta | None = None


@dataclass(frozen=True)
class Fault:
    """One classified error, as it is stored."""

    category: Category
    rule: str
    error_type: str
    error: str
    traceback: str | None = None
    retry_after: timedelta | None = None

    @property
    def summary(self) -> str:
        """The error in one line, such as ``ConnectionError: refused``."""
        return f"{self.error_type}: {self.error}" if self.error else self.error_type


Rule = Callable[[BaseException], "Classification | None"]


def cut(text: str, limit: int) -> str:
    """Return text that any database takes: no NUL, no lone surrogates, at most ``limit`` characters."""
    clean = text.replace("\x00", "\\x00")
    if len(clean) > limit:
        clean = clean[: max(limit - 1, 0)] + "…"
    return clean.encode("utf-8", "replace").decode("utf-8")


def classify(
    error: BaseException,
    *,
    retryable: tuple[type[BaseException], ...] = (),
    non_retryable: tuple[type[BaseException], ...] = (),
) -> Classification:
    """Say what an error means. The first rule that knows it wins; what no rule knows is *unknown*.

    Args:
        error: what left the body.
        retryable: classes that the task declared as worth a repeat.
        non_retryable: classes that the task declared as permanent; asked before ``retryable``.
    """
    for rule in (
        said_by_the_body,
        declared(Category.NON_RETRYABLE, non_retryable),
        declared(Category.RETRYABLE, retryable),
    ):
        found = rule(error)
        if found is not None:
            return found
    for rule in shipped_rules:
        found = rule(error)
        if found is not None:
            return found
    return Classification(Category.UNKNOWN, "unknown")


def fault_of(error: BaseException, found: Classification, *, limit: int) -> Fault:
    """Describe an error in text that survives anything: a ``str`` that raises, megabytes, broken Unicode."""
    return Fault(
        category=found.category,
        rule=found.rule,
        error_type=cut(type(error).__qualname__, 200),
        error=cut(_text(error), limit),
        traceback=cut(_traceback(error), 8 * limit),
        retry_after=found.retry_after,
    )


def said_by_the_body(error: BaseException) -> Classification | None:
    """The body said itself what its failure means."""
    if isinstance(error, RetryableError):
        return Classification(Category.RETRYABLE, "raised_retryable", _seconds(error.retry_after))
    if isinstance(error, NonRetryableError):
        return Classification(Category.NON_RETRYABLE, "raised_non_retryable")
    return None


def declared(category: Category, classes: tuple[type[BaseException], ...]) -> Rule:
    """The task declared the class, or one of its parents."""

    def rule(error: BaseException) -> Classification | None:
        if classes and isinstance(error, classes):
            return Classification(category, f"task_{category}")
        return None

    return rule


def _any_of(category: Category, name: str, classes: Iterable[type[BaseException]]) -> Rule:
    wanted = tuple(classes)

    def rule(error: BaseException) -> Classification | None:
        return Classification(category, name) if isinstance(error, wanted) else None

    return rule


shipped_rules: tuple[Rule, ...] = (
    _any_of(Category.NON_RETRYABLE, "python_permission", (PermissionError,)),
    _any_of(Category.RETRYABLE, "python_connection", (ConnectionError, TimeoutError, InterruptedError)),
    _any_of(Category.RETRYABLE, "python_exit", (SystemExit,)),
    _any_of(Category.RETRYABLE, "python_memory", (MemoryError,)),
    _any_of(
        Category.NON_RETRYABLE,
        "python_value",
        (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NotImplementedError),
    ),
)


def _seconds(value: float | timedelta | None) -> timedelta | None:
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError, TypeError):  # infinity waits past every deadline; NaN and text ask for nothing
        return timedelta.max if value == float("inf") else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # a user's __str__ may raise anything; the fault must be stored all the same
        return f"<str() of {type(error).__qualname__} raised {type(broken).__qualname__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(tracebacks.format_exception(type(error), error, error.__traceback__, limit=-30, chain=False))
    except BaseException:  # formatting calls str() of the error
        return "".join(tracebacks.format_tb(error.__traceback__, limit=-30))
