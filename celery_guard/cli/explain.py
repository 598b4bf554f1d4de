"""``guard explain``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING

import click

from celery_guard.cli.access import guard_for, task_named
from celery_guard.cli.output import JSON, print_json

if TYPE_CHECKING:
    from celery_guard.core.explain import Explanation
    from celery_guard.flow.guard import Guard

__all__ = ["explain"]


@click.command(
    help="Say what an error means: a dotted class name such as requests.exceptions.Timeout, or an HTTP status."
)
@click.argument("error")
@click.option("--task", help="Ask as this task, with its own rules and settings.")
@click.option("--attempt", type=click.IntRange(1), default=1, show_default=True, help="The attempt that fails.")
@JSON
@click.pass_context
def explain(ctx: click.Context, error: str, task: str | None, attempt: int, as_json: bool) -> None:
    """Explain one error."""
    guard = guard_for(ctx, tasks=task is not None)
    _import_module_of(error)
    try:
        found = _explained(guard, error, task, attempt)
    except ValueError as refused:
        raise click.BadParameter(str(refused), param_hint="ERROR") from None
    if as_json:
        print_json({**asdict(found), "next": found.next})
    else:
        click.echo(str(found))


def _explained(guard: Guard, error: str, task: str | None, attempt: int) -> Explanation:
    if task is not None:
        from celery_guard.flow.explain import explain as explain_for

        return explain_for(error, task_named(guard, task), attempt=attempt)
    from celery_guard.core.decide import Claim
    from celery_guard.core.explain import explain as explain_claim
    from celery_guard.core.faults import classify

    settings, now = guard.settings.task, datetime.now(timezone.utc)
    claim = Claim("", "", attempt, settings.max_attempts, 0, now + settings.deadline)
    return explain_claim(
        error,
        settings.policy,
        claim,
        now=now,
        ask=lambda example: classify(example, now=now, configured=guard.settings.configured),
        limit=settings.error_max_length,
    )


def _import_module_of(name: str) -> None:
    """Import what defines the class, so that its parents are known."""
    module, _, attribute = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return
    try:
        known = hasattr(import_module(module), attribute)
    except Exception:  # importing may raise anything
        known = False
    if not known:
        click.echo(f"{name} can't be imported here: only its name is known, not its parents", err=True)
