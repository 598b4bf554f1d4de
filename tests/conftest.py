"""Servers, one clean place on them per test, and the logs of what ran when a test fails."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from hypothesis import settings

from tests.factories import NOON
from tests.infra import servers
from tests.infra.processes import PROCESSES
from tests.rules.peers import silent_server

pytest_plugins = ["celery_guard.testing"]

T = TypeVar("T")

settings.register_profile("celery_guard", deadline=None, max_examples=60)
settings.load_profile("celery_guard")

#: Files with few tests that wait long. They begin first: several processes would end with one of them waiting.
_LONG = (
    "docs/test_tutorial.py",
    "example/test_demo.py",
    "limits/test_workers.py",
    "embedded/test_embedded.py",
    "aio/test_other_pools.py",
    "aio/test_pools.py",
    "docs/test_site.py",
    "flower/test_pages.py",
    "web/test_crowds.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(_LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        for process in item.stash.get(PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log()[-10_000:]))
    # What a test with broken text logged travels to the process that reports it.
    report.sections = [(title, text.encode("utf-8", "replace").decode("utf-8")) for title, text in report.sections]
    return report


@contextmanager
def _here(server: AbstractContextManager[T]) -> Iterator[T]:
    """Enter the server; where there is none, skip the test, or fail it in CI."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(server)
        except servers.MissingServer as missing:
            (pytest.fail if servers.IN_CI else pytest.skip)(str(missing))
        yield found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Postgres]:
    """A PostgreSQL, perhaps shared with others: don't stop it."""
    with _here(servers.postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: servers.Postgres) -> Iterator[str]:
    """The name of a PostgreSQL database with our tables, for others to be copied from."""
    from celery_guard.store.database import Database
    from celery_guard.store.migrations import migrate

    with postgres_server.database() as url:
        database = Database(url)
        migrate(database)
        database.close()
        yield servers.name_of(url)


@pytest.fixture
def postgres_url(postgres_server: servers.Postgres, postgres_template: str) -> Iterator[str]:
    """A PostgreSQL database with our tables, and nothing in them."""
    with postgres_server.database(postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: servers.Postgres) -> Iterator[str]:
    """A PostgreSQL database without any table."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def private_postgres() -> Iterator[servers.PrivatePostgres]:
    """A running PostgreSQL of this test's own, to be stopped, killed and frozen."""
    with _here(servers.private_postgres()) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet: its first use makes our tables."""
    return f"sqlite:///{tmp_path / 'guard.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A database for runs, of each kind that a store may use."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def redis_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis database that is this session's alone."""
    with _here(servers.redis_database(tmp_path_factory.mktemp("redis"))) as url:
        yield url


@pytest.fixture
def redis_url(redis_database: str) -> Iterator[str]:
    """An empty Redis database."""
    with redis.Redis.from_url(redis_database) as client:
        client.flushdb()
        yield redis_database
        client.flushdb()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[servers.PrivateRedis]:
    """A running Redis of this test's own, to be killed and frozen."""
    with _here(servers.private_redis(tmp_path)) as server:
        yield server


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[servers.PrivateRabbitMQ]:
    """A running RabbitMQ of this test's own."""
    with _here(servers.private_rabbitmq(tmp_path)) as server:
        yield server


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with silent_server() as port:
        yield port


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RabbitMQ]:
    """A RabbitMQ, perhaps shared with others: don't stop it."""
    with _here(servers.rabbitmq(tmp_path_factory.mktemp("rabbitmq"))) as server:
        yield server


@pytest.fixture
def rabbitmq_url(rabbitmq_server: servers.RabbitMQ) -> Iterator[str]:
    """An empty virtual host; the default one where we may not make any, so name queues after ``queue_name``."""
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest) -> str:
    """An empty broker, of each kind that production uses."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def queue_name() -> str:
    """A queue that no other test uses."""
    return f"test-{random.SystemRandom().getrandbits(48):012x}"


@pytest.fixture
def rng() -> random.Random:
    """Chance that repeats itself."""
    return random.Random(20)


@pytest.fixture
def now() -> datetime:
    """The moment at which pure tests happen."""
    return NOON
