"""``guard prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_guard.cli.access import guard_for
from celery_guard.cli.output import JSON, print_json, progress
from celery_guard.core.states import TERMINAL, State
from celery_guard.core.wording import spell

if TYPE_CHECKING:
    from celery_guard.flow.guard import Guard

__all__ = ["prune"]

#: How many runs one transaction deletes; it may be killed at any moment.
_BATCH = 1_000


@click.command(help="Delete ended runs that are older than guard_retention. Workers do so, too, little by little.")
@JSON
@click.pass_context
def prune(ctx: click.Context, as_json: bool) -> None:
    """Prune until nothing is left to delete."""
    guard = guard_for(ctx)
    deleted = dict.fromkeys(sorted(TERMINAL), 0)
    try:
        for state in deleted:
            while count := _prune(guard, state):
                deleted[state] += count
                progress(f"{sum(deleted.values())} runs deleted")
    except BaseException:  # what was done is told, also when the rest can't be
        if any(deleted.values()):
            _report(guard, deleted, as_json)
        raise
    _report(guard, deleted, as_json)


def _prune(guard: Guard, state: State) -> int:
    age, key_age = guard.settings.retention[state.value], guard.settings.task.idempotency_ttl
    return guard.runs.prune(state, age, key_age, limit=_BATCH)


def _report(guard: Guard, deleted: dict[State, int], as_json: bool) -> None:
    progress("")
    if as_json:
        print_json({"deleted": {state.value: count for state, count in deleted.items()}})
        return
    for state, count in deleted.items():
        click.echo(f"{state}: {count} deleted that had ended more than {spell(guard.settings.retention[state])} ago")
