"""The app that a command is about, with its guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery_guard.flow.guard import Guard
    from celery_guard.store.reports import ReportStore

__all__ = ["guard_for", "reports_for", "task_named"]


def guard_for(ctx: click.Context, *, tasks: bool = False) -> Guard:
    """Return the guard of the app that ``celery -A`` names.

    Args:
        tasks: import the modules with the app's tasks, as a worker does.
    """
    from celery import _state

    from celery_guard.flow.guard import guard_of

    app = ctx.obj.app
    if app.main == "default" and app is _state.default_app:
        raise click.UsageError("which app? celery -A <your app> guard …")
    if tasks:
        _import_tasks(app)
    app.finalize()
    return guard_of(app)


def reports_for(guard: Guard) -> ReportStore:
    """Return the reports on the app's namespace."""
    from celery_guard.store.reports import ReportStore

    return ReportStore(guard.database, guard.settings.namespace)


def task_named(guard: Guard, name: str) -> Any:
    """Return a guarded task of the app.

    Raises:
        click.ClickException: there is none of this name.
    """
    task = guard.app.tasks.get(name)
    if task is None or not hasattr(type(task), "_guard_bound"):
        raise click.ClickException(f"the app has no guarded task {name!r}")
    return task


def _import_tasks(app: Any) -> None:
    try:
        app.loader.import_default_modules()
    except Exception as error:  # the user's modules may raise anything
        raise click.ClickException(f"the app's tasks can't be imported: {type(error).__name__}: {error}") from None
