"""The event loop forgets the time limits of bodies that have ended.

A limit that was cancelled stays in the loop's heap until its moment. Every guarded run has one, at its deadline: a day
ahead by default, so a busy worker's main process would grow all day.
"""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["forget_cancelled"]


def forget_cancelled(timer: Any) -> None:
    """Drop the cancelled entries of a kombu timer; to be called in its own thread."""
    kept = [event for event in timer._queue if not event.entry.canceled]
    heapq.heapify(kept)
    timer._queue[:] = kept  # the loop that runs the timer holds this very list
