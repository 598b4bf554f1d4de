"""Each kind of database with a clock that tests move, and the verbs on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import make_url

from celery_guard.store.database import Database
from celery_guard.store.models import metadata
from celery_guard.store.runs import RunStore
from celery_guard.store.workers import WorkerStore
from tests.infra import servers
from tests.store.lives import NAMESPACE, Clock
from tests.store.wire import Wire


@pytest.fixture(scope="package")
def store_postgres_url(postgres_server: servers.Postgres, postgres_template: str) -> Iterator[str]:
    """One database for all tests of the store: making one costs more than a test."""
    with postgres_server.database(postgres_template) as url:
        yield url


@pytest.fixture
def postgres_url(store_postgres_url: str) -> str:
    """A PostgreSQL database with our tables, and nothing in them."""
    url = make_url(store_postgres_url)
    connection = psycopg2.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    with connection, connection.cursor() as cursor:
        for name in sorted(set(metadata.tables) - {"guard_meta"}):
            cursor.execute(f"DELETE FROM {name}")
    connection.close()
    return store_postgres_url


@pytest.fixture(scope="package")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with our tables, for others to be copied from."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    RunStore(database, NAMESPACE).clock()
    database.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A SQLite file with our tables, and nothing in them."""
    path = shutil.copy(sqlite_template, tmp_path / "guard.db")
    return f"sqlite:///{path}"


@pytest.fixture
def clock() -> Clock:
    """The database's clock, standing still at noon."""
    return Clock()


@pytest.fixture
def database(store_url: str, clock: Clock) -> Iterator[Database]:
    """A database of each kind whose clock the test moves."""
    database = Database(store_url, clock=clock)
    yield database
    database.close()


@pytest.fixture
def runs(database: Database) -> RunStore:
    """The runs of one namespace."""
    return RunStore(database, NAMESPACE)


@pytest.fixture
def workers(database: Database) -> WorkerStore:
    """The workers of one namespace."""
    return WorkerStore(database, NAMESPACE)


@pytest.fixture
def wire(postgres_url: str) -> Iterator[Wire]:
    """A PostgreSQL behind a cable that counts what is asked and can be cut."""
    with Wire(postgres_url) as wire:
        yield wire


@pytest.fixture
def wired_database(wire: Wire, clock: Clock) -> Iterator[Database]:
    """The database at the other end of that cable, with one open connection and a checked schema."""
    database = Database(wire.url, clock=clock)
    RunStore(database, NAMESPACE).clock()
    wire.queries.clear()
    yield database
    database.close()


@pytest.fixture
def wired_runs(wired_database: Database) -> RunStore:
    """The runs at the other end of that cable."""
    return RunStore(wired_database, NAMESPACE)
