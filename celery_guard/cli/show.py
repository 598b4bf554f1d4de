"""``guard show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.output import JSON, cell, colour, print_json, print_table
from celery_guard.cli.runs import run_as_json
from celery_guard.core.wording import spell, stamp
from celery_guard.observe.story import SHOWN, Chapter, Story, facts, said_reason, stored_result, tell

__all__ = ["show"]

_COLUMNS = ("attempt", "outcome", "waited", "started", "took", "left", "rule", "error", "worker", "then waited")


@click.command(help="Tell the life of a run: each attempt with its times, its fault and what the deadline left.")
@click.argument("run_id", metavar="ID")
@click.option("--traceback", "tracebacks", is_flag=True, help="Print the stored tracebacks, too.")
@click.option(
    "--html",
    "page",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Draw it, too: one HTML page; - prints that alone.",
)
@JSON
@click.pass_context
def show(ctx: click.Context, run_id: str, tracebacks: bool, page: IO[str] | None, as_json: bool) -> None:
    """Show one run."""
    guard = guard_for(ctx)
    story = tell(run_id, guard.runs, reports_for(guard))
    if story is None:
        raise click.ClickException(f"no run has the id {run_id!r} in the namespace {guard.settings.namespace!r}")
    if page is not None:
        from celery_guard.observe.timeline import timeline

        page.write(timeline(story))
        if page.name == "-":
            return
    if as_json:
        print_json(_as_json(story))
        return
    _print(story)
    if tracebacks:
        _print_tracebacks(story.chapters)


def _as_json(story: Story) -> dict[str, object]:
    attempts = [asdict(chapter) for chapter in story.chapters]
    more = {"now": story.life.now, "result": stored_result(story.run), "attempts": attempts}
    return {**run_as_json(story.run), **more}


def _print(story: Story) -> None:
    run = story.run
    click.echo(f"{cell(run.id)}  {cell(run.type)}  {colour(run.state.value)}{_after_colon(said_reason(run))}")
    for name, value in facts(story):
        if value:
            click.echo(f"  {name:<13} {cell(value)}")
    click.echo()
    print_table(_COLUMNS, [_row(chapter) for chapter in story.chapters])


def _row(chapter: Chapter) -> tuple[str, ...]:
    return (
        str(chapter.attempt),
        chapter.outcome,
        spell(chapter.waited),
        stamp(chapter.started_at),
        spell(chapter.took),
        spell(chapter.left),
        chapter.rule or "",
        chapter.fault[:SHOWN],
        chapter.place,
        spell(chapter.delay),
    )


def _print_tracebacks(story: Sequence[Chapter]) -> None:
    for chapter in story:
        if chapter.traceback:
            click.echo(f"\nattempt {chapter.attempt}:")
            for line in chapter.traceback.splitlines():
                click.echo(f"  {''.join(char for char in line if char.isprintable())}")


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""
