"""``guard redrive``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.chosen import chosen_ids, is_given, one_by_one
from celery_guard.cli.filters import filter_options, read_filter
from celery_guard.cli.output import JSON, print_json
from celery_guard.core.states import TERMINAL, State

if TYPE_CHECKING:
    from celery_guard.store.reports import ReportStore, RunFilter

__all__ = ["redrive"]

#: What a filter means when it names neither state nor reason: what has not succeeded.
_UNHAPPY = TERMINAL - {State.SUCCEEDED}


@click.command(
    help="Submit ended runs again, as new runs: those with these ids, or those that match. A filter takes runs that"
    " failed, died or were cancelled unless it says otherwise, and leaves out what was driven again before."
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@click.option("--again", is_flag=True, help="With a filter: also runs that were driven again before.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@JSON
@click.pass_context
def redrive(ctx: click.Context, /, ids: tuple[str, ...], again: bool, yes: bool, as_json: bool, **chosen: Any) -> None:
    """Redrive runs. Exit code 1: one of them was not."""
    from celery_guard.errors import InvalidOption, RunNotFound
    from celery_guard.flow.redrive import redrive as redrive_run

    guard = guard_for(ctx, tasks=True)
    reports = reports_for(guard)
    wanted = _ended(read_filter(**chosen)) if is_given(chosen) else None
    named = chosen_ids(ids, wanted, lambda given: _fresh(reports, given, again), verb="redrive", yes=yes)
    made: dict[str, str] = {}
    refused: dict[str, str] = {}

    def work(run_id: str) -> None:
        try:
            made[run_id] = redrive_run(run_id, app=guard.app).id
        except (InvalidOption, RunNotFound) as error:
            refused[run_id] = str(error)

    try:
        one_by_one(named, work)
    except BaseException:  # what was done is told, also when the rest can't be
        if made:
            _report(made, refused, as_json)
        raise
    _report(made, refused, as_json)
    if refused:
        ctx.exit(1)


def _ended(given: RunFilter) -> RunFilter:
    states = given.wanted & (TERMINAL if given.states or given.reason else _UNHAPPY)
    if not states:
        raise click.UsageError("only runs that have ended can be driven again: succeeded, failed, dead, cancelled")
    return replace(given, states=tuple(sorted(states)))


def _fresh(reports: ReportStore, wanted: RunFilter, again: bool) -> Iterator[str]:
    known = frozenset() if again else reports.redriven()
    return (run_id for run_id in reports.all_ids(wanted) if run_id not in known)


def _report(made: dict[str, str], refused: dict[str, str], as_json: bool) -> None:
    if as_json:
        runs: list[dict[str, str]] = [{"id": new, "redrive_of": old} for old, new in made.items()]
        print_json({"runs": runs, "refused": [{"id": old, "why": why} for old, why in refused.items()]})
        return
    if not made and not refused:
        click.echo("no run matches", err=True)
    for old, new in made.items():
        click.echo(f"{old} runs again as {new}")
    for why in refused.values():
        click.echo(why, err=True)
