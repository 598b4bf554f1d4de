"""``celery -A app guard …``: for the people who run it."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand

__all__ = ["guard"]


@click.group(help="Look after guarded tasks: their schema, their runs.")
def guard() -> None:
    """Group the commands of celery_guard."""


@guard.command(cls=CeleryCommand, help="Bring the tables up to date. Safe to repeat.")
@click.option("--sql", is_flag=True, help="Print the PostgreSQL script instead.")
@click.pass_context
def migrate(ctx: Any, sql: bool) -> None:
    """Create or upgrade the schema."""
    from celery_guard.errors import GuardError
    from celery_guard.flow.guard import guard_of
    from celery_guard.store import migrations

    if sql:
        click.echo(migrations.migration_sql())
        return
    try:
        migrations.migrate(guard_of(ctx.obj.app).database)
    except GuardError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"the tables of celery_guard are at version {migrations.SCHEMA_VERSION}")
