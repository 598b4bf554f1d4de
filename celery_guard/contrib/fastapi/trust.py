"""Saying in so many words that nobody is asked who they are."""

from __future__ import annotations

from typing import Final

__all__ = ["ANYBODY", "Anybody"]


class Anybody:
    """The type of :data:`ANYBODY`."""

    def __repr__(self) -> str:
        return "ANYBODY"


#: In the place of ``authorize`` or ``caller``: whoever knows a run's id may see and change it; all share their keys.
ANYBODY: Final = Anybody()
