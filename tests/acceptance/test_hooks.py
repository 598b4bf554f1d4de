"""Celery's hooks, and copies of messages."""

from __future__ import annotations

import pytest
import redis

from tests.infra.polling import eventually

BODY = ("begin", "end")


@pytest.fixture
def life(redis_url, postgres_url, scene):
    return scene(
        broker_url=redis_url,
        result_backend=redis_url,
        guard_database_url=postgres_url,
        task_track_started=True,
    )


@pytest.fixture
def broker(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


def _submitted_and_copied(life, broker, queue_name, *args):
    """Submit before any worker is there; return the result and its message as the broker has it."""
    result = life.tasks.hooked.delay(*args)
    [message] = broker.lrange(queue_name, 0, -1)
    return result, message


def _told(life, run_id):
    return life.app.backend.get_task_meta(run_id)["status"]


def _what_happened(life, run_id):
    return [trace["what"] for trace in life.traces(run=run_id)]


def test_a_run_that_succeeds_at_once_calls_each_hook_once(life):
    life.worker()

    result = life.tasks.hooked.delay()

    assert result.get(timeout=30) == 1
    eventually(lambda: _what_happened(life, result.id) == ["before_start", *BODY, "on_success", "after_return"])
    assert life.traces("after_return")[0]["status"] == "SUCCESS"


def test_a_run_that_retries_calls_on_retry_for_each_retry_and_the_rest_at_the_end(life):
    life.worker()

    result = life.tasks.hooked.delay(3)

    assert result.get(timeout=30) == 3
    attempt = ["before_start", *BODY]
    expected = [*attempt, "on_retry", *attempt, "on_retry", *attempt, "on_success", "after_return"]
    eventually(lambda: _what_happened(life, result.id) == expected)


def test_a_run_that_dies_calls_on_failure_once(life):
    life.worker()

    result = life.tasks.hooked.apply_async((99,), max_attempts=2)

    life.ends(result.id)
    attempt = ["before_start", *BODY]
    expected = [*attempt, "on_retry", *attempt, "on_failure", "after_return"]
    eventually(lambda: _what_happened(life, result.id) == expected)
    assert life.traces("after_return")[0]["status"] == "FAILURE"


@pytest.mark.parametrize(("attempts", "told"), [(1, "SUCCESS"), (99, "FAILURE")])
def test_a_copy_of_a_finished_run_changes_nothing(life, broker, queue_name, attempts, told):
    result, message = _submitted_and_copied(life, broker, queue_name, attempts)
    life.worker(concurrency=1)
    [run] = life.ended(result.id)
    eventually(lambda: _told(life, result.id) == told)
    eventually(lambda: _what_happened(life, result.id)[-1] == "after_return")
    happened = life.traces(run=result.id)

    broker.lpush(queue_name, message)

    life.ended(life.tasks.succeed.delay().id)  # behind the copy, in the same child
    assert life.traces(run=result.id) == happened
    assert _told(life, result.id) == told
    assert life.run(result.id) == run


def test_a_copy_of_a_running_run_is_dropped(life, broker, queue_name):
    result, message = _submitted_and_copied(life, broker, queue_name, 1, "go")
    life.worker(concurrency=2)
    eventually(lambda: life.traces("begin", result.id) != [], within=20)

    broker.lpush(queue_name, message)

    life.ended(life.tasks.succeed.delay().id)  # behind the copy, in the child that is free
    assert _what_happened(life, result.id) == ["before_start", "begin"]
    life.open_gate("go")
    assert result.get(timeout=30) == 1
    life.ended(result.id)
    eventually(lambda: _what_happened(life, result.id) == ["before_start", *BODY, "on_success", "after_return"])


def test_started_is_told_after_the_claim_and_before_the_body(life, broker, queue_name):
    result, _ = _submitted_and_copied(life, broker, queue_name, 1, "go")
    assert result.state == "PENDING"

    life.worker()

    eventually(lambda: life.traces("begin", result.id) != [], within=20)
    meta = life.app.backend.get_task_meta(result.id)
    assert (meta["status"], meta["result"]["pid"]) == ("STARTED", life.traces("begin")[0]["pid"])
    assert life.traces("before_start")[0]["told"] == "STARTED"
    assert (result.state, result.run.state, result.run.attempt) == ("STARTED", "running", 1)
    life.open_gate("go")
    assert result.get(timeout=30) == 1
