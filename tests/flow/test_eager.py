"""``apply()`` and ``task_always_eager`` go through the same states as a worker, with the same outcome."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import chain, group

from celery_guard import (
    AttemptsExhausted,
    DeadlineExceeded,
    GuardedResult,
    IdempotencyConflict,
    NonRetryableError,
    Reason,
    RetryableError,
    State,
    current_run,
)

BUSY = RetryableError("busy")


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases."""
    return any_shop


@pytest.fixture
def always_eager(shop):
    shop.app.conf.task_always_eager = True
    return shop


@pytest.fixture
def work(shop):
    """A task that raises what ``raising`` holds, then returns its argument."""

    @shop.app.task(name="work", bind=True, raising=[], seen=[])
    def work(self, value="done"):
        run = current_run()
        self.seen.append((run.attempt, self.request.retries, self.request.id == run.id))
        if self.raising:
            raise self.raising.pop(0)
        return value

    return shop.app.tasks["work"]


@pytest.fixture
def noted(shop):
    """A task that notes its calls."""

    @shop.app.task(name="noted", bind=True, calls=[])
    def noted(self, *args):
        self.calls.append(args)

    return shop.app.tasks["noted"]


# Endings


def test_a_success_is_one_attempt(work, shop):
    result = work.apply(("x",))

    assert (result.state, result.get(), result.created) == ("SUCCESS", "x", True)
    assert (shop.one().state, shop.one().attempt, shop.one().attempts) == (State.SUCCEEDED, 1, ())


def test_two_retries_and_then_a_success_are_three_attempts_without_waiting(work, shop):
    work.raising += [BUSY, BUSY]
    shop.app.conf.guard_backoff_base = 1_000

    result = work.apply()

    assert result.get() == "done"
    assert work.seen == [(1, 0, True), (2, 1, True), (3, 2, True)]
    assert (shop.one().state, shop.one().attempt, len(shop.one().attempts)) == (State.SUCCEEDED, 3, 2)


def test_a_permanent_error_is_one_attempt_and_the_tasks_own_exception(work, shop):
    work.raising += [NonRetryableError("no such address"), BUSY]

    result = work.apply()

    assert result.state == "FAILURE"
    assert (shop.one().state, shop.one().attempt) == (State.FAILED, 1)
    with pytest.raises(NonRetryableError, match="no such address"):
        result.get()


def test_attempts_used_up_end_the_run_with_the_reason(work, shop):
    work.raising += [BUSY] * 9

    result = work.apply(max_attempts=3)

    assert isinstance(result.result, AttemptsExhausted)
    assert (shop.one().state, shop.one().attempt) == (State.DEAD, 3)
    assert shop.one().terminal_reason is Reason.FAILED_DUE_MAX_ATTEMPTS
    assert [one.attempt for one in shop.one().attempts] == [1, 2, 3]


def test_unknown_errors_have_a_smaller_budget(work, shop):
    work.raising += [RuntimeError("what?")] * 9

    result = work.apply()

    assert isinstance(result.result, AttemptsExhausted)
    assert (shop.one().attempt, shop.one().unknown_faults) == (2, 2)


def test_known_errors_do_not_spend_the_budget_of_unknown_ones(work, shop):
    work.raising += [RuntimeError("what?"), BUSY, BUSY]

    result = work.apply()

    assert result.get() == "done"
    assert (shop.one().attempt, shop.one().unknown_faults) == (4, 1)


def test_a_wait_beyond_the_deadline_ends_the_run(work, shop):
    work.raising += [RetryableError("busy", retry_after=60)]

    result = work.apply(deadline=30)

    assert isinstance(result.result, DeadlineExceeded)
    assert (shop.one().attempt, shop.one().terminal_reason) == (1, Reason.FAILED_DUE_DEADLINE)


def test_a_body_that_returns_late_ends_the_run(shop):
    @shop.app.task
    def slow():
        shop.clock.advance(1)

    result = slow.apply(deadline=1)

    assert isinstance(result.result, DeadlineExceeded)
    assert shop.one().state is State.DEAD


def test_a_countdown_is_left_out(work, shop):
    result = work.apply(countdown=3_600)

    assert result.get() == "done"
    assert (shop.one().state, shop.one().next_retry_at) == (State.SUCCEEDED, None)


def test_a_countdown_beyond_the_deadline_is_refused(work, shop):
    with pytest.raises(ValueError, match="starts after the deadline"):
        work.apply(countdown=60, deadline=timedelta(seconds=30))

    assert shop.rows() == []


def test_no_message_is_sent(work, shop):
    work.raising += [BUSY]

    work.apply()

    assert shop.messages() == []
    assert shop.dispatch() == 0


def test_the_history_is_that_of_a_worker(work, shop):
    plan = [BUSY, RuntimeError("what?"), ConnectionError("refused"), NonRetryableError("no")]
    work.raising += plan
    eager = work.apply().run
    work.raising += plan
    result = work.delay()

    shop.work()

    def told(run):
        history = [(one.attempt, one.category, one.rule, one.error_type, one.error) for one in run.attempts]
        return run.state, run.terminal_reason, run.attempt, run.unknown_faults, run.last_error, history

    assert told(eager) == told(result.run)


