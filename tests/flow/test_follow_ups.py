"""What Celery's tracer submits after a task, what other code sends, and messages whose row is gone."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from celery import Celery, chain, group

from celery_guard import DeadlineExceeded, NonRetryableError, Reason, RetryableError, State
from celery_guard.core.decide import Finish


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases."""
    return any_shop


@pytest.fixture
def head(shop):
    @shop.app.task(name="head", bind=True, raising=[])
    def head(self, value=1):
        if self.raising:
            raise self.raising.pop(0)
        return value

    return shop.app.tasks["head"]


@pytest.fixture
def noted(shop):
    """A task that notes its calls."""

    @shop.app.task(name="noted", bind=True, calls=[])
    def noted(self, *args):
        self.calls.append(list(args))

    return shop.app.tasks["noted"]


@pytest.fixture
def picky(shop):
    """A task that takes exactly one argument."""

    @shop.app.task(name="picky")
    def picky(value):
        return value

    return shop.app.tasks["picky"]


# What follows


def test_the_next_task_of_a_chain_gets_the_result_a_row_and_the_deadline(head, noted, shop):
    result = chain(head.s(7), noted.s()).apply_async(deadline=600)

    shop.work()

    first, second = shop.rows()
    assert noted.calls == [[7]]
    assert (second.id, second.parent_id, second.root_id) == (result.id, first.id, first.id)
    assert second.deadline_at == first.deadline_at


def test_a_chain_goes_on_once_after_retries(head, noted, shop):
    head.raising += [RetryableError("busy")] * 2
    chain(head.s(7), noted.s()).apply_async()

    shop.work()

    assert noted.calls == [[7]]


def test_a_chain_that_ends_early_runs_its_errback_once(head, noted, shop):
    head.raising += [NonRetryableError("no")]
    chain(head.s(7), head.s()).apply_async(link_error=noted.si("failed"))

    shop.work()

    assert noted.calls == [["failed"]]
    assert [run.type for run in shop.rows()] == ["head", "noted"]


def test_links_run_once_each_after_the_success(head, noted, shop):
    head.apply_async((7,), link=[noted.s("one"), noted.s("other")])

    shop.work()

    assert sorted(noted.calls) == [[7, "one"], [7, "other"]]


def test_an_errback_runs_once_when_the_attempts_are_used_up(head, noted, shop):
    head.raising += [RetryableError("busy")] * 3
    head.apply_async(link_error=noted.si("failed"), max_attempts=3)

    shop.work()

    assert noted.calls == [["failed"]]


def test_an_errback_has_time_after_the_deadline_of_what_failed(head, noted, shop):
    head.apply_async(deadline=5, link_error=noted.si("late"))
    shop.clock.advance(6)

    shop.work()

    assert noted.calls == [["late"]]
    assert shop.rows()[1].deadline_at > shop.rows()[0].deadline_at


def test_an_ending_with_a_follow_up_is_owed_until_it_is_through(head, noted, shop):
    result = head.apply_async(link=noted.s())
    message = shop.message()
    seen = []
    told = shop.guard.runs.told
    shop.guard.runs.told = lambda run_id: seen.append(shop.run(run_id).owed) or told(run_id)

    shop.deliver(message)

    assert seen == [True]
    assert result.run.owed is False


def test_an_ending_that_nobody_told_is_told_by_the_next_message_without_running_the_body(head, noted, shop):
    result = head.apply_async((7,), link=noted.s())
    shop.messages()
    claimed = shop.guard.runs.claim(result.id, "token", worker_id=None, fingerprint=None)
    finish = Finish(State.SUCCEEDED, Reason.SUCCEEDED)
    shop.guard.runs.settle(claimed.claim, finish, result="42", owed=True, lease=0.0)

    shop.work()

    assert noted.calls == [[42]]
    assert (result.run.attempt, result.run.owed) == (1, False)


def test_a_failure_that_nobody_told_is_told_as_the_tasks_own_exception(head, noted, shop):
    head.raising += [NonRetryableError("no")]
    result = head.apply_async(link_error=noted.si("failed"))
    message = shop.message()
    shop.guard.runs.told, told = lambda run_id: False, shop.guard.runs.told
    shop.deliver(message)
    shop.guard.runs.told = told
    noted.calls.clear()
    shop.messages()
    shop.clock.advance(120)

    shop.dispatch()
    again = shop.deliver(next(one for one in shop.messages() if one.headers["id"] == result.id))

    assert type(again.value) is NonRetryableError
    assert result.run.owed is False


# What can't follow


def test_a_next_task_whose_arguments_do_not_fit_is_a_failed_run_and_the_task_before_it_a_success(head, picky, shop):
    result = chain(head.s(7), picky.s("too", "many")).apply_async()

    told = shop.work()

    first, second = shop.rows()
    assert [one.state for one in told] == ["SUCCESS", "FAILURE"]
    assert (first.state, first.owed) == (State.SUCCEEDED, False)
    assert (second.id, second.state, second.terminal_reason) == (result.id, State.FAILED, Reason.FAILED_NON_RETRYABLE)
    assert "TypeError" in second.last_error
    assert (result.state, result.parent.get()) == ("FAILURE", 7)


def test_a_next_task_that_has_no_time_left_is_a_dead_run_and_the_task_before_it_a_success(head, noted, shop):
    passed = shop.clock() - timedelta(seconds=1)
    chain(head.s(7), noted.s().set(deadline=passed)).apply_async()
    told = shop.deliver(shop.message())
    shop.work()

    first, second = shop.rows()
    assert told.state == "SUCCESS"
    assert first.state is State.SUCCEEDED
    assert (second.state, second.terminal_reason) == (State.DEAD, Reason.FAILED_DUE_DEADLINE)
    assert noted.calls == []


