"""What stands on a page: its blocks of code, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "blocks"]

_BLOCK = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the word after it, its text, and where it begins in the page."""

    language: str
    word: str
    text: str
    position: int


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page."""
    return [
        Block(found[2], found[3].strip(), re.sub(f"^{found[1]}", "", found[4], flags=re.MULTILINE), found.start())
        for found in _BLOCK.finditer(page)
    ]
