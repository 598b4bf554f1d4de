"""``guard check``: each mistake is found, and nothing else is called one."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from celery import Celery, Task
from kombu import Queue

from celery_guard import GuardedTask
from celery_guard.cli.preflight import CHECKS
from tests.cli.conftest import Shop
from tests.infra.processes import free_port

#: The ten points of a pre-launch list, and the check that asks for each.
TEN_POINTS = {
    "a deadline on every task": "deadlines",
    "checked before running and when a retry is planned": "deadline checked",
    "attempts limited": "max attempts",
    "errors classified": "classification",
    "jitter": "jitter",
    "atomic claim": "atomic claim",
    "state in the database": "state in the database",
    "timeouts inside the body": "timeouts inside",
    "idempotency where critical": "idempotency",
    "metrics and logs": "metrics",
}


def answers(shop, check):
    return [one for one in shop.json("check")["checks"] if one["check"] == check]


def level(shop, check):
    return {one["level"] for one in answers(shop, check)}


@pytest.fixture
def with_task(sqlite_url):
    """Make a shop with one task, declared like this."""
    apps = []

    def start(*, broker="memory://", config=None, **declared):
        app = Celery("shop", broker=broker, task_cls=GuardedTask, set_as_current=False)
        app.conf.update(guard_database_url=sqlite_url, **(config or {}))

        @app.task(name="shop.task", shared=False, **declared)
        def task(url, timeout=5):
            return url

        apps.append(app)
        return Shop(app)

    yield start
    for app in apps:
        if "database" in vars(Shop(app).guard):
            Shop(app).guard.database.close()
        app.close()


def test_the_ten_points_are_all_asked():
    assert set(TEN_POINTS.values()) | {"logs"} <= {check.name for check in CHECKS}


def test_every_line_says_why(any_shop):
    for one in any_shop.json("check")["checks"]:
        assert one["why"]
        assert one["do"] or one["level"] == "pass"


def test_a_shop_in_order_exits_with_zero(any_shop):
    result = any_shop.run("check")

    assert result.exit_code == 0
    assert "0 fail" in result.stdout


def test_postgres_is_the_store_for_production(open_app, postgres_url, sqlite_url):
    assert level(open_app(postgres_url), "state in the database") == {"pass"}
    assert level(open_app(sqlite_url), "state in the database") == {"warn"}


def test_a_failure_exits_with_one(with_task):
    shop = with_task(critical=True)

    result = shop.run("check")

    assert result.exit_code == 1
    assert "do: give idempotency_key=" in result.stdout


@pytest.mark.parametrize(
    ("check", "declared", "expected"),
    [
        ("deadlines", {}, "warn"),
        ("deadlines", {"deadline": 60}, "pass"),
        ("max attempts", {"max_attempts": 3}, "pass"),
        ("max attempts", {"max_retries": None}, "warn"),
        ("max attempts", {"max_attempts": 500}, "warn"),
        ("classification", {"retryable": (OSError,)}, "pass"),
        ("classification", {"unknown_max_attempts": 5}, "warn"),
        ("broad rules", {"retryable": (OSError,)}, "pass"),
        ("broad rules", {"retryable": (Exception,)}, "warn"),
        ("broad rules", {"non_retryable": (Exception,)}, "warn"),
        ("broad rules", {"autoretry_for": (Exception,)}, "warn"),
        ("jitter", {}, "pass"),
        ("jitter", {"backoff_jitter": "none"}, "warn"),
        ("jitter", {"backoff_jitter": 0.0}, "warn"),
        ("jitter", {"backoff": [1, 2]}, "warn"),
        ("jitter", {"backoff": lambda attempt: 1.0}, "pass"),
        ("retry rate", {"retry_rate": "100/m"}, "pass"),
        ("retry rate", {"retry_rate": "1/h", "deadline": 60}, "warn"),
        ("concurrency", {}, "pass"),
        ("concurrency", {"concurrency": 5}, "pass"),
        ("concurrency", {"concurrency": 5, "concurrency_key": "{url}"}, "pass"),
        ("concurrency", {"concurrency": 5, "concurrency_key": lambda url: url}, "pass"),
        ("concurrency", {"concurrency": 5, "concurrency_key": "url"}, "warn"),
        ("time limits", {"time_limit": 50, "deadline": 60}, "pass"),
        ("time limits", {"time_limit": 90, "deadline": 60}, "warn"),
        ("time limits", {"time_limit": 50, "soft_time_limit": 50}, "fail"),
        ("hung calls", {}, "warn"),
        ("hung calls", {"deadline": timedelta(minutes=5)}, "pass"),
        ("hung calls", {"soft_time_limit": 5}, "pass"),
        ("timeouts inside", {}, "pass"),
        ("idempotency", {"critical": True}, "fail"),
        ("idempotency", {"critical": True, "idempotency_key": "{url}"}, "pass"),
        ("message mode", {}, "pass"),
        ("message mode", {"serializer": "pickle"}, "fail"),
    ],
)
def test_what_a_task_declares_is_judged(with_task, check, declared, expected):
    found = answers(with_task(**declared), check)

    assert [(one["level"], one["tasks"]) for one in found] == [(expected, ["shop.task"])]


@pytest.mark.parametrize(
    ("check", "config", "expected"),
    [
        ("configuration", {}, "pass"),
        ("configuration", {"guard_max_attempts": 0}, "fail"),
        ("configuration", {"guard_nonsense": 1}, "fail"),
        ("configuration", {"guard_classifiers": ("no.such.thing",)}, "fail"),
        ("deadlines", {"guard_default_deadline": 600}, "pass"),
        ("broad rules", {"guard_retryable_errors": ("Exception",)}, "warn"),
        ("jitter", {"guard_backoff_jitter": "none"}, "warn"),
        ("prefetch", {}, "warn"),
        ("prefetch", {"worker_prefetch_multiplier": 0}, "warn"),
        ("prefetch", {"worker_prefetch_multiplier": 1}, "pass"),
        ("enforced limits", {}, "pass"),
        ("enforced limits", {"worker_pool": "threads"}, "warn"),
        ("acknowledgement", {}, "pass"),
        ("acknowledgement", {"task_always_eager": True}, "warn"),
        ("result expiry", {}, "pass"),
        ("result expiry", {"result_backend": "cache+memory://", "result_expires": 60}, "warn"),
        ("result expiry", {"result_backend": "cache+memory://", "result_expires": 90_000}, "pass"),
        ("events", {}, "warn"),
        ("events", {"worker_send_task_events": True}, "pass"),
        ("logs", {}, "pass"),
        ("metrics", {}, "pass"),
    ],
)
def test_what_is_configured_is_judged(with_task, check, config, expected):
    pytest.importorskip("prometheus_client")

    assert level(with_task(config=config), check) == {expected}


def test_metrics_that_nobody_reads_are_noticed(shop):
    pytest.importorskip("prometheus_client")
    before = answers(shop, "metrics read")
    shop.run("metrics", "--once")

    (after,) = answers(shop, "metrics read")

    assert [(one["level"], one["why"]) for one in before] == [("warn", "nobody has ever read the metrics")]
    assert after["level"] == "pass"


def test_metrics_that_nobody_reads_any_more_are_noticed(shop):
    pytest.importorskip("prometheus_client")
    shop.run("metrics", "--once")
    with shop.guard.database.connection() as connection:
        connection.exec_driver_sql("UPDATE task_tally SET counted_to = '2020-01-01 00:00:00.000000+00:00'")

    (answer,) = answers(shop, "metrics read")

    assert answer["level"] == "warn"
    assert "last read" in answer["why"]


def test_a_silenced_logger_is_noticed(shop, caplog):
    with caplog.at_level(logging.CRITICAL, logger="celery_guard"):
        assert level(shop, "logs") == {"warn"}


def test_an_app_without_guarded_tasks_fails(sqlite_url):
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.guard_database_url = sqlite_url
    shop = Shop(app)

    assert level(shop, "guarded tasks") == {"fail"}
    shop.guard.database.close()


def test_tasks_that_are_not_guarded_are_named(open_app, sqlite_url):
    shop = open_app(sqlite_url)

    @shop.app.task(name="shop.plain", base=Task, shared=False)
    def plain():
        """Nobody guards it."""

    assert answers(shop, "guarded tasks")[1]["tasks"] == ["shop.plain"]


def test_tasks_with_the_same_answer_share_a_line(shop):
    (one,) = answers(shop, "jitter")

    assert one["tasks"] == ["shop.add", "shop.busy", "shop.refuse"]


def test_many_unknown_errors_are_noticed(open_app, store_url):
    shop = open_app(store_url)
    run_id = shop.apply("refuse")
    with shop.guard.database.connection() as connection:
        connection.exec_driver_sql(f"UPDATE task_run SET error_category = 'unknown' WHERE id = '{run_id}'")

    assert level(shop, "unknown errors") == {"warn"}


def test_a_database_that_is_away_fails_and_is_asked_no_more(open_app):
    url = f"postgresql+psycopg2://nobody@127.0.0.1:{free_port()}/nothing"

    result = open_app(url).run("check")

    assert result.exit_code == 1
    assert "can't be reached" in result.stdout
    assert "clock offset" not in result.stdout
    assert "jitter" in result.stdout


def test_missing_tables_fail_with_the_command_to_run(open_app, empty_postgres_url):
    shop = open_app(empty_postgres_url)

    assert answers(shop, "schema")[0]["do"] == "run: celery -A <your app> guard migrate"
    shop.run("migrate")
    assert level(shop, "schema") == {"pass"}


def test_a_broker_that_nobody_has_tried_is_named(with_task, tmp_path):
    shop = with_task(broker=f"sqla+sqlite:///{tmp_path / 'broker.db'}")

    whys = [one["why"] for one in answers(shop, "broker")]

    assert "celery_guard is not tested on kombu's sql transport" in whys


def test_a_broker_that_is_away_fails(with_task):
    shop = with_task(broker=f"redis://127.0.0.1:{free_port()}/0")

    assert level(shop, "broker") == {"fail"}


def test_the_password_of_the_broker_is_not_shown(with_task):
    shop = with_task(broker=f"redis://:secret@127.0.0.1:{free_port()}/0")

    assert "secret" not in shop.run("check").stdout


@pytest.mark.parametrize(
    ("options", "deadline", "expected"),
    [({}, 600, "pass"), ({"visibility_timeout": 60}, 600, "warn"), ({}, 7_200, "warn")],
)
def test_redis_must_wait_longer_than_the_longest_attempt(with_task, redis_url, options, deadline, expected):
    shop = with_task(broker=redis_url, config={"broker_transport_options": options}, deadline=deadline)

    assert level(shop, "visibility timeout") == {expected}
    assert level(shop, "broker") == {"pass"}


def test_rabbitmq_must_wait_longer_than_the_longest_attempt(with_task, rabbitmq_server):
    queue = Queue("slow", queue_arguments={"x-consumer-timeout": 10_000_000})
    short, long = (
        with_task(broker=rabbitmq_server.url, deadline=600),
        with_task(broker=rabbitmq_server.url, deadline=7_200),
    )
    told = with_task(broker=rabbitmq_server.url, deadline=7_200, config={"task_queues": [queue]})

    found = [level(shop, "consumer timeout") for shop in (short, long, told)]

    assert found == [{"pass"}, {"warn"}, {"pass"}]


@pytest.mark.parametrize(("options", "expected"), [({}, "pass"), ({"confirm_publish": False}, "warn")])
def test_rabbitmq_should_confirm(with_task, rabbitmq_server, options, expected):
    shop = with_task(broker=rabbitmq_server.url, config={"broker_transport_options": options})

    assert level(shop, "publisher confirms") == {expected}
