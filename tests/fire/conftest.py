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
from tests.infra.processes import PROCESSES, worker_starter


class SetFire(Protocol):
    def __call__(self, **conf: Any) -> Fire: ...


@pytest.fixture
def fire(request: pytest.FixtureRequest, tmp_path: Path, queue_name: str) -> Iterator[SetFire]:
    """Import the app with a Celery configuration; its workers are killed after the test."""
    started = request.node.stash.setdefault(PROCESSES, [])
    scenes: list[Fire] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        with worker_starter(tmp_path, started, within=60) as start_worker:

            def set_fire(**conf: Any) -> Fire:
                scenes.append(Fire({"task_default_queue": queue_name, **conf}, tmp_path, start_worker, monkeypatch))
                return scenes[-1]

            yield set_fire
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
