"""The database's clock, moved by the test."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery_guard.core.deadline import aware
from celery_guard.errors import InvalidOption

__all__ = ["Clock"]


class Clock:
    """The clock by which runs wait, are late and are rescued. It stands still until the test moves it.

    It shows whole milliseconds, rounded up: SQLite reckons in them.

    Args:
        now: where it starts: an aware moment; the real one, in whole seconds, by default.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = datetime.now(timezone.utc).replace(microsecond=0) if now is None else _whole(_utc(now))

    def __call__(self) -> datetime:
        return self._now

    def advance(self, by: float | timedelta) -> None:
        """Let time pass.

        Args:
            by: how much: seconds or a ``timedelta``.

        Raises:
            InvalidOption: it is negative.
        """
        passed = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if passed < timedelta(0):
            raise InvalidOption(f"a clock is moved forwards only, not by {by!r}")
        self._now = _whole(self._now + passed)

    def move_to(self, moment: datetime) -> None:
        """Let time pass until an aware moment; one that has passed already changes nothing."""
        self._now = max(self._now, _whole(_utc(moment)))


def _whole(moment: datetime) -> datetime:
    return moment + timedelta(microseconds=-moment.microsecond % 1_000)


def _utc(moment: datetime) -> datetime:
    if not isinstance(moment, datetime):
        raise InvalidOption(f"moment must be an aware datetime, not {moment!r}")
    try:
        return aware(moment, "moment")
    except ValueError as error:
        raise InvalidOption(str(error)) from None
