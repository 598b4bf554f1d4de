"""Celery's own words for a retry, said inside a guarded body."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery.exceptions import Ignore, Reject

from celery_guard import AttemptsExhausted, RetryableError, Snooze, current_run
from tests.infra.naming import shown


@pytest.fixture
def attempt(any_shop, noted):
    """Submit a task that does something in its first attempt and notes its arguments in all; run it to its end."""

    def run(first, *args, options=None, **kwargs):
        @any_shop.app.task(bind=True, name="attempt", **{"max_attempts": 3, **(options or {})})
        def body(self, *given, **named):
            noted.append((*given, *named.items()))
            if current_run().attempt == 1:
                first(self)

        result = body.apply_async(args, kwargs)
        any_shop.work()
        return result.run

    return run


def test_a_retry_gives_the_next_attempt_the_same_arguments(attempt, noted):
    run = attempt(lambda task: task.retry(countdown=0.01), 1, b=2)

    assert (run.state, run.attempt) == ("succeeded", 2)
    assert noted == [(1, ("b", 2))] * 2


def test_a_retry_with_other_arguments_gives_the_next_attempt_those(attempt, noted):
    attempt(lambda task: task.retry(args=(5,), kwargs={"c": 6}, countdown=0.01), 1, b=2)

    assert noted == [(1, ("b", 2)), (5, ("c", 6))]


def test_a_retry_with_no_arguments_gives_the_next_attempt_none(attempt, noted):
    attempt(lambda task: task.retry(args=(), kwargs={}, countdown=0.01), 1, b=2)

    assert noted == [(1, ("b", 2)), ()]


def test_a_retry_that_changes_keywords_only_keeps_the_rest(attempt, noted):
    attempt(lambda task: task.retry(kwargs={"b": 3}, countdown=0.01), 1, b=2)

    assert noted == [(1, ("b", 2)), (1, ("b", 3))]


@pytest.mark.parametrize(
    "asked",
    [
        {"args": (object(),)},
        {"args": 5},
        {"kwargs": {"a": object()}},
        {"kwargs": 5},
        {"countdown": "soon"},
        {"countdown": object()},
        {"countdown": float("nan")},
        {"countdown": float("inf")},
        {"countdown": 1e300},
        {"eta": "never"},
        {"max_retries": "3"},
        {"link": object()},
    ],
    ids=shown,
)
def test_a_retry_that_can_not_be_asked_for_ends_the_run_with_the_error(attempt, noted, any_shop, asked):
    run = attempt(lambda task: task.retry(**asked))

    assert run.state in ("failed", "dead")
    assert len(noted) == 1
    assert run.last_error


@pytest.mark.parametrize("countdown", [-5, 0])
def test_a_retry_at_once_or_in_the_past_is_a_retry_now(attempt, countdown):
    run = attempt(lambda task: task.retry(countdown=countdown))

    assert (run.state, run.attempt) == ("succeeded", 2)


def test_a_retry_by_eta_waits_until_then(any_shop):
    moment = datetime.now(timezone.utc) + timedelta(minutes=5)

    @any_shop.app.task(bind=True)
    def body(self):
        raise self.retry(eta=moment)

    result = body.delay()
    any_shop.deliver(any_shop.message())

    assert moment <= result.run.next_retry_at <= moment + timedelta(seconds=31)


def test_a_retry_past_the_deadline_ends_the_run_now(attempt, noted):
    run = attempt(lambda task: task.retry(countdown=120), options={"deadline": 60})

    assert (run.state, run.terminal_reason, len(noted)) == ("dead", "failed_due_deadline", 1)


def test_a_retry_to_another_queue_goes_there(any_shop):
    @any_shop.app.task(bind=True)
    def body(self):
        raise self.retry(countdown=0.01, queue="other")

    result = body.delay()
    any_shop.deliver(any_shop.message())
    any_shop.clock.advance(1)
    any_shop.dispatch()

    assert any_shop.message("other").headers["id"] == result.id
    assert result.run.queue == "other"


def test_autoretry_with_an_explicit_retry_does_not_multiply(any_shop, noted):
    @any_shop.app.task(bind=True, autoretry_for=(Exception,), max_attempts=4, retry_backoff=False)
    def body(self):
        noted.append(1)
        raise self.retry(countdown=0)

    result = body.delay()
    any_shop.work()

    assert (result.run.state, result.run.terminal_reason, result.run.attempt) == ("dead", "failed_due_max_attempts", 4)
    assert len(noted) == 4


def test_max_retries_of_one_message_do_not_leak_to_another(any_shop, noted):
    @any_shop.app.task(bind=True, autoretry_for=(KeyError,), max_attempts=2, retry_kwargs={"countdown": 0})
    def body(self, name):
        noted.append(name)
        if name == "a" and noted.count("a") == 1:
            raise self.retry(max_retries=5, countdown=0)
        if name == "b":
            raise KeyError(name)

    body.delay("a")
    any_shop.work()
    other = body.delay("b")
    any_shop.work()

    assert (other.run.state, noted.count("b")) == ("dead", 2)


def test_max_retries_of_a_call_narrow_and_never_widen(any_shop, noted):
    @any_shop.app.task(bind=True, max_attempts=3)
    def body(self, most):
        noted.append(most)
        raise self.retry(countdown=0, max_retries=most)

    for most in (0, 1, 2, 50):
        body.delay(most)
    any_shop.work()

    assert {most: noted.count(most) for most in (0, 1, 2, 50)} == {0: 1, 1: 2, 2: 3, 50: 3}


def test_an_exhausted_retry_keeps_the_error_that_caused_it(any_shop):
    @any_shop.app.task(bind=True, max_attempts=2)
    def body(self):
        try:
            raise ConnectionResetError("by peer")
        except OSError as error:
            raise self.retry(exc=error, countdown=0) from error

    result = body.delay()
    any_shop.work()

    assert "by peer" in result.run.last_error
    with pytest.raises(AttemptsExhausted, match="by peer"):
        result.get()


def test_exhaustion_is_told_from_failure(any_shop):
    @any_shop.app.task(max_attempts=3)
    def busy():
        raise RetryableError("busy")

    @any_shop.app.task(max_attempts=3)
    def wrong():
        raise ValueError("wrong")

    exhausted, failed = busy.delay(), wrong.delay()
    any_shop.work()

    assert (exhausted.run.terminal_reason, exhausted.run.attempt) == ("failed_due_max_attempts", 3)
    assert (failed.run.terminal_reason, failed.run.attempt) == ("failed_non_retryable", 1)


def test_on_failure_is_called_once_for_an_exhausted_run(any_shop, noted):
    @any_shop.app.task(max_attempts=3, on_failure=lambda self, exc, *_: noted.append(type(exc)))
    def busy():
        raise RetryableError("busy")

    busy.delay()
    any_shop.work()

    assert noted == [AttemptsExhausted]


def test_the_body_knows_its_last_attempt(any_shop, noted):
    @any_shop.app.task(max_attempts=3)
    def busy():
        noted.append(current_run().is_last_attempt)
        raise RetryableError("busy")

    busy.delay()
    any_shop.work()

    assert noted == [False, False, True]


def test_throws_changes_the_log_and_not_the_meaning(any_shop):
    @any_shop.app.task(throws=(KeyError,))
    def wrong():
        raise KeyError("k")

    result = wrong.delay()
    any_shop.work()

    assert result.run.terminal_reason == "failed_non_retryable"


def test_ignore_is_a_success_without_a_result(any_shop):
    @any_shop.app.task
    def skip():
        raise Ignore

    result = skip.delay()
    any_shop.work()

    assert (result.run.state, result.run.attempt) == ("succeeded", 1)


@pytest.mark.parametrize(("requeue", "state", "attempts"), [(False, "failed", 1), (True, "dead", 3)])
def test_reject_is_a_failure_and_a_requeue_is_a_retry(any_shop, noted, requeue, state, attempts):
    @any_shop.app.task(max_attempts=3)
    def reject():
        noted.append(1)
        raise Reject("no", requeue=requeue)

    result = reject.delay()
    any_shop.work()

    assert (result.run.state, len(noted)) == (state, attempts)


def test_a_retry_without_a_countdown_waits_the_tasks_default_delay(any_shop):
    @any_shop.app.task(bind=True, default_retry_delay=600)
    def body(self):
        raise self.retry()

    result = body.delay()
    any_shop.deliver(any_shop.message())

    assert result.run.next_retry_at >= result.run.started_at + timedelta(seconds=600)


def test_five_snoozes_cost_no_attempt(any_shop, noted):
    @any_shop.app.task(max_attempts=2, backoff=[7, 700])
    def body():
        noted.append(current_run().attempt)
        if len(noted) <= 5:
            raise Snooze(60)
        if len(noted) == 6:
            raise RetryableError("busy")

    result = body.delay()
    any_shop.work()

    run = result.run
    assert (run.state, run.attempt, run.snoozes) == ("succeeded", 2, 5)
    assert noted == [1] * 6 + [2]


def test_the_first_retry_after_snoozes_waits_as_the_first(any_shop, noted):
    @any_shop.app.task(max_attempts=2, backoff=[7, 700])
    def body():
        noted.append(1)
        raise Snooze(1) if len(noted) < 4 else RetryableError("busy")

    result = body.delay()
    for _ in range(4):
        any_shop.deliver(any_shop.message())
        any_shop.clock.advance(1.1) if result.run.snoozes < 3 or len(noted) < 4 else None
        any_shop.dispatch()

    wait = result.run.next_retry_at - any_shop.clock()
    assert timedelta(seconds=5) < wait <= timedelta(seconds=7)


def test_a_snooze_past_the_deadline_ends_the_run(any_shop):
    @any_shop.app.task(deadline=60)
    def body():
        raise Snooze(3_600)

    result = body.delay()
    any_shop.work()

    assert (result.run.state, result.run.terminal_reason) == ("dead", "failed_due_deadline")


@pytest.mark.parametrize("delay", ["soon", None, float("nan"), float("inf"), -1, object()])
def test_a_snooze_of_any_length_leaves_the_run_in_a_stated_state(any_shop, noted, delay):
    @any_shop.app.task(deadline=60)
    def body():
        noted.append(1)
        if len(noted) == 1:
            raise Snooze(delay)

    result = body.delay()
    any_shop.work()

    assert result.run.state == ("succeeded" if delay == -1 else "dead")


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ([5, 50], [5, 50, 50]),
        ((timedelta(minutes=1),), [60, 60, 60]),
        (lambda attempt: 10 * attempt, [10, 20, 30]),
        (lambda attempt: timedelta(seconds=attempt), [1, 2, 3]),
    ],
    ids=["list", "one duration", "callable", "callable of durations"],
)
def test_delays_are_those_of_the_list_or_the_callable(any_shop, backoff, waits):
    @any_shop.app.task(max_attempts=4, backoff=backoff)
    def body():
        raise RetryableError("busy")

    result, seen = body.delay(), []
    for _ in waits:
        any_shop.deliver(any_shop.message())
        run = result.run
        seen.append(round((run.next_retry_at - run.attempts[-1].finished_at).total_seconds()))
        any_shop.clock.advance(seen[-1] + 1)
        any_shop.dispatch()

    assert seen == waits


@pytest.mark.parametrize("backoff", [lambda attempt: 1 / 0, lambda attempt: "x", lambda attempt: -1, lambda: 5])
def test_a_callable_that_gives_no_delay_gives_way_to_the_settings(any_shop, backoff):
    @any_shop.app.task(max_attempts=2, backoff=backoff)
    def body():
        raise RetryableError("busy")

    result = body.delay()
    any_shop.work()

    assert (result.run.state, result.run.attempt) == ("dead", 2)


def test_an_asked_delay_wins_over_the_backoff(any_shop):
    @any_shop.app.task(backoff=[1])
    def body():
        raise RetryableError("busy", retry_after=120)

    result = body.delay()
    any_shop.deliver(any_shop.message())

    wait = (result.run.next_retry_at - any_shop.clock()).total_seconds()
    assert 115 < wait <= 132


def test_the_unknown_have_a_budget_of_their_own_and_one_warning(any_shop, noted, caplog):
    class Odd(Exception):
        pass

    @any_shop.app.task(max_attempts=5)
    def body():
        noted.append(1)
        raise Odd("what is this?")

    result = body.delay()
    any_shop.work()

    assert (result.run.state, result.run.terminal_reason, len(noted)) == ("dead", "failed_due_max_attempts", 2)
    assert len([r for r in caplog.records if "no rule knows" in r.getMessage()]) == 1


def test_other_faults_do_not_use_up_the_budget_of_the_unknown(any_shop, noted):
    class Odd(Exception):
        pass

    @any_shop.app.task(max_attempts=6)
    def body():
        noted.append(1)
        raise RetryableError("busy") if len(noted) % 2 else Odd("odd")

    result = body.delay()
    any_shop.work()

    assert (result.run.state, len(noted)) == ("dead", 4)
