"""What an error means: a category, with the rule that said so."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_guard.core.category import Category, Classification
from celery_guard.core.names import is_named
from celery_guard.core.rules import Look, ask_shipped, asked_delay, cause_of, is_really, read
from celery_guard.errors import NonRetryableError, RetryableError

__all__ = ["Category", "Classification", "Classifier", "Configured", "Fault", "classify", "cut", "fault_of"]

#: How many errors of one chain of causes are asked about, and how many in all, groups included.
LONGEST_CHAIN, MOST_ERRORS = 100, 1_000

#: How deep a group may lie in another.
DEEPEST_GROUP = 20

UNKNOWN = Classification(Category.UNKNOWN, "unknown")


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


#: A user's own rule: what it makes of an error, or None when it does not know it.
Classifier = Callable[[BaseException], "Category | str | Classification | Fault | None"]

_Ask = Callable[[Look], "Classification | None"]


@dataclass(frozen=True)
class Configured:
    """What the configuration says about errors, for all tasks.

    Args:
        retryable: dotted names of classes that are worth a repeat; subclasses count.
        non_retryable: dotted names of classes that are permanent; asked before ``retryable``.
        classifiers: asked in turn after both.
    """

    retryable: tuple[str, ...] = ()
    non_retryable: tuple[str, ...] = ()
    classifiers: tuple[Classifier, ...] = ()


def cut(text: str, limit: int) -> str:
    """Return text that any database takes: no NUL, no lone surrogates, at most ``limit`` characters."""
    clean = text.replace("\x00", "\\x00")
    if len(clean) > limit:
        clean = clean[: max(limit - 1, 0)] + "…"
    return clean.encode("utf-8", "replace").decode("utf-8")


def classify(
    error: BaseException,
    *,
    now: datetime,
    retryable: tuple[type[BaseException], ...] = (),
    non_retryable: tuple[type[BaseException], ...] = (),
    classifier: Classifier | None = None,
    configured: Configured = Configured(),
) -> Classification:
    """Say what an error means. The first rule that knows it wins; what no rule knows is *unknown*.

    An error that no rule knows means what its cause means. A group is non-retryable if any member is, else unknown if
    any is, else retryable.

    Args:
        error: what left the body.
        now: an aware moment, to read dates in ``Retry-After``.
        retryable: classes that the task declared as worth a repeat.
        non_retryable: classes that the task declared as permanent; asked before ``retryable``.
        classifier: the task's own rule, asked after both. When it raises, the error is unknown and ``trouble`` says
            why.
        configured: what the configuration declares; asked after the task.
    """
    rules = (
        _said_by_the_body,
        _declared(Category.NON_RETRYABLE, non_retryable),
        _declared(Category.RETRYABLE, retryable),
        *_classifiers("task_classifier", (classifier,) if classifier is not None else ()),
        _configured(Category.NON_RETRYABLE, configured.non_retryable),
        _configured(Category.RETRYABLE, configured.retryable),
        *_classifiers("configured_classifier", configured.classifiers),
    )
    return _Judge(rules, now).judge(error)


def fault_of(error: BaseException, found: Classification, *, limit: int) -> Fault:
    """Describe an error in text that survives anything: a ``str`` that raises, megabytes, broken Unicode."""
    return Fault(
        category=found.category,
        rule=found.rule,
        error_type=cut(_class_name(error), 200),
        error=cut(_text(error), limit),
        traceback=cut(_traceback(error), 8 * limit),
        retry_after=found.retry_after,
    )


class _Judge:
    """One classification: the rules to ask before the shipped ones, and how many errors may still be looked at."""

    def __init__(self, rules: Sequence[_Ask], now: datetime) -> None:
        self.rules = rules
        self.now = now
        self.left = MOST_ERRORS

    def judge(self, error: BaseException, depth: int = 0) -> Classification:
        found = (self._about(Look(link, self.now), depth) for link in self._chain(error))
        return next((classification for classification in found if classification is not None), UNKNOWN)

    def _chain(self, error: BaseException) -> Iterator[BaseException]:
        """The error and its causes, each once."""
        link, seen = error, set[int]()
        while id(link) not in seen and len(seen) < LONGEST_CHAIN and self.left > 0:
            seen.add(id(link))
            self.left -= 1
            yield link
            link = cause_of(link) or link

    def _about(self, look: Look, depth: int) -> Classification | None:
        for rule in self.rules:
            found = rule(look)
            if found is not None:
                return found
        members = _members(look)
        return self._group(members, depth + 1) if members else ask_shipped(look)

    def _group(self, members: Sequence[BaseException], depth: int) -> Classification:
        if depth > DEEPEST_GROUP:
            return UNKNOWN
        worst: Classification | None = None
        for member in members:
            if self.left <= 0:
                return UNKNOWN
            if not is_really(member, BaseException):
                continue
            found = self.judge(member, depth)
            if found.category is Category.NON_RETRYABLE:
                return found
            worst = found if worst is None else _worse(worst, found)
        return worst or UNKNOWN


def _worse(one: Classification, other: Classification) -> Classification:
    """The one that is unknown, else the one that asks for the longer wait."""
    if Category.UNKNOWN in (one.category, other.category):
        return one if one.category is Category.UNKNOWN else other
    return max(one, other, key=lambda found: found.retry_after or timedelta(0))


def _members(look: Look) -> tuple[BaseException, ...]:
    """What a group holds; the backport's groups for Python 3.10 count."""
    if not look.is_a("builtins.BaseExceptionGroup", "exceptiongroup.BaseExceptionGroup"):
        return ()
    members = look.read("exceptions")
    return members if is_really(members, tuple) else ()


