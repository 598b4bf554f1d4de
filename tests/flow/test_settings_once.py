"""Settings are read once, also by a client that never finalises its app."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_guard import GuardedTask
from celery_guard.flow.guard import guard_of, task_settings


@pytest.fixture
def app(tmp_path):
    app = Celery("client", broker="memory://", task_cls=GuardedTask)
    app.conf.guard_database_url = f"sqlite:///{tmp_path / 'runs.db'}"
    yield app
    guard_of(app).database.close()


def test_a_client_that_never_finalises_its_app_reads_its_settings_for_good_once_it_submits(app):
    @app.task
    def ship(order_id):
        return order_id

    ship.delay(1)
    ship.delay(2)

    guard = guard_of(app)
    assert not app.finalized
    assert guard.settings is guard.settings
    assert task_settings(ship) is task_settings(ship)


def test_what_is_configured_after_a_task_was_defined_and_before_it_is_submitted_holds(app):
    @app.task
    def ship(order_id):
        return order_id

    assert ship.name
    app.conf.guard_max_attempts = 9

    assert ship.delay(1).run.max_attempts == 9