def test_a_next_task_whose_options_are_wrong_is_a_failed_run(head, noted, shop):
    chain(head.s(7), noted.s().set(max_attempts=0)).apply_async()

    shop.work()

    first, second = shop.rows()
    assert (first.state, second.state) == (State.SUCCEEDED, State.FAILED)
    assert "InvalidOption: max_attempts must be" in second.last_error


def test_a_next_task_that_never_was_runs_its_errback_once(head, picky, noted, shop):
    chain(head.s(7), picky.s("too", "many").on_error(noted.si("failed"))).apply_async()

    shop.work()

    assert noted.calls == [["failed"]]


def test_what_comes_after_a_task_that_never_was_does_not_run(head, picky, noted, shop):
    chain(head.s(7), picky.s("too", "many"), noted.s()).apply_async()

    shop.work()

    assert noted.calls == []
    assert [run.type for run in shop.rows()] == ["head", "picky"]


def test_one_link_that_can_not_be_submitted_keeps_no_other_from_running(head, picky, noted, shop):
    head.apply_async((7,), link=[picky.s("too", "many"), noted.s()])

    shop.work()

    assert noted.calls == [[7]]
    assert sorted((run.type, run.state.value) for run in shop.rows()) == [
        ("head", "succeeded"),
        ("noted", "succeeded"),
        ("picky", "failed"),
    ]


def test_a_body_that_submits_wrongly_hears_of_it(picky, shop):
    @shop.app.task(name="outer")
    def outer():
        picky.delay("too", "many")

    result = outer.delay()
    told = shop.deliver(shop.message())

    assert type(told.value) is TypeError
    assert [run.id for run in shop.rows()] == [result.id]


# Groups and chords


def test_a_group_has_a_row_and_a_message_for_each_member(head, shop):
    result = group(head.s(n) for n in range(3)).apply_async()

    shop.work()

    assert sorted(run.id for run in shop.rows()) == sorted(child.id for child in result.children)
    assert [child.get() for child in result.children] == [0, 1, 2]


def test_the_body_of_a_chord_runs_once_with_all_results_after_retries(open_shop, store_url):
    shop = open_shop(url=store_url, result_backend="cache+memory://")

    @shop.app.task(bind=True, name="member", max_attempts=3)
    def member(self, n):
        if self.request.retries < n:
            raise RetryableError("busy")
        return n

    @shop.app.task(name="total", calls=[])
    def total(values):
        total.calls.append(sorted(values))
        return sum(values)

    result = (group(member.s(n) for n in range(3)) | total.s()).apply_async()
    shop.work()

    assert total.calls == [[0, 1, 2]]
    assert result.get() == 3


# Messages of others


def foreign(shop) -> Celery:
    """An app without celery_guard on the same broker."""
    app = Celery("other", broker=shop.app.conf.broker_url, set_as_current=False)
    app.conf.task_default_queue = shop.queue
    return app


def test_a_message_of_other_code_gets_a_row_when_it_is_claimed(head, shop):
    sent = foreign(shop).send_task("head", (7,))
    assert shop.rows() == []

    told = shop.deliver(shop.message())

    run = shop.one()
    assert (told.state, told.value) == ("SUCCESS", 7)
    assert (run.id, run.state, run.attempt) == (sent.id, State.SUCCEEDED, 1)


def test_a_message_of_other_code_is_retried_by_its_row(head, shop):
    head.raising += [RetryableError("busy")]
    sent = foreign(shop).send_task("head", (7,))

    shop.work()

    assert (shop.one().id, shop.one().state, shop.one().attempt) == (sent.id, State.SUCCEEDED, 2)


def test_a_copy_of_a_foreign_message_is_dropped(head, shop):
    foreign(shop).send_task("head", (7,))
    message = shop.message()
    shop.deliver(message)

    told = shop.deliver(message)

    assert told.state == "IGNORED"
    assert shop.one().attempt == 1


def test_a_foreign_message_keeps_its_links_through_a_retry(head, noted, shop):
    head.raising += [RetryableError("busy")]
    foreign(shop).send_task("head", (7,), link=noted.s("linked"))

    shop.work()

    assert noted.calls == [[7, "linked"]]


def test_a_foreign_message_that_has_expired_does_not_run(head, shop):
    sent = foreign(shop).send_task("head", (7,), expires=60)
    message = shop.message()
    shop.clock.advance(120)

    told = shop.deliver(message)

    assert told.state != "SUCCESS"
    assert sent.id not in {run.id for run in shop.rows() if run.state is State.SUCCEEDED}


# Messages without a row


def test_a_message_of_ours_without_its_row_is_never_run(head, noted, shop, caplog):
    result = noted.delay("x")
    message = shop.message()
    shop.sql(f"DELETE FROM task_run WHERE id = '{result.id}'")

    with caplog.at_level(logging.ERROR, "celery_guard"):
        told = shop.deliver(message)

    assert told.state == "IGNORED"
    assert noted.calls == []
    assert shop.rows() == []
    assert "has no row and is not run" in caplog.text


def test_a_deadline_that_passed_in_the_queue_is_told_once(noted, shop):
    result = noted.apply_async(deadline=5)
    message = shop.message()
    shop.clock.advance(6)

    first, second = shop.deliver(message), shop.deliver(message)

    assert (type(first.value), second.state) == (DeadlineExceeded, "IGNORED")
    assert noted.calls == []
    assert result.run.state is State.DEAD
