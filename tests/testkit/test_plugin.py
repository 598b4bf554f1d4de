"""The kit in a user's own suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_guard import GuardedTask
from celery_guard.testing import open_kit

SHOP = """
from celery import Celery
from celery_guard import GuardedTask

app = Celery("shop", broker="redis://nowhere.invalid", task_cls=GuardedTask)

@app.task
def send(order_id):
    return f"receipt {order_id}"
"""

CONFTEST = """
import pytest
from shop import app

pytest_plugins = ["celery_guard.testing"]

@pytest.fixture
def guard_app():
    return app
"""

TEST = """
from shop import send

def test_a_receipt_is_sent(guard_kit):
    send.delay(42)
    run = guard_kit.assert_submitted(send, 42)
    assert guard_kit.run_inline(run).state == "succeeded"

def test_nothing_is_left_of_the_test_before(guard_kit):
    guard_kit.assert_not_submitted(send)

def test_what_was_not_submitted(guard_kit):
    send.delay(41)
    guard_kit.assert_submitted(send, 42)

def test_a_crash_that_does_not_happen(guard_kit):
    guard_kit.crash_at("after_body")
"""


def run_suite(folder: Path, **files: str) -> str:
    """Run pytest on a user's files, and return what it says."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    done = subprocess.run([*command, str(folder)], cwd=folder, capture_output=True, text=True, timeout=250)
    return done.stdout + done.stderr


def test_a_suite_opts_in(tmp_path):
    said = run_suite(tmp_path, conftest=CONFTEST, shop=SHOP, test_shop=TEST)

    assert "1 failed, 3 passed, 1 error" in said
    assert "AssertionError: shop.send(42) was not submitted. What was:" in said
    assert "AssertionError: no worker got as far as crash_at('after_body')" in said


@pytest.mark.parametrize(
    ("conftest", "error"),
    [
        ("", "fixture 'guard_kit' not found"),
        (
            'pytest_plugins = ["celery_guard.testing"]',
            "guard_kit needs your app: return it from a fixture guard_app in your conftest.py",
        ),
    ],
    ids=["not opted in", "no app"],
)
def test_a_suite_is_told_what_is_missing(tmp_path, conftest, error):
    said = run_suite(tmp_path, conftest=conftest, test_shop="def test_it(guard_kit): ...")

    assert error in said


def test_an_app_gets_back_what_it_had(guard_app, guard_database_url, shop):
    keys = ["broker_url", "broker_transport", "result_backend", "guard_database_url", "guard_namespace"]
    before = [guard_app.conf.get(key) for key in keys]

    with open_kit(guard_app, guard_database_url):
        shop.send.delay(42)
        assert guard_app.conf.broker_url.startswith("memory")

    assert [guard_app.conf.get(key) for key in keys] == before
    assert guard_app.connection_for_write().transport_cls == "redis"
    assert type(guard_app.backend).__name__ == "RedisBackend"


def test_an_app_whose_configuration_has_a_prefix(guard_database_url):
    app = Celery("shop", task_cls=GuardedTask, set_as_current=False)
    app.config_from_object(
        {"CELERY_BROKER_URL": "redis://nowhere.invalid", "CELERY_GUARD_DATABASE_URL": "sqlite:////nowhere/guard.db"},
        namespace="CELERY",
    )

    @app.task
    def send() -> str:
        return "sent"

    with open_kit(app, guard_database_url) as kit:
        result = send.delay()
        kit.run_inline(result)
        assert result.get(timeout=1) == "sent"


@pytest.mark.parametrize("url", ["sqlite_url", "postgres_url"])
def test_a_database_of_ones_own(request, guard_app, shop, url):
    guard_app.conf.guard_database_engine_options = {}

    with open_kit(guard_app, request.getfixturevalue(url)) as kit:
        kit.crash_at("after_body")
        assert kit.run_inline(shop.send.delay(42)).attempt == 2


def test_runs_of_other_tests_in_the_same_database_are_not_seen(guard_app, guard_database_url, shop):
    with open_kit(guard_app, guard_database_url):
        shop.send.delay(42)

    with open_kit(guard_app, guard_database_url) as kit:
        assert kit.submitted() == []
        assert kit.run_all() == []
