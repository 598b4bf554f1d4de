"""What a shipped rule is: a name, a question about an error, and the rows that document it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeGuard, TypeVar

from celery_guard.core.category import Category

__all__ = ["Codes", "Look", "Row", "Rule", "by_code", "cause_of", "dotted_names", "is_really", "named", "read"]

T = TypeVar("T")


def read(thing: Any, *path: str) -> Any:
    """Follow attributes, or the keys of a dict. None where one is missing or can't be read."""
    for name in path:
        try:
            thing = thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)
        except BaseException:  # a property of a user's error may raise anything
            return None
    return thing


def is_really(thing: object, cls: type[T]) -> TypeGuard[T]:
    """``isinstance`` that asks the thing nothing: a user's ``__class__`` may lie or raise."""
    return issubclass(type(thing), cls)


def dotted_names(error: BaseException) -> frozenset[str]:
    """The names of an error's class and of all its parents, such as ``builtins.OSError``."""
    classes = read(type(error), "__mro__") or ()
    parts = ((read(cls, "__module__"), read(cls, "__qualname__")) for cls in classes)
    return frozenset(f"{module}.{name}" for module, name in parts if is_really(module, str) and is_really(name, str))


def cause_of(error: BaseException) -> BaseException | None:
    """The error before this one: its cause, else the one being handled when it was raised."""
    cause = read(error, "__cause__")
    if cause is None and read(error, "__suppress_context__") is not True:
        cause = read(error, "__context__")
    return cause if is_really(cause, BaseException) else None


class Look:
    """One error as the rules see it; reading from it never raises."""

    def __init__(self, error: BaseException, now: datetime) -> None:
        self.error = error
        self.now = now

    @cached_property
    def names(self) -> frozenset[str]:
        """The dotted names of the error's class and of all its parents."""
        return dotted_names(self.error)

    def is_a(self, *classes: str) -> bool:
        """Say whether the error is of one of these classes, given by their dotted names."""
        return not self.names.isdisjoint(classes)

    def read(self, *path: str) -> Any:
        """Follow attributes from the error; None where one is missing or can't be read."""
        return read(self.error, *path)

    @cached_property
    def text(self) -> str:
        """The error's first argument when it is text, at most 2,000 characters of it."""
        arguments = self.read("args")
        first = arguments[0] if isinstance(arguments, tuple) and arguments else None
        return first[:2_000] if isinstance(first, str) else ""

    def links(self, most: int) -> Iterator[Look]:
        """The error and what caused it, nearest first."""
        link: BaseException | None = self.error
        for _ in range(most):
            if link is None:
                return
            yield Look(link, self.now)
            link = cause_of(link)


@dataclass(frozen=True)
class Row:
    """One line of the reference: which errors, in Markdown, and what they mean."""

    errors: str
    category: Category


@dataclass(frozen=True)
class Rule:
    """One shipped rule. Its name is stored with the attempt and never changes its meaning."""

    name: str
    ask: Callable[[Look], Category | None]
    rows: tuple[Row, ...]

    def __call__(self, look: Look) -> Category | None:
        """Say what the rule makes of an error; what it can't read it does not know."""
        try:
            return self.ask(look)
        except BaseException:  # attributes of a user's error may be anything and raise anything
            return None


#: Codes and what they mean, first match wins: a set or a range holds whole codes, a tuple the beginnings of codes.
Codes = tuple[tuple["Collection[Any]", Category], ...]


def named(name: str, category: Category, *classes: str) -> Rule:
    """A rule about classes and their subclasses, given by dotted names."""
    wanted = frozenset(classes)

    def ask(look: Look) -> Category | None:
        return None if look.names.isdisjoint(wanted) else category

    return Rule(name, ask, (Row(_listed(classes), category),))


def by_code(name: str, what: str, code_of: Callable[[Look], Any], codes: Codes) -> Rule:
    """A rule about a code that the error carries; ``what`` says in Markdown where it is read."""

    def ask(look: Look) -> Category | None:
        code = code_of(look)
        if code is None:
            return None
        return next((category for known, category in codes if _holds(known, code)), None)

    return Rule(name, ask, tuple(Row(f"{what}: {_spelled(known)}", category) for known, category in codes))


def _holds(known: Collection[Any], code: Any) -> bool:
    return code.startswith(known) if isinstance(known, tuple) else code in known


def _spelled(known: Collection[Any]) -> str:
    if isinstance(known, range):
        return f"others from {known.start} to {known.stop - 1}"
    marks = "…" if isinstance(known, tuple) else ""
    return ", ".join(f"{code}{marks}" for code in sorted(known))


def _listed(classes: Collection[str]) -> str:
    return ", ".join(f"`{name.removeprefix('builtins.')}`" for name in classes)
