"""``self.retry()``, ``autoretry_for`` and their kin keep their meaning, under the run's deadline and attempts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery.exceptions import Ignore, Reject, Retry

from celery_guard import (
    AttemptsExhausted,
    DeadlineExceeded,
    InvalidOption,
    Reason,
    State,
    TaskFailed,
    UnserializableArgument,
)
from tests.infra.naming import shown


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases."""
    return any_shop


@pytest.fixture
def again(shop):
    """A task that asks once to be run again, as ``asking`` says, and then returns what it got."""

    @shop.app.task(name="again", bind=True, asking={}, retried=[])
    def again(self, *args, **kwargs):
        if self.request.retries == 0:
            self.retried.append(self.request.id)
            raise self.retry(**self.asking)
        return [list(args), kwargs]

    return shop.app.tasks["again"]


def wait_of(shop, result) -> float:
    """Return for how many seconds the run waits."""
    run = result.run
    assert run.state is State.RETRYING, run
    return (run.next_retry_at - shop.clock()).total_seconds()


# When


def test_a_retry_is_a_waiting_row_and_no_message(again, shop):
    again.asking = {"countdown": 60}
    result = again.delay()

    told = shop.deliver(shop.message())

    assert told.state == "RETRY"
    assert shop.messages() == []
    assert 50 < wait_of(shop, result) <= 60


@pytest.mark.parametrize("countdown", [60, 60.0, timedelta(minutes=1)])
def test_a_countdown_says_how_long_to_wait(again, shop, countdown):
    again.asking = {"countdown": countdown}
    result = again.delay()

    shop.deliver(shop.message())

    assert 50 < wait_of(shop, result) <= 60


def test_an_eta_says_until_when_to_wait(again, shop):
    moment = shop.clock() + timedelta(minutes=1)
    again.asking = {"eta": moment}
    result = again.delay()

    shop.deliver(shop.message())

    assert abs(result.run.next_retry_at - moment) < timedelta(seconds=1)


def test_a_naive_eta_is_in_the_apps_time_zone(again, shop):
    moment = shop.clock() + timedelta(minutes=1)
    again.asking = {"eta": moment.replace(tzinfo=None)}
    result = again.delay()

    shop.deliver(shop.message())

    assert abs(result.run.next_retry_at - moment) < timedelta(seconds=1)


def test_without_a_wait_it_is_celerys_default(again, shop):
    result = again.delay()

    shop.deliver(shop.message())

    assert 170 < wait_of(shop, result) <= 180


def test_a_default_of_the_task_counts(again, shop):
    type(again).default_retry_delay = 20
    result = again.delay()

    shop.deliver(shop.message())

    assert 10 < wait_of(shop, result) <= 20


@pytest.mark.parametrize(
    "asking", [{"countdown": 0}, {"countdown": -5}, {"eta": datetime(2020, 1, 1, tzinfo=timezone.utc)}]
)
def test_a_wait_that_is_over_is_no_wait(again, shop, asking):
    again.asking = asking
    result = again.delay()

    shop.deliver(shop.message())

    assert wait_of(shop, result) <= 0.01
    assert shop.dispatch() == 1


def test_a_wait_beyond_the_deadline_ends_the_run(again, shop):
    again.asking = {"countdown": 60}
    result = again.apply_async(deadline=30)

    told = shop.deliver(shop.message())

    assert type(told.value) is DeadlineExceeded
    assert result.run.terminal_reason is Reason.FAILED_DUE_DEADLINE


@pytest.mark.parametrize(
    "asking",
    [
        {"countdown": "5"},
        {"countdown": True},
        {"countdown": float("nan")},
        {"countdown": float("inf")},
        {"countdown": 10**400},
        {"eta": "soon"},
        {"eta": 5},
        {"max_retries": "3"},
        {"max_retries": 1.5},
        {"max_retries": True},
        {"deadline": 60},
        {"max_attempts": 3},
        {"meta": {"user": 7}},
        {"expires": 60},
        {"task_id": "another"},
        {"idempotency_key": "order-7"},
    ],
    ids=shown,
)
def test_a_wrong_wish_fails_the_run_with_what_is_wrong(again, shop, asking):
    again.asking = asking
    result = again.delay()

    told = shop.deliver(shop.message())

    assert type(told.value) is InvalidOption
    assert result.run.state is State.FAILED
    assert next(iter(asking)) in result.run.last_error


@pytest.mark.parametrize("when", ["soon", timedelta(seconds=5), float("nan"), 1e300, object()], ids=shown)
def test_celerys_retry_raised_with_an_odd_time_waits_as_the_backoff_says(shop, when):
    @shop.app.task
    def again():
        raise Retry(when=when)

    result = again.delay()
    shop.deliver(shop.message())

    assert wait_of(shop, result) < 5


