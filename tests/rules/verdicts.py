"""What the rules say about an error that something really raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from celery_guard.core.faults import Category, classify
from tests.factories import NOON

__all__ = ["NO", "UNKNOWN", "YES", "Verdict", "awaited", "raised_by", "verdict", "verdict_on"]

YES, NO, UNKNOWN = Category.RETRYABLE, Category.NON_RETRYABLE, Category.UNKNOWN


class Verdict(NamedTuple):
    category: Category
    rule: str
    delay: timedelta | None = None


def raised_by(act: Callable[[], Any]) -> BaseException:
    """The error that leaves the call."""
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def awaited(act: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    """The same call for synchronous callers."""

    async def run() -> Any:
        return await act()

    return lambda: asyncio.run(run())


def verdict_on(error: BaseException) -> Verdict:
    found = classify(error, now=NOON)
    return Verdict(found.category, found.rule, found.retry_after)


def verdict(act: Callable[[], Any]) -> Verdict:
    return verdict_on(raised_by(act))
