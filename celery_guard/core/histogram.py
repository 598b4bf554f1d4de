"""What is measured of each run that ended, and the buckets that its measures are counted in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["BOUNDS", "Distribution", "Measure"]


class Measure(str, Enum):
    """One number of a run that has ended."""

    ATTEMPTS = "attempts"
    START_DELAY = "start_delay"
    DURATION = "duration"
    DEADLINE_USED = "deadline_used"

    def __str__(self) -> str:
        return self.value


_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0)

#: The upper bounds of the buckets, each included.
BOUNDS: Mapping[Measure, tuple[float, ...]] = {
    Measure.ATTEMPTS: (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0),
    Measure.START_DELAY: _SECONDS,
    Measure.DURATION: _SECONDS,
    Measure.DEADLINE_USED: (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0, 1.05),
}


@dataclass
class Distribution:
    """The values of a measure.

    Args:
        counts: how many are at most as large as each bound; the last one counts all.
        total: their sum.
    """

    counts: list[int]
    total: float = 0.0

    def add(self, other: Distribution) -> None:
        """Count other values, too."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
