"""Deadlines: aware UTC moments that can only come closer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

__all__ = ["CENTURY", "FAR", "Deadline", "aware"]

CENTURY = timedelta(days=36_525)

#: What stands for "no moment of its own": later than any deadline.
FAR = datetime(9999, 12, 31, tzinfo=timezone.utc)


def aware(moment: datetime, name: str = "deadline") -> datetime:
    """Return the moment in UTC.

    Raises:
        ValueError: the moment carries no time zone.
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(
            f"{name} must carry a time zone, and {moment!r} has none; use datetime.now(timezone.utc) + timedelta(…)"
        )
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{name} is out of range: {moment!r}") from None


@dataclass(frozen=True)
class Deadline:
    """What a caller asked for: a moment, a duration from submission, or both, of which the earlier counts."""

    at: datetime | None = None
    after: timedelta | None = None

    @classmethod
    def of(cls, value: timedelta | float | datetime, name: str = "deadline") -> Deadline:
        """Read a deadline as users write it: a ``timedelta``, seconds, or an aware ``datetime``.

        Raises:
            ValueError: a naive moment, a duration of 0 or less, or another type.
        """
        if isinstance(value, datetime):
            return cls(at=aware(value, name))
        if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
            raise ValueError(f"{name} must be a timedelta, seconds or an aware datetime, not {value!r}")
        try:
            after = value if isinstance(value, timedelta) else timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise ValueError(f"{name} is out of range: {value!r}") from None
        if not timedelta(0) < after <= CENTURY:
            raise ValueError(f"{name} must be more than 0 seconds and at most a century, not {value!r}")
        return cls(after=after)

    def narrowed_to(self, other: Deadline | None) -> Deadline:
        """Return the earlier of two; neither can move the other further away."""
        if other is None:
            return self
        return Deadline(at=_earlier(self.at, other.at), after=_shorter(self.after, other.after))


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)


def _shorter(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((after for after in (one, other) if after is not None), default=None)
