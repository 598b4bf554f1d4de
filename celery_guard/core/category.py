"""The words for what an error means."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

__all__ = ["Category", "Classification"]


class Category(str, Enum):
    """What a repeat would do about an error."""

    RETRYABLE = "retryable"
    NON_RETRYABLE = "non_retryable"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Classification:
    """What one rule said about an error.

    Args:
        category: what a repeat would do about it.
        rule: the name of the rule that said so.
        retry_after: how long the error asked to wait.
        trouble: why the rule could not do its work, in words for a log.
    """

    category: Category
    rule: str
    retry_after: timedelta | None = None
    trouble: str | None = None
