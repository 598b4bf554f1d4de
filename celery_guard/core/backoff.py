"""How long to wait before the next attempt.

The formula is capped exponential backoff with jitter, as in "Exponential Backoff And Jitter" (AWS Architecture Blog,
2015): c = min(cap, base * 2^(attempt - 1)), then jitter spreads callers that failed together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

__all__ = ["SMALLEST_DELAY", "Backoff", "CalledDelays", "Jitter", "ListedDelays", "compute_backoff_delay"]

Jitter = Literal["none", "full", "equal"] | float

#: A delay is never shorter than this, in seconds: a retry is never immediate.
SMALLEST_DELAY = 0.001

#: A century, in seconds.
LONGEST_CAP = 36_525 * 86_400.0


@dataclass(frozen=True)
class Backoff:
    """Capped doubling with jitter.

    Args:
        base: seconds before the second attempt, more than 0.
        cap: the longest delay in seconds, at least ``base``; it holds after jitter.
        jitter: ``"none"`` gives c, ``"full"`` U(0, c], ``"equal"`` c/2 + U(0, c/2), and a number j from 0 to 1
            gives c * U(1 - j, 1 + j).
    """

    base: float = 1.0
    cap: float = 300.0
    jitter: Jitter = "equal"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0):
            raise ValueError(f"the backoff base must be a number of seconds above 0, not {self.base!r}")
        if not self.base <= self.cap <= LONGEST_CAP:
            raise ValueError(
                f"the backoff cap ({self.cap!r}) must be at least the base ({self.base!r}), and at most a century"
            )
        if not _is_jitter(self.jitter):
            raise ValueError(f"jitter must be 'none', 'full', 'equal' or a number from 0 to 1, not {self.jitter!r}")

    def ceiling(self, attempt: int) -> float:
        """Return c in seconds for an attempt that counts from 1, without jitter."""
        doublings = min(attempt - 1, self._doublings_to_cap())
        return min(self.cap, math.ldexp(self.base, doublings))

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return how long to wait after the given failed attempt, which counts from 1.

        Raises:
            ValueError: the attempt is below 1.
        """
        if attempt < 1:
            raise ValueError(f"attempts count from 1, not {attempt!r}")
        ceiling = self.ceiling(attempt)
        seconds = min(self.cap, self._jittered(ceiling, rng))
        return timedelta(seconds=max(seconds, min(SMALLEST_DELAY, self.cap)))

    def _doublings_to_cap(self) -> int:
        return max(0, math.ceil(math.log2(self.cap) - math.log2(self.base)))

    def _jittered(self, ceiling: float, rng: random.Random) -> float:
        if self.jitter == "none":
            return ceiling
        if self.jitter == "full":
            return ceiling * (1.0 - rng.random())
        if self.jitter == "equal":
            return ceiling / 2 + rng.random() * ceiling / 2
        spread = float(self.jitter)
        return ceiling * (1.0 - spread + 2 * spread * rng.random())


@dataclass(frozen=True)
class ListedDelays:
    """One delay per failed attempt, in seconds; the last one goes on."""

    seconds: tuple[float, ...]

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return how long to wait after the given failed attempt, which counts from 1."""
        return timedelta(seconds=self.seconds[min(attempt, len(self.seconds)) - 1])


@dataclass(frozen=True)
class CalledDelays:
    """Delays that a user's callable gives for a failed attempt, in seconds or as a ``timedelta``.

    What it can't say, or says wrongly, the fallback says: a run never breaks on it.
    """

    function: Callable[[int], float | timedelta]
    fallback: Backoff

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return how long to wait after the given failed attempt, which counts from 1."""
        try:
            said = self.function(attempt)
            found = said if isinstance(said, timedelta) else timedelta(seconds=said)
        except Exception:
            return self.fallback.delay(attempt, rng)
        return found if found > timedelta(0) else self.fallback.delay(attempt, rng)


def _is_jitter(value: object) -> bool:
    if isinstance(value, str):
        return value in ("none", "full", "equal")
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def compute_backoff_delay(
    attempt: int,
    base_seconds: float = 1.0,
    cap_seconds: float = 60.0,
    jitter: Jitter = 0.5,
    *,
    rng: random.Random | None = None,
) -> timedelta:
    """Return how long to wait after a failed attempt.

    Args:
        attempt: the attempt that failed, from 1.
        base_seconds: the delay after the first attempt, before jitter.
        cap_seconds: the longest delay; it holds after jitter.
        jitter: a number j from 0 to 1 (the delay is multiplied by U(1 - j, 1 + j)), or one of ``"none"``, ``"full"``
            and ``"equal"``.
        rng: where chance comes from; a seeded one repeats its delays.

    Raises:
        ValueError: an argument is out of its range.
    """
    return Backoff(base_seconds, cap_seconds, jitter).delay(attempt, rng or random.Random())
