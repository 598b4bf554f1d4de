"""``self.replace(…)``: the row goes to the task that takes the place, and ends once."""

from __future__ import annotations

import pytest
from celery import Task, chain

from celery_guard import IdempotencyConflict, NonRetryableError, RetryableError


@pytest.fixture
def replaced(any_shop):
    """A task that is replaced by what the test says."""

    def make(by, **options):
        @any_shop.app.task(bind=True, name="replaced", **options)
        def replaced(self, number):
            raise self.replace(by(number))

        return replaced

    return make


@pytest.fixture
def double(any_shop, noted):
    @any_shop.app.task(name="double")
    def double(number):
        noted.append(number)
        return 2 * number

    return double


def test_a_guarded_replacement_takes_the_row_over(replaced, double, any_shop):
    result = replaced(double.s).delay(5)
    any_shop.work()

    run = any_shop.one()
    assert (run.id, run.type, run.state, run.attempt) == (result.id, "double", "succeeded", 1)
    assert result.get() == 10


def test_a_replacement_has_fresh_attempts_and_the_old_deadline(replaced, any_shop, noted):
    @any_shop.app.task(max_attempts=3)
    def stubborn(number):
        noted.append(number)
        raise RetryableError("busy")

    result = replaced(stubborn.s, deadline=600, max_attempts=1).delay(5)
    before = result.run.deadline_at
    any_shop.work()

    assert (result.run.state, result.run.attempt, len(noted)) == ("dead", 3, 3)
    assert result.run.deadline_at == before


def test_a_replacement_that_fails_is_the_failure_of_the_run(replaced, any_shop):
    @any_shop.app.task
    def refuse(number):
        raise NonRetryableError("no")

    result = replaced(refuse.s).delay(5)
    any_shop.work()

    assert result.run.terminal_reason == "failed_non_retryable"


def test_the_last_task_of_a_chain_takes_the_row_over(replaced, double, any_shop):
    result = replaced(lambda number: chain(double.s(number), double.s(), double.s())).delay(5)
    any_shop.work()

    assert result.get() == 40
    assert {run.state.value for run in any_shop.rows()} == {"succeeded"}
    assert len(any_shop.rows()) == 3


def test_what_followed_the_replaced_task_follows_the_replacement(replaced, double, any_shop, noted):
    (replaced(double.s).s(5) | double.s()).delay()
    any_shop.work()

    assert noted == [5, 10]
    assert [run.owed for run in any_shop.rows()] == [False, False]


def test_a_chain_in_the_place_of_a_link_is_followed_by_the_rest(replaced, double, any_shop, noted):
    (replaced(lambda number: chain(double.s(number), double.s())).s(5) | double.s()).delay()
    any_shop.work()

    assert noted == [5, 10, 20]
    assert {run.state.value for run in any_shop.rows()} == {"succeeded"}


def test_an_unguarded_replacement_ends_the_row_as_succeeded(replaced, any_shop, noted):
    @any_shop.app.task(base=Task, name="plain")
    def plain(number):
        noted.append(number)

    result = replaced(plain.s).delay(5)
    any_shop.work()

    assert (result.run.state, noted) == ("succeeded", [5])


def test_a_replacement_by_itself_ends(any_shop, noted):
    @any_shop.app.task(bind=True)
    def count_down(self, number):
        noted.append(number)
        if number:
            raise self.replace(self.s(number - 1))
        return "done"

    result = count_down.delay(3)
    any_shop.work()

    assert (noted, result.get()) == ([3, 2, 1, 0], "done")
    assert any_shop.one().state == "succeeded"


def test_the_key_goes_on_to_name_the_request_it_was_given_for(replaced, double, any_shop):
    task = replaced(double.s)
    first = task.apply_async((5,), idempotency_key="k")
    any_shop.work()

    again = task.apply_async((5,), idempotency_key="k")

    assert (again.id, again.created, again.get()) == (first.id, False, 10)
    with pytest.raises(IdempotencyConflict):
        task.apply_async((6,), idempotency_key="k")


def test_a_replacement_whose_key_is_in_use_takes_over_that_runs_ending(replaced, any_shop, noted):
    @any_shop.app.task(name="keyed", idempotency_key="n-{number}")
    def keyed(number):
        noted.append(number)
        return number

    keyed.delay(5)
    any_shop.work()

    result = replaced(keyed.s).delay(5)
    any_shop.deliver(any_shop.message())
    any_shop.work()

    assert result.run.state == "succeeded"


def test_a_copy_of_the_replaced_tasks_message_runs_nothing(replaced, double, any_shop, noted):
    result = replaced(double.s).delay(5)
    message = any_shop.message()
    any_shop.deliver(message)

    any_shop.deliver(message)

    assert (result.run.type, result.run.state, result.run.attempt, noted) == ("double", "queued", 0, [])
    any_shop.work()
    assert (result.get(), noted) == (10, [5])
