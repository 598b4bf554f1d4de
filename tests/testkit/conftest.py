"""A small shop whose tests are written with the kit."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_guard import GuardedTask, NonRetryableError, RetryableError
from tests.flow.conftest import _apps_of_their_own as _apps_of_their_own


@pytest.fixture
def guard_app() -> Celery:
    """A shop as its owner configured it: with servers that no test may ask."""
    app = Celery("shop", task_cls=GuardedTask, set_as_current=False)
    app.conf.update(
        broker_url="redis://nowhere.invalid/0",
        result_backend="redis://nowhere.invalid/1",
        guard_database_url="postgresql+psycopg2://nowhere.invalid/shop",
        guard_database_engine_options={"connect_args": {"connect_timeout": 1}},
        guard_backoff_jitter="none",
    )
    return app


@pytest.fixture
def mails() -> list[int]:
    """The receipts that were sent."""
    return []


@pytest.fixture
def shop(guard_app: Celery, mails: list[int]) -> SimpleNamespace:
    """The tasks of the shop."""

    @guard_app.task(name="shop.send", deadline=timedelta(minutes=10))
    def send(order_id: int, copies: int = 1) -> str:
        mails.append(order_id)
        return f"receipt {order_id}"

    @guard_app.task(name="shop.fail", max_attempts=3)
    def fail(how: str) -> None:
        mails.append(0)
        raise {"retryable": RetryableError, "permanent": NonRetryableError}[how](how)

    @guard_app.task(name="shop.pay", on_worker_lost="fail")
    def pay() -> None:
        mails.append(1)

    return SimpleNamespace(send=send, fail=fail, pay=pay)
