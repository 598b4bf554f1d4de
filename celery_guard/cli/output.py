"""How answers look: JSON, a table on a terminal, aligned text everywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

__all__ = ["JSON", "cell", "colour", "print_json", "print_table", "progress", "seconds"]

F = TypeVar("F", bound=Callable[..., Any])

#: ``--json``, for every command.
JSON: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_COLOURS = {
    "succeeded": "green",
    "running": "cyan",
    "retrying": "yellow",
    "failed": "red",
    "dead": "red",
    "cancelled": "bright_black",
    "pass": "green",
    "warn": "yellow",
    "fail": "red",
    "silent": "red",
}


def print_json(value: Any) -> None:
    """Print one JSON document; moments are ISO texts with their zone, durations are seconds."""
    click.echo(json.dumps(value, default=_as_json, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: as a table of ``rich`` on a terminal where that is installed, else as aligned text."""
    if not rows:
        return
    rows = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty() and _print_rich_table(columns, rows):
        return
    upper = [column.upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(upper, *rows, strict=True)]
    for row in (upper, *rows):
        line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def colour(word: str) -> str:
    """Return a state or verdict in its colour; it is dropped where the output is no terminal."""
    context = click.get_current_context(silent=True)
    plain = getattr(getattr(context, "obj", None), "no_color", False)
    return word if plain else click.style(word, fg=_COLOURS.get(word))


def progress(text: str) -> None:
    """Show how far the work is, on one line of a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        click.echo(f"\r{text}\x1b[K", nl=not text, err=True)


def cell(value: str) -> str:
    """Return text that is safe in one line of a terminal."""
    return "".join(char if char.isprintable() else " " for char in value).strip()


def seconds(duration: timedelta | None) -> float | None:
    """Write a duration for programs."""
    return None if duration is None else round(duration.total_seconds(), 6)


def _print_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    context = click.get_current_context(silent=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column.upper(), no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(value, style=_COLOURS.get(value, "")) for value in row))
    Console(no_color=getattr(getattr(context, "obj", None), "no_color", False) or None, highlight=False).print(table)
    return True


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return seconds(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"no JSON for {value!r}")
