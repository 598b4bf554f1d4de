"""``Retry-After``: how long a server asks to be left alone (RFC 9110, section 10.2.3)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["parse_retry_after"]

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")

#: The longest header worth reading; a date takes 29 characters.
_LONGEST = 64


def parse_retry_after(value: Any, now: datetime) -> timedelta | None:
    """Return the delay that a header asks for: seconds, or a date. None when it asks for nothing, or for the past."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**12 else ""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    text = value.strip()
    delay = _in_seconds(text) if _SECONDS.fullmatch(text) else _until(text, now)
    return delay if delay is not None and delay > timedelta(0) else None


def _in_seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except OverflowError:
        return timedelta.max


def _until(text: str, now: datetime) -> timedelta | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) - now
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
