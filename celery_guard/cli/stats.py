"""``guard stats``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.filters import SINCE
from celery_guard.cli.output import JSON, print_json, print_table
from celery_guard.core.wording import spell, stamp

if TYPE_CHECKING:
    from datetime import datetime

    from celery_guard.store.reports import EndedCount, LiveCount, Oldest

__all__ = ["stats"]


@click.command(help="Count runs by state, reason and task; show what waits longest and how near deadlines are.")
@click.option("--since", type=SINCE, default="24h", show_default=True, help="Count runs that ended since.")
@click.option("--all", "everything", is_flag=True, help="Count all that is kept: reads the whole table.")
@JSON
@click.pass_context
def stats(ctx: click.Context, since: Any, everything: bool, as_json: bool) -> None:
    """Show the counts of one namespace."""
    guard = guard_for(ctx)
    reports = reports_for(guard)
    now = guard.runs.clock()
    live, ended = reports.live_counts(), reports.ended_counts(None if everything else since)
    oldest = reports.oldest_queued()
    if as_json:
        print_json(_as_json(live, ended, oldest, now))
        return
    click.echo(f"live, by the database's clock {stamp(now)}:")
    print_table(("state", "task", "runs", "oldest", "next deadline", "late"), [_live_row(one, now) for one in live])
    click.echo(f"\nended {'ever' if everything else f'since {_said(since)}'}:")
    columns = ("state", "reason", "task", "runs", "least left", "mean left", "tight")
    print_table(columns, [_ended_row(one) for one in ended])
    click.echo(f"\noldest waiting for a worker: {_oldest(oldest, now)}")


def _as_json(
    live: Sequence[LiveCount], ended: Sequence[EndedCount], oldest: Oldest | None, now: datetime
) -> dict[str, Any]:
    states: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for waiting in live:
        states[waiting.state.value] += waiting.count
    for ending in ended:
        states[ending.state.value] += ending.count
        reasons[ending.reason.value] += ending.count
    return {
        "now": now,
        "by_state": dict(states),
        "by_reason": dict(reasons),
        "live": [asdict(one) for one in live],
        "ended": [asdict(one) for one in ended],
        "oldest_queued": asdict(oldest) if oldest else None,
    }


def _live_row(one: LiveCount, now: datetime) -> tuple[str, ...]:
    left = one.soonest_deadline - now
    return (one.state.value, one.type, str(one.count), spell(now - one.oldest), spell(left), str(one.late))


def _ended_row(one: EndedCount) -> tuple[str, ...]:
    margins = (spell(timedelta(seconds=margin)) for margin in (one.least_margin, one.mean_margin))
    return (one.state.value, one.reason.value, one.type, str(one.count), *margins, str(one.tight))


def _oldest(oldest: Oldest | None, now: datetime) -> str:
    if oldest is None:
        return "none"
    return f"{oldest.id} ({oldest.type}, queue {oldest.queue}), for {spell(now - oldest.created_at)}"


def _said(since: datetime | timedelta) -> str:
    return f"{spell(since)} ago" if isinstance(since, timedelta) else stamp(since)