def _said_by_the_body(look: Look) -> Classification | None:
    """The body said itself what its failure means."""
    error = look.error
    if is_really(error, RetryableError):
        return Classification(Category.RETRYABLE, "raised_retryable", _seconds(look.read("retry_after")))
    if is_really(error, NonRetryableError):
        return Classification(Category.NON_RETRYABLE, "raised_non_retryable")
    return None


def _declared(category: Category, classes: tuple[type[BaseException], ...]) -> _Ask:
    """The task declared the class, or one of its parents."""

    def rule(look: Look) -> Classification | None:
        return _said(category, f"task_{category}", look) if issubclass(type(look.error), classes) else None

    return rule


def _configured(category: Category, classes: tuple[str, ...]) -> _Ask:
    """The configuration names the class, or one of its parents."""

    def rule(look: Look) -> Classification | None:
        named = any(is_named(name, look) for name in classes)
        return _said(category, f"configured_{category}", look) if named else None

    return rule


def _said(category: Category, rule: str, look: Look) -> Classification:
    return Classification(category, rule, asked_delay(look) if category is Category.RETRYABLE else None)


def _classifiers(rule: str, classifiers: Sequence[Classifier]) -> Iterator[_Ask]:
    for classifier in classifiers:
        yield _asking(classifier, rule)


def _asking(classifier: Classifier, name: str) -> _Ask:
    """A user's own rule, which can't break the run."""

    def rule(look: Look) -> Classification | None:
        try:
            return _understood(classifier(look.error), name, look)
        except BaseException as broken:
            called = cut(str(getattr(classifier, "__qualname__", type(classifier).__qualname__)), 200)
            trouble = f"the classifier {called} raised {cut(_text_of(broken), 500)}"
            return Classification(Category.UNKNOWN, "classifier_error", trouble=trouble)

    return rule


def _understood(said: object, name: str, look: Look) -> Classification | None:
    if said is None:
        return None
    if isinstance(said, (Classification, Fault)):
        return Classification(Category(said.category), cut(said.rule, 255), said.retry_after)
    if isinstance(said, str) and said in set(Category):
        return _said(Category(said), name, look)
    raise TypeError(f"it must return a category, a Classification, a Fault or None, not {said!r}")


def _text_of(error: BaseException) -> str:
    return f"{_class_name(error)}: {_text(error)}"


def _class_name(error: BaseException) -> str:
    name = read(type(error), "__qualname__")
    return name if is_really(name, str) else "?"


def _seconds(value: object) -> timedelta | None:
    """Read a wait as users write it; infinity waits past every deadline, and NaN or text ask for nothing."""
    if is_really(value, timedelta):
        return value
    if not is_really(value, int) and not is_really(value, float):
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        return timedelta.max if value > 0 else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # a user's __str__ may raise anything; the fault must be stored all the same
        return f"<str() of {_class_name(error)} raised {_class_name(broken)}>"


def _traceback(error: BaseException) -> str:
    trace = read(error, "__traceback__")
    try:
        return "".join(tracebacks.format_exception(type(error), error, trace, limit=-30, chain=False))
    except BaseException:  # formatting calls str() of the error
        return "".join(tracebacks.format_tb(trace, limit=-30))
