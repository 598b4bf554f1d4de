"""The schema, as Alembic migrations with a version table of their own."""

from __future__ import annotations

import io
import logging
from typing import Any

from sqlalchemy import text

from celery_guard.errors import SchemaMismatch
from celery_guard.store.database import Database

__all__ = ["SCHEMA_VERSION", "check_or_create", "migrate", "migration_sql"]

#: The schema that this code was written for. It also runs on newer ones that say they are compatible with it.
SCHEMA_VERSION = 3

VERSION_TABLE = "celery_guard_version"
COMMAND = "celery -A <your app> guard migrate"


def migrate(database: Database) -> None:
    """Bring the schema up to date. Safe to run at any time, by several processes at once."""
    with database.connection() as connection:
        if database.is_sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7163283414571)")
        try:
            _upgrade(connection=connection)
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")


def migration_sql() -> str:
    """Return the PostgreSQL script of all migrations, for those who run SQL by hand."""
    script = io.StringIO()
    _upgrade(script=script)
    return script.getvalue()


def check_or_create(database: Database) -> None:
    """Refuse a schema that does not fit this code. SQLite, the embedded store, makes its schema on first use.

    Raises:
        SchemaMismatch: the text says which command to run.
    """
    with database.connection() as connection:
        found = _versions(database, connection)
    if found is None:
        if not database.is_sqlite:
            raise SchemaMismatch(f"the tables of celery_guard are missing; run: {COMMAND}")
        return migrate(database)
    version, compatible_from = found
    if version < SCHEMA_VERSION:
        if database.is_sqlite:
            return migrate(database)
        raise SchemaMismatch(f"the schema is at version {version}, this code needs {SCHEMA_VERSION}; run: {COMMAND}")
    if compatible_from > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the schema (version {version}) needs code of schema {compatible_from} or newer, and this is"
            f" {SCHEMA_VERSION}; upgrade celery-guard"
        )


def _versions(database: Database, connection: Any) -> tuple[int, int] | None:
    dialect = connection.dialect
    if not dialect.has_table(connection, "guard_meta"):
        return None
    row = connection.execute(text("SELECT schema_version, compatible_from FROM guard_meta")).first()
    return (int(row[0]), int(row[1])) if row else None


def _upgrade(connection: Any = None, script: io.StringIO | None = None) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "celery_guard:store/migrations")
    config.set_main_option("path_separator", "os")
    directory = ScriptDirectory.from_config(config)

    def steps(revision: Any, context: Any) -> Any:
        return directory._upgrade_revs("head", revision)

    logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)
    with EnvironmentContext(config, directory, fn=steps, as_sql=script is not None) as environment:
        environment.configure(
            connection=connection,
            dialect_name="postgresql" if connection is None else None,
            output_buffer=script,
            version_table=VERSION_TABLE,
            transactional_ddl=False,
        )
        environment.run_migrations()
