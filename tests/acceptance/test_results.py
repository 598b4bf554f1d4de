"""What a caller gets, with a result backend and without one."""

from __future__ import annotations

import pytest

from celery_guard import AttemptsExhausted, DeadlineExceeded, GuardError
from tests.infra.polling import eventually


@pytest.fixture(params=["no backend", "redis"])
def life(request, redis_url, postgres_url, scene):
    backend = {"redis": redis_url, "no backend": "disabled://"}[request.param]
    life = scene(broker_url=redis_url, result_backend=backend, guard_database_url=postgres_url)
    life.worker()
    return life


def test_get_waits_for_the_ending_and_returns_the_value(life):
    results = [life.tasks.succeed.delay({"total": 42}), life.tasks.succeed_at.delay(3, "at last")]

    assert [result.get(timeout=30) for result in results] == [{"total": 42}, "at last"]
    assert {result.state for result in results} == {"SUCCESS"}


def test_get_names_the_reason_when_the_guard_ended_the_run(life):
    used_up = life.tasks.succeed_at.apply_async((99,), max_attempts=2)
    unknown = life.tasks.surprise.delay()
    too_late = life.tasks.retry_in.apply_async((60,), deadline=20)

    with pytest.raises(AttemptsExhausted, match=r"failed_due_max_attempts: RetryableError: attempt 2"):
        used_up.get(timeout=30)
    with pytest.raises(AttemptsExhausted, match=r"failed_due_max_attempts: Surprise: what is this\?"):
        unknown.get(timeout=30)
    with pytest.raises(DeadlineExceeded, match=r"failed_due_deadline: RetryableError: busy"):
        too_late.get(timeout=30)
    assert {result.state for result in (used_up, unknown, too_late)} == {"FAILURE"}
    assert all(isinstance(result.result, GuardError) for result in (used_up, unknown, too_late))


def test_get_raises_the_tasks_own_exception_when_a_repeat_can_not_help(life):
    result = life.tasks.refuse.delay("not today")

    with pytest.raises(life.tasks.Refused, match="not today"):
        result.get(timeout=30)
    assert result.state == "FAILURE"
    assert (result.run.state, result.run.last_error) == ("failed", "Refused: not today")


def test_the_state_is_retry_while_a_run_waits_for_its_next_attempt(life):
    result = life.tasks.retry_in.delay(60)

    eventually(lambda: result.state == "RETRY", within=30)
    eventually(lambda: result.run.state == "retrying", within=30)
    assert not result.ready()
    assert [(attempt.attempt, attempt.error) for attempt in result.run.attempts] == [(1, "busy")]
