"""``guard runs``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.filters import CursorText, filter_options, read_filter
from celery_guard.cli.output import JSON, print_json, print_table
from celery_guard.core.wording import stamp
from celery_guard.observe.story import said_reason

if TYPE_CHECKING:
    from celery_guard.store.records import TaskRun
    from celery_guard.store.reports import Cursor

__all__ = ["run_as_json", "runs"]

_COLUMNS = ("id", "state", "reason", "task", "attempt", "submitted", "ended", "deadline", "error")


@click.command(help="List runs, newest first: by the moment they ended or, while live, were submitted.")
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--after", type=CursorText(), help="Go on where a page ended.")
@JSON
@click.pass_context
def runs(ctx: click.Context, /, limit: int, after: Any, as_json: bool, **chosen: Any) -> None:
    """List a page of runs."""
    page = reports_for(guard_for(ctx)).runs(read_filter(**chosen), limit=limit, after=after)
    following = _written(page.next) if page.next else None
    if as_json:
        print_json({"runs": [run_as_json(run) for run in page.runs], "next": following})
        return
    print_table(_COLUMNS, [_row(run) for run in page.runs])
    if not page.runs:
        click.echo("no run matches", err=True)
    if following:
        click.echo(f"there are more: --after {shlex.quote(following)}", err=True)


def run_as_json(run: TaskRun) -> dict[str, Any]:
    """Return a run for programs: its row without the result."""
    row = asdict(run)
    del row["encoded_result"], row["attempts"]
    return row


def _row(run: TaskRun) -> tuple[str, ...]:
    return (
        run.id,
        run.state.value,
        said_reason(run),
        run.type,
        f"{run.attempt}/{run.max_attempts}",
        stamp(run.created_at),
        stamp(run.finished_at),
        stamp(run.deadline_at),
        (run.last_error or "")[:80],
    )


def _written(cursor: Cursor) -> str:
    return f"{cursor.at.isoformat()}/{cursor.id}"
