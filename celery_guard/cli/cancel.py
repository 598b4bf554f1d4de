"""``guard cancel``."""

from __future__ import annotations

from typing import Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.chosen import chosen_ids, is_given, one_by_one
from celery_guard.cli.filters import filter_options, read_filter
from celery_guard.cli.output import JSON, print_json
from celery_guard.core.states import LIVE, State

__all__ = ["cancel"]


@click.command(help="End runs now, whether they wait or run: those with these ids, or live ones that match.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@click.option("--yes", is_flag=True, help="Don't ask.")
@JSON
@click.pass_context
def cancel(ctx: click.Context, /, ids: tuple[str, ...], yes: bool, as_json: bool, **chosen: Any) -> None:
    """Cancel runs. Exit code 1: one of those named is not cancelled now."""
    from dataclasses import replace

    from celery_guard.flow.rescue import cancel_run

    guard = guard_for(ctx)
    wanted = read_filter(**chosen) if is_given(chosen) else None
    if wanted is not None:
        live = tuple(sorted(wanted.wanted & LIVE))
        if not live:
            raise click.UsageError("only live runs can be cancelled: queued, running, retrying")
        wanted = replace(wanted, states=live)
    named = chosen_ids(ids, wanted, reports_for(guard).all_ids, verb="cancel", yes=yes)
    outcomes: dict[str, str | None] = {}

    def work(run_id: str) -> None:
        done = cancel_run(guard, run_id)
        run = None if done else guard.runs.find(run_id)
        outcomes[run_id] = State.CANCELLED.value if done else run.state.value if run else None

    one_by_one(named, work)
    _report(outcomes, as_json)
    if ids and any(outcome != State.CANCELLED.value for outcome in outcomes.values()):
        ctx.exit(1)


def _report(outcomes: dict[str, str | None], as_json: bool) -> None:
    if as_json:
        print_json({"runs": [{"id": run_id, "state": state} for run_id, state in outcomes.items()]})
        return
    if not outcomes:
        click.echo("no live run matches", err=True)
    for run_id, state in outcomes.items():
        if state is None:
            click.echo(f"no run has the id {run_id!r}", err=True)
        elif state == State.CANCELLED.value:
            click.echo(f"{run_id} cancelled")
        else:
            click.echo(f"{run_id} had ended before: {state}", err=True)
