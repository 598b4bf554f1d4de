"""``guard check``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from celery_guard.cli.access import guard_for
from celery_guard.cli.output import JSON, cell, colour, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_guard.cli.preflight.finding import Finding, Result

__all__ = ["check"]

#: How many tasks a line names.
_NAMED = 4


@click.command(help="Go through the list before an app goes live: pass, warn or fail, why, and what to do.")
@JSON
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Check the app, its tasks, its database and its broker. Exit code 1: something fails."""
    from celery_guard.cli.preflight import CHECKS, preflight
    from celery_guard.cli.preflight.finding import Result, fail, guarded_tasks
    from celery_guard.errors import InvalidOption

    names: list[str] = []
    try:
        guard = guard_for(ctx, tasks=True)
        names += [task.name for task in guarded_tasks(guard.app)]
        results = list(preflight(guard.app, guard))
    except InvalidOption as refused:  # by the settings, or by a task
        results = [Result(CHECKS[0].name, CHECKS[0].question, fail(str(refused), "correct it"))]
    counts = Counter(result.finding.level.value for result in results)
    if as_json:
        print_json({"ok": not counts["fail"], "checks": [_as_json(result) for result in results]})
    else:
        _print(results, names)
        click.echo(f"\n{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail")
    if counts["fail"]:
        ctx.exit(1)


def _print(results: Sequence[Result], everything: Sequence[str]) -> None:
    width = max(len(result.check) for result in results)
    for result in results:
        finding = result.finding
        click.echo(
            f"{colour(finding.level.value)}  {result.check:<{width}}  {cell(finding.why)}{_named(finding, everything)}"
        )
        if finding.do:
            click.echo(f"{'':<{width + 8}}do: {cell(finding.do)}")


def _named(finding: Finding, everything: Sequence[str]) -> str:
    if not finding.tasks:
        return ""
    if len(everything) > 1 and list(finding.tasks) == list(everything):
        return " [every guarded task]"
    more = len(finding.tasks) - _NAMED
    return f" [{', '.join(finding.tasks[:_NAMED])}{f' and {more} more' if more > 0 else ''}]"


def _as_json(result: Result) -> dict[str, object]:
    finding = result.finding
    return {
        "check": result.check,
        "level": finding.level.value,
        "question": result.question,
        "why": finding.why,
        "do": finding.do,
        "tasks": list(finding.tasks),
    }
