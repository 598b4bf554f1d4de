"""A shop on each database, and its command line in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery, _state
from celery.app import builtins
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_guard.cli import guard
from celery_guard.flow.guard import Guard, guard_of
from celery_guard.store.models import metadata
from tests.cli.apps.shop import open_shop
from tests.infra.servers import Postgres


@dataclass(frozen=True)
class Shop:
    """An app, and what its people type."""

    app: Celery

    @property
    def guard(self) -> Guard:
        return guard_of(self.app)

    def run(self, *words: str, stdin: str | None = None) -> Result:
        """Call ``celery -A shop guard`` with these words; an exception that is no exit fails the test."""
        context = CLIContext(app=self.app, no_color=False, workdir=None)
        result = CliRunner().invoke(guard, words, obj=context, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *words: str) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self.run(*words, "--json").stdout)

    def apply(self, name: str, *args: Any, **options: Any) -> str:
        """Run a task to its end, here and now; return the run's id."""
        return self.app.tasks[f"shop.{name}"].apply(args, **options).id

    def submit(self, name: str, *args: Any, **options: Any) -> str:
        """Submit a run that no worker will take; return its id."""
        return self.app.tasks[f"shop.{name}"].apply_async(args, **options).id


@pytest.fixture(scope="session")
def one_database(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """A PostgreSQL database for all tests here."""
    with postgres_server.database(postgres_template) as url:
        yield url


@pytest.fixture
def postgres_url(one_database: str) -> Iterator[str]:
    """A PostgreSQL database with nothing in its tables: emptying them is faster than making them."""
    yield one_database
    names = ", ".join(table.name for table in metadata.sorted_tables if table.name != "guard_meta")
    Postgres(one_database).execute(f"TRUNCATE {names}")


@pytest.fixture(autouse=True)
def _apps_of_their_own() -> Iterator[None]:
    """Leave Celery's current app as it was; take no tasks that other modules give to every app."""
    before, finalizers = (_state._tls.current_app, _state.default_app), set(_state._on_app_finalizers)
    _state._on_app_finalizers.intersection_update({one for one in finalizers if one.__module__ == builtins.__name__})
    yield
    _state._on_app_finalizers.update(finalizers)
    _state._tls.current_app, _state.default_app = before


@pytest.fixture
def open_app() -> Iterator[Any]:
    """Make shops; each is closed after the test."""
    shops: list[Shop] = []

    def start(runs: str, broker: str = "memory://", **config: Any) -> Shop:
        shops.append(Shop(open_shop(runs, broker, **config)))
        return shops[-1]

    yield start
    for shop in shops:
        if "database" in vars(shop.guard):
            shop.guard.database.close()
        shop.app.close()


@pytest.fixture
def any_shop(open_app: Any, store_url: str) -> Shop:
    """A shop on each database."""
    return open_app(store_url)


@pytest.fixture
def shop(open_app: Any, sqlite_url: str) -> Shop:
    """A shop on SQLite."""
    return open_app(sqlite_url)
