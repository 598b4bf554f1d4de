"""Drawing runs for a person: a live table while they move, and a summary when they have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from example_project.scenarios import Scenario
from example_project.verdict import Seen, differences, ended

__all__ = ["live_table", "summary_table"]

COLOURS = {
    "queued": "cyan",
    "running": "bold yellow",
    "retrying": "magenta",
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
    "cancelled": "dim",
}
#: Headings, with a width that keeps the table still while its cells change.
LIVE_COLUMNS = {
    "run": 7,
    "task": 16,
    "state": 9,
    "attempt": 7,
    "next retry in": 13,
    "deadline in": 11,
    "reason": 23,
    "last error": 0,
}
SUMMARY_COLUMNS = dict.fromkeys(("", "scenario", "must end in", "seen", "attempts", "Celery says", "files"), 0)


def live_table(runs: Iterable[Any], *, title: str) -> Table:
    """Draw snapshots of runs as they are now."""
    now = datetime.now(timezone.utc)
    table = _table(title, LIVE_COLUMNS)
    for run in runs:
        table.add_row(*_moving(run, now))
    return table


def summary_table(pairs: Sequence[tuple[Scenario, Seen]]) -> Table:
    """Draw what each run had to end in beside what was seen."""
    table = _table("Expected and seen", SUMMARY_COLUMNS)
    for scenario, seen in pairs:
        table.add_row(*_compared(scenario, seen))
    return table


def _table(title: str, columns: Mapping[str, int]) -> Table:
    """Make a table that gives the last column what the others leave."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    *others, last = columns
    for column in others:
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=columns[column])
    table.add_column(last, no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _moving(run: Any, now: datetime) -> tuple[str, ...]:
    return (
        f"…{run.id[-6:]}",
        run.type.rpartition(".")[2],
        _coloured(str(run.state), str(run.state)),
        f"{run.attempt}/{run.max_attempts}",
        _seconds_until(run.next_retry_at, now),
        "" if ended(run) else _seconds_until(run.deadline_at, now),
        str(run.terminal_reason or ""),
        _first_line(run.last_error),
    )


def _compared(scenario: Scenario, seen: Seen) -> tuple[str, ...]:
    return (
        "[red]✗[/]" if differences(scenario, seen) else "[green]✓[/]",
        scenario.title,
        _coloured(scenario.state, scenario.reason),
        _coloured(seen.state, seen.reason),
        f"{seen.attempts} of {scenario.attempts}",
        seen.raised or seen.celery_state,
        ", ".join(name for name, lines in seen.lines.items() if lines),
    )


def _coloured(state: str, text: str) -> str:
    return f"[{COLOURS[state]}]{text}[/]"


def _seconds_until(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{max((moment - now).total_seconds(), 0):.1f} s"


def _first_line(error: str | None) -> str:
    return escape((error or "").partition("\n")[0])