# How often


def test_attempts_used_up_end_the_run_with_the_error_that_was_given(shop):
    @shop.app.task(bind=True, max_attempts=2)
    def again(self):
        raise self.retry(exc=OSError("busy"), countdown=0.01)

    result = again.delay()
    shop.work()

    assert result.run.attempt == 2
    with pytest.raises(AttemptsExhausted):
        result.get()


def test_max_retries_of_the_task_is_one_attempt_less(shop):
    @shop.app.task(bind=True, max_retries=2, default_retry_delay=0.01)
    def again(self):
        raise self.retry()

    result = again.delay()
    shop.work()

    assert (result.run.attempt, result.run.max_attempts) == (3, 3)


def test_max_retries_of_one_call_counts_for_that_call(shop):
    @shop.app.task(bind=True)
    def again(self):
        raise self.retry(max_retries=0, countdown=0.01)

    result = again.delay()
    shop.work()

    assert (result.run.state, result.run.attempt) == (State.DEAD, 1)


def test_max_retries_of_one_call_allows_no_more_than_the_row(shop):
    @shop.app.task(bind=True, max_attempts=2)
    def again(self):
        raise self.retry(max_retries=99, countdown=0.01)

    result = again.delay()
    shop.work()

    assert result.run.attempt == 2


def test_max_retries_of_one_call_does_not_leak_into_another_message(shop):
    @shop.app.task(bind=True, max_attempts=3)
    def again(self, strict):
        raise self.retry(countdown=0.01, **({"max_retries": 0} if strict else {}))

    strict, other = again.delay(True), again.delay(False)
    shop.work()

    assert (strict.run.attempt, other.run.attempt) == (1, 3)


# What Celery hears


def test_the_error_that_was_given_is_what_celery_hears(again, shop):
    again.asking = {"exc": OSError("busy"), "countdown": 60}
    again.delay()

    told = shop.deliver(shop.message())

    assert isinstance(told.value.exc, OSError)


def test_a_wish_that_is_returned_and_not_raised_is_no_retry(shop):
    @shop.app.task(bind=True)
    def again(self):
        assert isinstance(self.retry(throw=False), Retry)
        return "done"

    result = again.delay()
    shop.work()

    assert (result.get(), result.run.attempt) == ("done", 1)


def test_a_direct_call_raises_the_error_that_was_given(again, shop):
    again.asking = {"exc": OSError("busy")}

    with pytest.raises(OSError, match="busy"):
        again()

    assert shop.rows() == []


# With other arguments


def test_the_same_arguments_come_again(again, shop):
    again.asking = {"countdown": 0.01}
    result = again.delay(1, x=2)

    shop.work()

    assert result.get() == [[1], {"x": 2}]


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        ({"args": (7,)}, [[7], {"x": 2}]),
        ({"kwargs": {"x": 7}}, [[1], {"x": 7}]),
        ({"args": (7,), "kwargs": {"x": 8}}, [[7], {"x": 8}]),
        ({"args": ()}, [[], {"x": 2}]),
        ({"kwargs": {}}, [[1], {}]),
        ({"args": [], "kwargs": {}}, [[], {}]),
    ],
    ids=shown,
)
def test_other_arguments_take_the_place_of_the_first(again, shop, asking, expected):
    again.asking = {**asking, "countdown": 0.01}
    result = again.delay(1, x=2)

    shop.work()

    assert result.get() == expected


@pytest.mark.parametrize(
    ("submitted", "asking"),
    [(((1,), {}), {"kwargs": {"page": 2}}), (((), {"page": 1}), {"args": (2,)})],
    ids=["by name after by place", "by place after by name"],
)
def test_an_argument_may_be_given_in_another_way(shop, submitted, asking):
    @shop.app.task(bind=True)
    def read(self, page):
        if page == 1:
            raise self.retry(countdown=0.01, **asking)
        return page

    result = read.apply_async(*submitted)
    shop.work()

    assert result.get() == 2


def test_a_copy_of_the_first_message_runs_with_the_newest_arguments(again, shop):
    again.asking = {"args": (7,), "countdown": 0.01}
    result = again.delay(1)
    message = shop.message()
    shop.deliver(message)
    shop.clock.advance(1)
    shop.dispatch()
    message.headers["retries"] = 1

    shop.deliver(message)

    assert result.get() == [[7], {}]