# Propagation


def test_throw_raises_the_tasks_own_exception_and_ends_the_row(work, shop):
    work.raising += [NonRetryableError("no such address")]

    with pytest.raises(NonRetryableError, match="no such address"):
        work.apply(throw=True)

    assert shop.one().state is State.FAILED


def test_throw_retries_before_it_raises(work, shop):
    work.raising += [BUSY] * 9

    with pytest.raises(AttemptsExhausted, match="RetryableError: busy"):
        work.apply(throw=True, max_attempts=2)

    assert (shop.one().state, shop.one().attempt) == (State.DEAD, 2)


def test_the_configuration_propagates_for_every_task(work, shop):
    shop.app.conf.task_eager_propagates = True
    work.raising += [BUSY, NonRetryableError("no such address")]

    with pytest.raises(NonRetryableError):
        work.apply()

    assert [run.attempt for run in shop.rows()] == [2]


def test_throw_false_wins_over_the_configuration(work, shop):
    shop.app.conf.task_eager_propagates = True
    work.raising += [NonRetryableError("no such address")]

    assert work.apply(throw=False).state == "FAILURE"


def test_without_propagation_nothing_is_raised_until_get(work):
    work.raising += [NonRetryableError("no such address")]

    assert work.apply().failed()


# Links


def test_a_link_of_an_app_that_is_not_eager_is_sent_once_after_the_success(work, noted, shop):
    work.raising += [BUSY, BUSY]

    work.apply(("x",), link=noted.s("linked"))

    assert noted.calls == []
    assert shop.message().payload[0] == ["x", "linked"]


def test_a_link_of_an_eager_app_runs_once_after_the_success(always_eager, work, noted):
    work.raising += [BUSY, BUSY]

    work.apply_async(("x",), link=noted.s("linked"))

    assert noted.calls == [("x", "linked")]
    assert [run.state for run in always_eager.rows()] == [State.SUCCEEDED] * 2
    assert [run.owed for run in always_eager.rows()] == [False] * 2


def test_an_errback_runs_once_at_the_end(always_eager, work, noted):
    work.raising += [BUSY] * 9

    work.apply_async(link_error=noted.si("failed"), max_attempts=3)

    assert noted.calls == [("failed",)]
    assert always_eager.rows()[0].owed is False


def test_an_errback_does_not_run_after_a_success(always_eager, work, noted):
    work.raising += [BUSY]

    work.apply_async(link_error=noted.si("failed"))

    assert noted.calls == []


def test_links_given_by_place_are_links(always_eager, work, noted):
    work.apply(("x",), {}, noted.s("linked"))

    assert noted.calls == [("x", "linked")]


def test_a_chain_passes_its_results_on_and_each_step_has_a_row(always_eager, work, noted):
    chain(work.s("x"), work.s(), noted.s()).apply_async()

    assert noted.calls == [("x",)]
    assert [run.type for run in always_eager.rows()] == ["work", "work", "noted"]


def test_a_group_has_a_row_for_each_member(always_eager, work):
    result = group(work.s(n) for n in range(3)).apply_async()

    assert result.get() == [0, 1, 2]
    assert len(always_eager.rows()) == 3


# An app that is always eager


def test_delay_runs_at_once(always_eager, work):
    result = work.delay("x")

    assert (result.get(), result.run.state) == ("x", State.SUCCEEDED)
    assert always_eager.messages() == []


def test_options_of_the_guard_count(always_eager, work):
    result = work.apply_async(deadline=60, max_attempts=2, meta={"user": 7}, task_id="mine")

    assert (result.id, result.run.max_attempts, result.run.meta) == ("mine", 2, {"user": 7})


def test_a_key_used_again_does_not_run_again(always_eager, work):
    first = work.apply_async(("x",), idempotency_key="order-7")

    second = work.apply_async(("x",), idempotency_key="order-7")

    assert len(work.seen) == 1
    assert (second.created, second.id, second.get()) == (False, first.id, "x")
    assert isinstance(second, GuardedResult)


def test_a_key_used_again_with_another_payload_is_a_conflict(always_eager, work):
    work.apply_async(("x",), idempotency_key="order-7")

    with pytest.raises(IdempotencyConflict):
        work.apply_async(("y",), idempotency_key="order-7")


def test_a_task_inside_a_task_ends_no_later_than_it(always_eager, work):
    @always_eager.app.task(name="outer")
    def outer():
        return work.apply_async(deadline=3_600).run.deadline_at == current_run().deadline_at

    assert outer.apply_async(deadline=60).get() is True


def test_an_eager_task_that_retries_itself_runs_again(shop):
    @shop.app.task(bind=True)
    def again(self):
        if self.request.retries < 2:
            raise self.retry(countdown=3_600)
        return self.request.retries

    assert again.apply().get() == 2
    assert shop.one().attempt == 3
