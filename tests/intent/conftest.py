"""One intent, one effect: apps in this process, apps with real workers, and both databases."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from tests.acceptance.conftest import worker as worker
from tests.flow.conftest import (
    _apps_of_their_own as _apps_of_their_own,
    any_shop as any_shop,
    clock as clock,
    one_database as one_database,
    open_shop as open_shop,
    postgres_url as postgres_url,
    shop as shop,
)
from tests.flow.seams import Shop
from tests.infra.processes import PROCESSES, WorkerProcess, worker_starter
from tests.infra.servers import Postgres
from tests.intent.scenes import Stage


@pytest.fixture
def noted() -> list[Any]:
    """What bodies did, in order."""
    return []


@pytest.fixture
def engine(any_shop: Shop) -> Iterator[Engine]:
    """The application's own way into the database of runs."""
    any_shop.guard.runs.clock()  # SQLite makes its tables on first use
    engine = create_engine(any_shop.guard.settings.database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def open_session(engine: Engine) -> Iterator[Callable[[], Session]]:
    """Make sessions of the application; each is closed after the test."""
    sessions: list[Session] = []

    def start() -> Session:
        sessions.append(Session(engine))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


@pytest.fixture
def session(open_session: Callable[[], Session]) -> Session:
    """A session of the application."""
    return open_session()


@pytest.fixture
def ship(any_shop: Shop) -> Any:
    """A task, and its tables made."""

    @any_shop.app.task
    def ship(order_id):
        return order_id

    any_shop.guard.runs.clock()
    return ship


@pytest.fixture(scope="module")
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., WorkerProcess]]:
    """Start real workers that serve a whole module."""
    with worker_starter(tmp_path_factory.mktemp("workers"), [], within=60) as start:
        yield start


@pytest.fixture(scope="module")
def set_stage(
    start_worker: Callable[..., WorkerProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stage]]:
    """Import the app with a configuration, for a whole module."""
    stages: list[Stage] = []
    with pytest.MonkeyPatch.context() as monkeypatch:

        def start(module: str = "tests.intent.apps.shop", **conf: Any) -> Stage:
            queue = f"test-{random.SystemRandom().getrandbits(48):012x}"
            folder = tmp_path_factory.mktemp("stage")
            stages.append(Stage(module, {"task_default_queue": queue, **conf}, folder, start_worker, monkeypatch))
            return stages[-1]

        yield start
        for stage in stages:
            stage.close()


@pytest.fixture(scope="module")
def stage_database(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """A PostgreSQL database for all tests of a module."""
    with postgres_server.database(postgres_template) as url:
        yield url


@pytest.fixture(autouse=True)
def _logs(request: pytest.FixtureRequest) -> None:
    """Show the logs of a module's workers with a test that fails."""
    if "stage" in request.fixturenames:
        stage = request.getfixturevalue("stage")
        request.node.stash[PROCESSES] = [stage.at_work]