def test_an_argument_that_can_not_be_encoded_fails_the_run(again, shop):
    again.asking = {"args": (object(),)}
    result = again.delay(1)

    told = shop.deliver(shop.message())

    assert type(told.value) is UnserializableArgument
    assert result.run.state is State.FAILED


def test_arguments_that_do_not_fit_fail_the_run(shop):
    @shop.app.task(bind=True)
    def read(self, page):
        raise self.retry(args=(1, 2, 3))

    result = read.delay(1)
    told = shop.deliver(shop.message())

    assert type(told.value) is TypeError
    assert result.run.state is State.FAILED


def test_another_queue_is_where_the_next_attempt_goes(again, shop):
    again.asking = {"queue": f"{shop.queue}-slow", "countdown": 0.01}
    result = again.delay(1)
    shop.deliver(shop.message())
    shop.clock.advance(1)

    shop.dispatch()

    assert result.run.queue == f"{shop.queue}-slow"
    assert shop.message(f"{shop.queue}-slow").headers["id"] == result.id


def test_another_time_limit_holds_for_the_next_attempt(again, shop):
    again.asking = {"time_limit": 30, "soft_time_limit": 20, "countdown": 0.01}
    again.delay(1)
    shop.deliver(shop.message())
    shop.clock.advance(1)

    shop.dispatch()

    assert shop.message().headers["timelimit"] == [30, 20]


# autoretry_for


def test_autoretry_makes_an_error_worth_a_repeat(shop):
    @shop.app.task(autoretry_for=(ValueError,), retry_backoff=2, retry_jitter=False)
    def work():
        raise ValueError("not yet")

    result = work.delay()
    shop.deliver(shop.message())

    assert 1 < wait_of(shop, result) <= 2
    assert result.run.attempts[0].rule == "celery_retry"


def test_the_backoff_of_autoretry_doubles_with_each_attempt(shop):
    @shop.app.task(autoretry_for=(ValueError,), retry_backoff=2, retry_jitter=False)
    def work():
        raise ValueError("not yet")

    result = work.delay()
    shop.deliver(shop.message())
    shop.clock.advance(3)
    shop.dispatch()
    shop.deliver(shop.message())

    assert 3 < wait_of(shop, result) <= 4


def test_autoretry_ends_with_the_attempts(shop):
    @shop.app.task(autoretry_for=(ValueError,), retry_kwargs={"countdown": 0.01}, max_retries=2)
    def work():
        raise ValueError("not yet")

    result = work.delay()
    shop.work()

    assert (result.run.state, result.run.attempt) == (State.DEAD, 3)


def test_max_retries_of_autoretry_counts(shop):
    @shop.app.task(autoretry_for=(ValueError,), retry_kwargs={"countdown": 0.01, "max_retries": 1})
    def work():
        raise ValueError("not yet")

    result = work.delay()
    shop.work()

    assert result.run.attempt == 2


def test_what_is_excepted_from_autoretry_is_judged_by_the_rules(shop):
    @shop.app.task(autoretry_for=(Exception,), dont_autoretry_for=(KeyError,))
    def work():
        raise KeyError("for good")

    result = work.delay()
    shop.deliver(shop.message())

    assert (result.run.state, result.run.attempt) == (State.FAILED, 1)


def test_autoretry_still_retries_under_the_deadline(shop):
    @shop.app.task(autoretry_for=(ValueError,), retry_kwargs={"countdown": 60})
    def work():
        raise ValueError("not yet")

    result = work.apply_async(deadline=30)
    shop.deliver(shop.message())

    assert result.run.terminal_reason is Reason.FAILED_DUE_DEADLINE


# Ignore and Reject


def test_a_body_that_asks_to_be_ignored_has_succeeded(shop):
    @shop.app.task
    def work():
        raise Ignore("somebody else told the state")

    result = work.delay()
    told = shop.deliver(shop.message())

    assert told.state == "IGNORED"
    assert (result.run.state, result.run.owed) == (State.SUCCEEDED, False)


def test_a_body_that_rejects_its_message_has_failed(shop):
    @shop.app.task
    def work():
        raise Reject("poison")

    result = work.delay()
    told = shop.deliver(shop.message())

    assert (told.state, type(told.value)) == ("FAILURE", TaskFailed)
    assert (result.run.state, result.run.attempts[0].rule) == (State.FAILED, "celery_reject")


def test_a_body_that_wants_its_message_back_in_the_queue_is_retried(shop):
    @shop.app.task
    def work():
        raise Reject("not here", requeue=True)

    result = work.delay()
    told = shop.deliver(shop.message())

    assert told.state == "RETRY"
    assert result.run.state is State.RETRYING
