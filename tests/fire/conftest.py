"""Workers under fire, and servers of their own to be shot at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from celery_guard.store.database import Database
from celery_guard.store.migrations import migrate
from tests.fire.scenes import Fire
from tests.infra import servers
from tests.infra.processes import PROCESSES, WorkerProcess


class SetFire(Protocol):
    def __call__(self, **conf: Any) -> Fire: ...


@pytest.fixture
def fire(request: pytest.FixtureRequest, tmp_path: Path, queue_name: str) -> Iterator[SetFire]:
    """Import the app with a Celery configuration; its workers are killed after the test."""
    started: list[WorkerProcess] = request.node.stash.setdefault(PROCESSES, [])
    scenes: list[Fire] = []

    def start_worker(app_module: str, *, wait: bool = True, **options: Any) -> WorkerProcess:
        process = WorkerProcess(app_module, name=f"worker{len(started) + 1}", folder=tmp_path, **options)
        started.append(process)
        process.start()
        if wait:
            process.wait_until_ready(within=60)
        return process

    with pytest.MonkeyPatch.context() as monkeypatch:

        def set_fire(**conf: Any) -> Fire:
            scenes.append(Fire({"task_default_queue": queue_name, **conf}, tmp_path, start_worker, monkeypatch))
            return scenes[-1]

        yield set_fire
        for process in started:
            process.destroy()
        for scene in scenes:
            scene.close()


@pytest.fixture
def own_database(private_postgres: servers.PrivatePostgres) -> Iterator[str]:
    """A database with our tables on a server of this test's own."""
    with private_postgres.database() as url:
        database = Database(url)
        migrate(database)
        database.close()
        yield url
        private_postgres.thaw()
        if not private_postgres.answers():
            private_postgres.start()


@pytest.fixture
def own_database_over_tls(private_postgres: servers.PrivatePostgres, own_database: str) -> str:
    """The same, where nobody gets in without encryption."""
    try:
        private_postgres.offer_tls()
    except servers.MissingServer as missing:
        pytest.skip(str(missing))
    return f"{own_database}?sslmode=require"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[servers.PrivateRedis]:
    """A running Redis of this test's own."""
    try:
        server = servers.PrivateRedis(tmp_path)
    except servers.MissingServer as missing:
        (pytest.fail if servers.IN_CI else pytest.skip)(str(missing))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[servers.PrivateRabbitMQ]:
    """A running RabbitMQ of this test's own."""
    try:
        server = servers.PrivateRabbitMQ(tmp_path)
    except servers.MissingServer as missing:
        (pytest.fail if servers.IN_CI else pytest.skip)(str(missing))
    server.start()
    yield server
    server.kill()
