"""What these tests rely on in pytest-celery, whose containers are local processes here."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_celery import CELERY_REDIS_BACKEND, CELERY_REDIS_BROKER, CeleryTestSetup

from celery_guard.flow.guard import guard_of
from tests.acceptance.apps import contract
from tests.infra.containers import LocalWorkerContainer, SharedRedisContainer
from tests.infra.polling import eventually
from tests.infra.processes import PROCESSES


@pytest.fixture(params=[CELERY_REDIS_BROKER])  # a list: the plugin's own is a set, in any order
def celery_broker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[CELERY_REDIS_BACKEND])
def celery_backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def default_redis_broker(redis_url):
    return SharedRedisContainer(redis_url)


@pytest.fixture
def default_redis_backend(redis_url):
    return SharedRedisContainer(redis_url)


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return {*default_worker_tasks, contract}


@pytest.fixture
def default_worker_container(request, tmp_path, default_worker_env, default_worker_initial_content):
    container = LocalWorkerContainer(tmp_path, default_worker_env, default_worker_initial_content, name="worker")
    request.node.stash.setdefault(PROCESSES, []).append(container.process)
    yield container
    container.process.destroy()


@pytest.fixture
def celery_setup_cls(sqlite_url):
    class Setup(CeleryTestSetup):
        @classmethod
        def update_app_config(cls, app):
            """Notice within seconds that a worker was killed."""
            app.conf.update(guard_database_url=sqlite_url, guard_heartbeat_interval=0.5, guard_rescue_after=2)

    return Setup


@pytest.fixture
def celery_setup(celery_setup):
    yield celery_setup
    guard_of(contract.held.app).database.close()  # the plugin makes an app for the setup, and one for tasks


def test_a_setup_is_a_broker_a_backend_and_a_worker_that_answers(celery_setup):
    assert len(celery_setup) == 3
    assert celery_setup.ready(ping=True, control=True)
    hostname = celery_setup.worker.hostname()
    assert hostname in celery_setup.app.control.ping(destination=[hostname], timeout=30)[0]


def test_a_task_of_ours_runs_on_the_worker(celery_setup):
    result = contract.multiply.delay(6, 7)

    assert result.get(timeout=20) == 42
    assert (result.run.state, result.run.attempt) == ("succeeded", 1)


def test_a_killed_worker_is_gone_at_once_and_a_restarted_one_takes_over_its_work(celery_setup, tmp_path):
    worker, starts = celery_setup.worker, Path(tmp_path, "starts")
    result = contract.held.delay(str(tmp_path))
    eventually(starts.exists, within=20)

    worker.kill()

    assert worker.container.status == "exited"
    worker.restart()
    assert worker.container.status == "running"
    Path(tmp_path, "go").touch()
    assert result.get(timeout=30) == worker.hostname()
    assert len(starts.read_text().splitlines()) == 2
    assert (result.run.state, result.run.attempt) == ("succeeded", 2)
