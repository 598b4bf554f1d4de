"""The runs that a command shall change: named one by one, or chosen by a filter, counted and confirmed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.output import progress

if TYPE_CHECKING:
    from celery_guard.store.reports import RunFilter

__all__ = ["chosen_ids", "is_given", "one_by_one"]


def is_given(chosen: dict[str, Any]) -> bool:
    """Say whether any option of a filter was used."""
    return any(value not in (None, ()) for value in chosen.values())


def chosen_ids(
    ids: tuple[str, ...], wanted: RunFilter | None, find: Callable[[RunFilter], Iterable[str]], *, verb: str, yes: bool
) -> list[str]:
    """Return the ids that were named, or those that match, once the user has agreed to their number.

    Raises:
        click.UsageError: neither, or both, or nobody is there to agree.
    """
    if bool(ids) == (wanted is not None):
        raise click.UsageError(f"name the runs to {verb} by their ids, or choose them by options such as --state")
    if wanted is None:
        return list(dict.fromkeys(ids))
    found = list(islice(find(wanted), 100_000))
    if not found or yes:
        return found
    count = f"{len(found)} run{'s match' if len(found) > 1 else ' matches'}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{count}; add --yes to {verb} them")
    click.confirm(f"{count}. {verb.capitalize()} them?", abort=True, err=True)
    return found


def one_by_one(ids: list[str], work: Callable[[str], None]) -> None:
    """Do the work for each run and show how far it is."""
    for number, run_id in enumerate(ids, 1):
        work(run_id)
        if len(ids) > 1:
            progress(f"{number} of {len(ids)}")
    if len(ids) > 1:
        progress("")
