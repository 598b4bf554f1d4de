"""A broker answers for what is published, and within a time."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_guard import GuardedTask


def work() -> None:
    """Do nothing."""


def an_app(broker: str, store: str, **options: object) -> Celery:
    app = Celery("confirms", broker=broker, task_cls=GuardedTask, set_as_current=False)
    app.conf.guard_database_url = store
    app.conf.broker_transport_options = options
    app.task(work)
    app.finalize()
    return app


@pytest.mark.parametrize(("options", "confirms"), [({}, True), ({"confirm_publish": False}, False)])
def test_rabbitmq_confirms_publishing_unless_told_otherwise(rabbitmq_url, sqlite_url, options, confirms):
    app = an_app(rabbitmq_url, sqlite_url, **options)

    with app.connection_for_write() as connection:
        is_confirmed = connection.connection.confirm_publish

    assert bool(is_confirmed) is confirms


@pytest.mark.parametrize(
    ("options", "patience"), [({}, 10.0), ({"socket_timeout": 60}, 60), ({"socket_timeout": None}, None)]
)
def test_redis_is_waited_for_ten_seconds_unless_told_otherwise(redis_url, sqlite_url, options, patience):
    app = an_app(redis_url, sqlite_url, **options)

    with app.connection_for_write() as connection:
        parameters = connection.default_channel.client.connection_pool.connection_kwargs

    assert (parameters["socket_timeout"], parameters["socket_connect_timeout"]) == (patience, 5.0)


def test_other_brokers_get_no_options_of_ours(sqlite_url):
    app = an_app("memory://", sqlite_url)

    assert app.conf.broker_transport_options == {}
