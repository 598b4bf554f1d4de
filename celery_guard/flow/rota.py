"""Work that comes round in a worker: little at a time, and each piece as often as it should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Duty", "Rota"]

#: How many duties one tick may do: it stays cheap, and what is handed over meanwhile does not wait for long.
_AT_ONCE = 2


@dataclass
class Duty:
    """A piece of work. It may say that there is more of it, and then comes round with the next tick."""

    work: Callable[[], Any]
    #: How often it is due, in seconds.
    every: float
    due: float = 0.0


class Rota:
    """Says whose turn it is, and when the next tick should be: sooner where two duties at a time are not enough.

    Args:
        duties: what comes round.
        first: what a tick does before and besides, when it is due.
        tick_every: seconds between two ticks at most.
    """

    def __init__(self, duties: Sequence[Duty], *, first: Duty | None = None, tick_every: float) -> None:
        self.duties = duties
        self._first = [first] if first is not None else []
        self.tick_every = tick_every
        #: Seconds between two ticks at least; what is due within them is done now.
        self._soon = tick_every / 4

    def tick(self, now: float) -> None:
        """Do what is due, the longest waiting first. Moments are seconds of a monotonic clock."""
        first, others = (self._due(duties, now) for duties in (self._first, self.duties))
        for duty in (*first, *others[:_AT_ONCE]):
            duty.due = now + duty.every
            if duty.work() is True:
                duty.due = now + self.tick_every

    def next_tick(self, now: float) -> float:
        """Return when the next tick should be."""
        soonest = min(duty.due for duty in (*self._first, *self.duties))
        return min(max(soonest, now + self._soon), now + self.tick_every)

    def _due(self, duties: Sequence[Duty], now: float) -> list[Duty]:
        due = [duty for duty in duties if duty.due <= now + self._soon]
        return sorted(due, key=lambda duty: duty.due)
