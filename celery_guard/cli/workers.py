"""``guard workers``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.output import JSON, print_json, print_table
from celery_guard.core.wording import spell, stamp

if TYPE_CHECKING:
    from celery_guard.store.reports import WorkerReport

__all__ = ["workers"]

_COLUMNS = ("worker", "status", "host", "pid", "started", "last beat", "running", "oldest", "reserved")


@click.command(help="List the workers of this app, as their heartbeats show them.")
@click.option("--stopped", type=click.IntRange(0, 10_000), default=0, help="Show so many that have stopped, too.")
@JSON
@click.pass_context
def workers(ctx: click.Context, stopped: int, as_json: bool) -> None:
    """List workers."""
    guard = guard_for(ctx)
    found = reports_for(guard).workers(stopped=stopped)
    patience = guard.settings.rescue_after
    if as_json:
        print_json({"workers": [_as_json(one, patience) for one in found]})
        return
    print_table(_COLUMNS, [_row(one, patience) for one in found])
    if not found:
        click.echo("no worker is up", err=True)


def status(worker: WorkerReport, patience: timedelta) -> str:
    """Say how a worker looks from here. Nobody is rescued on this word: it compares with one clock, and once."""
    if worker.stopped_at is not None:
        return "stopped"
    return "silent" if worker.silent_for >= patience else "beating"


def _as_json(worker: WorkerReport, patience: timedelta) -> dict[str, Any]:
    return {**asdict(worker), "status": status(worker, patience)}


def _row(worker: WorkerReport, patience: timedelta) -> tuple[str, ...]:
    return (
        worker.id,
        status(worker, patience),
        worker.host,
        str(worker.pid),
        stamp(worker.started_at),
        f"{spell(worker.silent_for)} ago",
        str(worker.running),
        stamp(worker.oldest_running),
        str(worker.reserved),
    )
