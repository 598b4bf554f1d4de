"""``guard show``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_guard.cli.access import guard_for, reports_for
from celery_guard.cli.output import JSON, cell, colour, print_json, print_table, spell, stamp
from celery_guard.cli.runs import run_as_json, said_reason
from celery_guard.cli.story import Chapter, chapters, workers_of
from celery_guard.core.states import State

if TYPE_CHECKING:
    from celery_guard.store.records import TaskRun
    from celery_guard.store.reports import Life

__all__ = ["show"]

_COLUMNS = ("attempt", "outcome", "waited", "started", "took", "left", "rule", "error", "worker", "then waited")

#: How much of a result or an error is shown to people.
_SHOWN = 200


@click.command(help="Tell the life of a run: each attempt with its times, its fault and what the deadline left.")
@click.argument("run_id", metavar="ID")
@click.option("--traceback", "tracebacks", is_flag=True, help="Print the stored tracebacks, too.")
@JSON
@click.pass_context
def show(ctx: click.Context, run_id: str, tracebacks: bool, as_json: bool) -> None:
    """Show one run."""
    guard = guard_for(ctx)
    reports = reports_for(guard)
    run, life = guard.runs.find(run_id, history=True), reports.life(run_id)
    if run is None or life is None:
        raise click.ClickException(f"no run has the id {run_id!r} in the namespace {guard.settings.namespace!r}")
    story = chapters(run, life, reports.places(workers_of(run, life)))
    if as_json:
        print_json({**run_as_json(run), "now": life.now, "result": _result(run), "attempts": list(map(asdict, story))})
        return
    click.echo(f"{cell(run.id)}  {cell(run.type)}  {colour(run.state.value)}{_after_colon(said_reason(run))}")
    for name, value in _facts(run, life):
        if value:
            click.echo(f"  {name:<13} {cell(value)}")
    click.echo()
    print_table(_COLUMNS, [_row(chapter) for chapter in story])
    if tracebacks:
        _print_tracebacks(story)


def _facts(run: TaskRun, life: Life) -> Iterator[tuple[str, str]]:
    yield "attempts", _attempts(run)
    yield "queue", run.queue
    yield "submitted", f"{stamp(run.created_at)}, {spell(life.now - run.created_at)} ago"
    if run.finished_at is not None:
        yield "ended", f"{stamp(run.finished_at)}, {spell(run.finished_at - run.created_at)} after its submission"
    yield "deadline", f"{stamp(run.deadline_at)}, {_left(run, life)}"
    if run.next_retry_at is not None and not run.is_terminal:
        yield "next attempt", f"{stamp(run.next_retry_at)}, in {spell(run.next_retry_at - life.now)}"
    if run.state is State.QUEUED and run.next_retry_at is None:
        yield "waits", f"for a worker; published {life.publishes} times"
    yield "owed", "Celery is not told the ending yet" if run.owed else ""
    yield "error", f"{run.last_error} ({run.error_category})"[:_SHOWN] if run.last_error else ""
    if run.state is State.SUCCEEDED:
        yield "result", json.dumps(_result(run), ensure_ascii=False)[:_SHOWN]
    for name in ("idempotency_key", "parent_id", "root_id", "redrive_of", "same_as"):
        yield name.removeprefix("idempotency_").removesuffix("_id").replace("_", " "), getattr(run, name) or ""
    yield "meta", " ".join(f"{name}={value}" for name, value in run.meta.items())


def _attempts(run: TaskRun) -> str:
    more = []
    if run.unknown_faults:
        more.append(f"{run.unknown_faults} of them with an unknown fault")
    if run.snoozes:
        more.append(f"put off {run.snoozes} times")
    return ", ".join([f"{run.attempt} of {run.max_attempts}", *more])


def _left(run: TaskRun, life: Life) -> str:
    left = run.deadline_at - (run.finished_at or life.now)
    late = left.total_seconds() < 0
    verb = "were left" if run.is_terminal else "are left"
    return f"{spell(-left)} too late" if late else f"{spell(left)} {verb}"


def _row(chapter: Chapter) -> tuple[str, ...]:
    where = f"{chapter.host}:{chapter.pid}" if chapter.host else (chapter.worker_id or "")
    fault = f"{chapter.error_type}: {chapter.error or ''}" if chapter.error_type else (chapter.error or "")
    return (
        str(chapter.attempt),
        chapter.outcome,
        spell(chapter.waited),
        stamp(chapter.started_at),
        spell(chapter.took),
        spell(chapter.left),
        chapter.rule or "",
        fault[:_SHOWN],
        where,
        spell(chapter.delay),
    )


def _print_tracebacks(story: Sequence[Chapter]) -> None:
    for chapter in story:
        if chapter.traceback:
            click.echo(f"\nattempt {chapter.attempt}:")
            for line in chapter.traceback.splitlines():
                click.echo(f"  {''.join(char for char in line if char.isprintable())}")


def _result(run: TaskRun) -> Any:
    """The stored result of a run that succeeded, as its serializer wrote it where that is not JSON."""
    if run.state is not State.SUCCEEDED or run.encoded_result is None:
        return None
    try:
        return json.loads(run.encoded_result)
    except ValueError:
        return run.encoded_result


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""
