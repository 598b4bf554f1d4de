"""``guard migrate``."""

from __future__ import annotations

import click

from celery_guard.cli.access import guard_for
from celery_guard.cli.output import JSON, print_json

__all__ = ["migrate"]


@click.command(help="Bring the tables up to date. Safe to repeat, and by several at once.")
@click.option("--sql", is_flag=True, help="Print the PostgreSQL script instead.")
@JSON
@click.pass_context
def migrate(ctx: click.Context, sql: bool, as_json: bool) -> None:
    """Create or upgrade the schema."""
    from celery_guard.store import migrations

    if sql:
        click.echo(migrations.migration_sql())
        return
    migrations.migrate(guard_for(ctx).database)
    if as_json:
        print_json({"schema_version": migrations.SCHEMA_VERSION})
    else:
        click.echo(f"the tables of celery_guard are at version {migrations.SCHEMA_VERSION}")
