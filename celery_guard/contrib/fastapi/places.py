"""Threads for the database: a few, so that requests wait for their turn and the event loop for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, move_on_after, to_thread
from anyio.lowlevel import RunVar

from celery_guard.errors import StoreUnavailable

__all__ = ["in_thread"]

T = TypeVar("T")

#: Fewer than the connections that ``guard_database_engine_options`` opens by default, 10.
_PLACES = 8

#: Seconds that a request may wait for a place. They are all taken that long only by a database that does not answer.
_PATIENCE = 30.0

_places: RunVar[CapacityLimiter] = RunVar("celery_guard_places")


async def in_thread(work: Callable[[], T]) -> T:
    """Do work that asks the database, in one of a few threads of this event loop.

    Raises:
        StoreUnavailable: no thread became free.
    """
    with move_on_after(_PATIENCE):  # what has begun is not abandoned
        return await to_thread.run_sync(work, limiter=_limiter())
    raise StoreUnavailable(f"none of the {_PLACES} threads that ask the database became free within {_PATIENCE:g} s")


def _limiter() -> CapacityLimiter:
    try:
        return _places.get()
    except LookupError:
        limiter = CapacityLimiter(_PLACES)
        _places.set(limiter)
        return limiter
