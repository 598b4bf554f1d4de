"""Moments and durations as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["spell", "stamp"]


def stamp(moment: datetime | None) -> str:
    """Write a moment: UTC, to the second."""
    return "" if moment is None else moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def spell(duration: timedelta | None) -> str:
    """Write a duration in its two largest units."""
    if duration is None:
        return ""
    total = abs(duration.total_seconds())
    sign = "-" if duration < timedelta(0) else ""
    if total < 60:
        return f"{sign}{total:.3g} s" if total < 10 else f"{sign}{total:.0f} s"
    for size, large, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if total >= size:
            rest = int(total % size // smaller)
            return f"{sign}{int(total // size)} {large}" + (f" {rest} {small}" if rest else "")
    raise AssertionError(duration)
