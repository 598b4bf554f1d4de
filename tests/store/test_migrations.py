"""The schema: what the models say, made at any time, by anybody, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.exc import IntegrityError

from celery_guard.core.states import Reason, State
from celery_guard.errors import SchemaMismatch
from celery_guard.store.database import Database
from celery_guard.store.migrations import (
    SCHEMA_VERSION,
    VERSION_TABLE,
    check_or_create,
    migrate,
    migration_sql,
)
from celery_guard.store.models import SOUND, metadata
from celery_guard.store.runs import RunStore
from tests.store.lives import NAMESPACE, submitted
from tests.store.races import FORKS, at_once, in_forks


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


@pytest.fixture
def empty_postgres(empty_postgres_url: str) -> Iterator[Database]:
    database = Database(empty_postgres_url)
    yield database
    database.close()


@contextmanager
def connected(url):
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def shape(url):
    """All that a database knows of its tables, by name."""
    with connected(url) as connection:
        tables = inspect(connection)
        return {
            name: {
                "columns": [
                    (column["name"], str(column["type"]), column["nullable"], column["default"])
                    for column in tables.get_columns(name)
                ],
                "key": tables.get_pk_constraint(name),
                "checks": sorted((check["name"], check["sqltext"]) for check in tables.get_check_constraints(name)),
                "indexes": {
                    index["name"]: (
                        index["column_names"],
                        bool(index["unique"]),
                        [str(where) for option, where in index["dialect_options"].items() if option.endswith("_where")],
                    )
                    for index in tables.get_indexes(name)
                },
            }
            for name in tables.get_table_names()
            if name != VERSION_TABLE
        }


def functions(url):
    """The functions that PostgreSQL keeps beside the tables."""
    with connected(url) as connection:
        if connection.dialect.name == "sqlite":
            return []
        ours = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        return connection.scalars(text(ours)).all()


def differences(url):
    def ours(item, name, kind, reflected, other):
        return name != VERSION_TABLE

    with connected(url) as connection:
        context = MigrationContext.configure(connection, opts={"include_object": ours, "compare_server_default": True})
        return compare_metadata(context, metadata)


def meta(url):
    with connected(url) as connection:
        return connection.execute(text("SELECT * FROM guard_meta")).all()


def says(url, version, compatible_from):
    with connected(url) as connection:
        connection.execute(
            text("UPDATE guard_meta SET schema_version = :version, compatible_from = :compatible_from"),
            {"version": version, "compatible_from": compatible_from},
        )


def upgrade_to(revision, url):
    """Do what `migrate` did when that revision was the newest."""
    config = Config()
    config.set_main_option("script_location", "celery_guard:store/migrations")
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)

    def steps(found, context):
        return scripts._upgrade_revs(revision, found)

    with connected(url) as connection, EnvironmentContext(config, scripts, fn=steps) as environment:
        environment.configure(connection=connection, version_table=VERSION_TABLE)
        with environment.begin_transaction():
            environment.run_migrations()


def test_an_upgraded_database_equals_the_models(empty, empty_url):
    migrate(empty)

    assert differences(empty_url) == []


def test_an_upgraded_database_has_the_constraints_and_partial_indexes_of_the_models(empty, empty_url):
    with connected(empty_url) as connection:
        metadata.create_all(connection)
    expected = shape(empty_url), functions(empty_url)
    with connected(empty_url) as connection:
        metadata.drop_all(connection)
    assert (shape(empty_url), functions(empty_url)) == ({}, [])

    migrate(empty)

    assert (shape(empty_url), functions(empty_url)) == expected


def test_every_index_of_runs_is_partial(empty, empty_url):
    migrate(empty)

    assert all(len(where) == 1 for _, _, where in shape(empty_url)["task_run"]["indexes"].values())


@pytest.mark.parametrize(
    "unsound",
    [
        pytest.param("state = 'succeeded', finished_at = created_at", id="an ending without a reason"),
        pytest.param("state = 'lost'", id="no state"),
        pytest.param("state = 'dead', terminal_reason = 'cancelled', finished_at = created_at", id="another's reason"),
        pytest.param("finished_at = created_at", id="a live row with the moment of its end"),
        pytest.param("state = 'succeeded', terminal_reason = 'succeeded'", id="an ending without its moment"),
        pytest.param("attempt = -1", id="less than no attempt"),
        pytest.param("attempt = max_attempts + 1", id="an attempt too many"),
        pytest.param("max_attempts = 0", id="no attempt allowed"),
        pytest.param("error_category = 'odd'", id="no category"),
        pytest.param("permit = 'lent'", id="no permit"),
    ],
)
def test_an_unsound_row_is_refused(store_url, unsound):
    database = Database(store_url)
    submitted(RunStore(database, NAMESPACE))
    database.close()

    with pytest.raises(IntegrityError, match=r"task_run_\w+_check"), connected(store_url) as connection:
        connection.execute(text(f"UPDATE task_run SET {unsound}"))


def test_the_function_of_postgres_says_what_checks_say(postgres_url):
    """Of all rows, those with NULL where there should be none among them."""
    checks = " AND ".join(f"({condition}) IS NOT FALSE" for condition in SOUND.values())
    arguments = "state, terminal_reason, finished_at, attempt, max_attempts, error_category, permit"
    rows = f"""
        SELECT task_run_is_sound({arguments}) IS NOT FALSE AS allowed, {checks} AS sound
        FROM unnest(ARRAY[{_texts("state", *State)}]) AS state,
            unnest(ARRAY[{_texts("reason", *Reason)}]) AS terminal_reason,
            unnest(ARRAY[NULL, now()]) AS finished_at,
            unnest(ARRAY[NULL, -1, 0, 1, 2]) AS attempt,
            unnest(ARRAY[NULL, 0, 1]) AS max_attempts,
            unnest(ARRAY[{_texts("odd", "unknown")}]) AS error_category,
            unnest(ARRAY[{_texts("odd", "granted")}]) AS permit
    """
    with connected(postgres_url) as connection:
        found = connection.execute(text(f"SELECT allowed, sound, count(*) FROM ({rows}) AS rows GROUP BY 1, 2")).all()

    assert {(allowed, sound) for allowed, sound, _ in found} == {(True, True), (False, False)}


def _texts(*values):
    return ", ".join(["NULL", *(f"'{value}'" for value in values)])


def test_migrating_again_changes_nothing(empty, empty_url):
    migrate(empty)
    before = shape(empty_url), meta(empty_url)

    migrate(empty)

    assert (shape(empty_url), meta(empty_url)) == before


def test_the_migrated_schema_says_its_version(empty, empty_url):
    migrate(empty)

    ((_, store_id, version, compatible_from),) = meta(empty_url)
    assert (version, compatible_from <= SCHEMA_VERSION, len(store_id)) == (SCHEMA_VERSION, True, 32)


@FORKS
def test_several_processes_migrate_at_once(empty_url):
    def one():
        database = Database(empty_url)
        migrate(database)
        database.close()

    in_forks(3, one)

    assert differences(empty_url) == []
    assert len(meta(empty_url)) == 1


def test_two_threads_migrate_at_once(empty, empty_url):
    at_once(lambda: migrate(empty), lambda: migrate(empty))

    assert len(meta(empty_url)) == 1


def test_a_migration_that_fails_leaves_nothing_behind(empty, empty_url):
    with connected(empty_url) as connection:
        connection.execute(text("CREATE TABLE guard_meta (wrong INTEGER)"))

    with pytest.raises(Exception, match="guard_meta"):
        migrate(empty)

    assert list(shape(empty_url)) == ["guard_meta"]


def test_tables_of_an_application_stay_as_they_are(empty, empty_url):
    with connected(empty_url) as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))

    migrate(empty)

    with connected(empty_url) as connection:
        assert connection.scalars(text("SELECT version_num FROM alembic_version")).all() == ["theirs"]


def test_sqlite_makes_its_schema_on_first_use(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")

    submitted(RunStore(database, NAMESPACE))

    database.close()
    assert differences(database.url) == []


@FORKS
def test_sqlite_makes_its_schema_once_for_several_processes(tmp_path):
    url = f"sqlite:///{tmp_path / 'new.db'}"

    def one():
        database = Database(url)
        RunStore(database, NAMESPACE).clock()
        database.close()

    in_forks(6, one)

    assert differences(url) == []
    assert len(meta(url)) == 1


def test_sqlite_makes_its_schema_once_for_several_threads(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    runs = RunStore(database, NAMESPACE)

    at_once(*[runs.clock] * 6)

    database.close()
    assert len(meta(database.url)) == 1


def test_sqlite_brings_an_older_schema_up_to_date_by_itself(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    migrate(database)
    says(database.url, version=0, compatible_from=0)

    check_or_create(database)

    database.close()
    assert differences(database.url) == []


def test_the_first_schema_is_upgraded_and_keeps_its_rows(empty, empty_url):
    upgrade_to("0001", empty_url)
    ((_, store_id, version, _),) = meta(empty_url)
    with connected(empty_url) as connection:
        connection.execute(text("INSERT INTO task_effect VALUES ('run-1', 'pay', '{}', '2026-01-01 12:00:00+00')"))

    migrate(empty)

    assert version == 1
    assert differences(empty_url) == []
    assert [(row.store_id, row.schema_version) for row in meta(empty_url)] == [(store_id, SCHEMA_VERSION)]
    with connected(empty_url) as connection:
        assert connection.scalar(text("SELECT count(*) FROM task_effect")) == 1


def test_postgres_never_makes_its_schema_by_itself(empty_postgres, empty_postgres_url):
    with pytest.raises(SchemaMismatch, match=r"missing; run: celery -A <your app> guard migrate"):
        RunStore(empty_postgres, NAMESPACE).clock()

    assert shape(empty_postgres_url) == {}


def test_postgres_refuses_an_older_schema_with_the_command(empty_postgres, empty_postgres_url):
    migrate(empty_postgres)
    says(empty_postgres_url, version=0, compatible_from=0)

    with pytest.raises(
        SchemaMismatch, match=rf"version 0.* needs {SCHEMA_VERSION}; run: celery -A <your app> guard migrate"
    ):
        RunStore(empty_postgres, NAMESPACE).clock()


def test_a_schema_for_newer_code_is_refused(empty, empty_url):
    migrate(empty)
    says(empty_url, version=9, compatible_from=9)

    with pytest.raises(SchemaMismatch, match=r"version 9.* upgrade celery-guard"):
        RunStore(empty, NAMESPACE).clock()


def test_a_newer_schema_that_is_compatible_is_used(empty, empty_url):
    migrate(empty)
    says(empty_url, version=9, compatible_from=SCHEMA_VERSION)

    submitted(RunStore(empty, NAMESPACE))

    assert RunStore(empty, NAMESPACE).find("run-1") is not None


def test_a_schema_that_was_refused_is_used_once_it_was_made(empty_postgres):
    runs = RunStore(empty_postgres, NAMESPACE)
    with pytest.raises(SchemaMismatch):
        runs.clock()

    migrate(empty_postgres)

    submitted(runs)


def test_tables_that_vanish_are_missed_with_the_command(empty, empty_url):
    migrate(empty)
    runs = RunStore(empty, NAMESPACE)
    runs.clock()
    with connected(empty_url) as connection:
        connection.execute(text("DROP TABLE task_run"))

    with pytest.raises(SchemaMismatch, match="guard migrate"):
        runs.find("run-1")


def test_the_printed_script_makes_the_same_schema(empty_postgres, empty_postgres_url, postgres_url):
    url = make_url(empty_postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg2.connect(url)
    with connection, connection.cursor() as cursor:
        cursor.execute(migration_sql())
    connection.close()

    assert shape(empty_postgres_url) == shape(postgres_url)
    assert functions(empty_postgres_url) == functions(postgres_url)
    assert differences(empty_postgres_url) == []


def test_a_schema_made_by_the_printed_script_is_accepted_and_up_to_date(empty_postgres, empty_postgres_url):
    with connected(empty_postgres_url) as connection:
        connection.exec_driver_sql(migration_sql())
    before = meta(empty_postgres_url)

    check_or_create(empty_postgres)
    migrate(empty_postgres)

    assert meta(empty_postgres_url) == before
