"""Apps with one guard each, in this process only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from celery import Celery, _state

from celery_guard import GuardedTask
from celery_guard.store.models import metadata
from celery_guard.testing.clock import Clock
from tests.flow.seams import Shop, Ticking
from tests.infra.servers import Postgres, RabbitMQ


class OpenShop(Protocol):
    def __call__(
        self, *, url: str | None = None, broker: str = "memory://", task_cls: Any = GuardedTask, **config: Any
    ) -> Shop: ...


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


@pytest.fixture(scope="session")
def one_virtual_host(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    """A virtual host for all tests here."""
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture
def rabbitmq_url(one_virtual_host: str) -> str:
    """A RabbitMQ where no other test uses our queue: making virtual hosts is slow."""
    return one_virtual_host


@pytest.fixture
def clock() -> Clock:
    """The database's clock, to be moved ahead."""
    return Ticking()


@pytest.fixture(autouse=True)
def _apps_of_their_own() -> Iterator[None]:
    """Leave Celery's current app, and the tasks that it gives to every app, as they were."""
    before = _state._tls.current_app, _state.default_app
    finalizers = set(_state._on_app_finalizers)
    yield
    _state._tls.current_app, _state.default_app = before
    _state._on_app_finalizers.intersection_update(finalizers)


@pytest.fixture
def open_shop(sqlite_url: str, queue_name: str, clock: Clock) -> Iterator[OpenShop]:
    """Make apps whose tasks are guarded, with a broker in memory; each is closed after the test."""
    shops: list[Shop] = []

    def start(*, url: str | None = None, broker: str = "memory://", task_cls: Any = GuardedTask, **config: Any) -> Shop:
        app = Celery("shop", broker=broker, task_cls=task_cls, set_as_current=False)
        app.conf.update(
            guard_database_url=url or sqlite_url, task_default_queue=queue_name, guard_backoff_base=0.01, **config
        )
        shops.append(Shop(app, queue_name, clock))
        return shops[-1]

    yield start
    for shop in shops:
        shop.close()


@pytest.fixture
def shop(open_shop: OpenShop) -> Shop:
    """An app on SQLite."""
    return open_shop()


@pytest.fixture
def any_shop(open_shop: OpenShop, store_url: str) -> Shop:
    """An app on each database."""
    return open_shop(url=store_url)
