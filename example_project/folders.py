"""Where the shop keeps its files: everything lives below one working folder, ``SHOP_HOME``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["exports", "home", "mails", "whole_file"]


def home() -> Path:
    """Return the working folder, always absolute: the worker, Flower and the caller must mean the same one."""
    return Path(os.environ.get("SHOP_HOME", ".demo")).resolve()


def exports() -> Path:
    """Return the folder of CSV exports; make it on first use."""
    return _made(home() / "exports")


def mails() -> Path:
    """Return the folder of the mails sent; make it on first use."""
    return _made(home() / "mails")


@contextmanager
def whole_file(target: Path) -> Iterator[TextIO]:
    """Write a file that appears whole or not at all: a process killed half-way leaves only a ``.part``."""
    part = target.with_name(f"{target.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        yield file
    os.replace(part, target)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
