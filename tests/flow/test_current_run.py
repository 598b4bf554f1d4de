"""``current_run()``: what a body knows of its run, and of the time it has left."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

from celery_guard import CurrentRun, DeadlineExceeded, Reason, RetryableError, RunCancelled, State, current_run
from celery_guard.core.decide import Finish


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases."""
    return any_shop


@pytest.fixture
def inside(shop):
    """Call something inside a body, and say what it returned or raised."""

    @shop.app.task(name="inside", bind=True, non_retryable=Exception, works=[], found=[])
    def inside(self):
        work = self.works[-1]
        try:
            self.found.append(work())
        except Exception as error:
            self.found.append(error)

    task = shop.app.tasks["inside"]

    def run(work, **options):
        task.works.append(work)
        result = task.apply_async(**options)
        shop.deliver(shop.message())
        return task.found[-1], result

    return run


# What it says


def test_it_names_the_run_and_its_attempt(inside):
    run, result = inside(current_run, max_attempts=3)

    assert isinstance(run, CurrentRun)
    assert (run.id, run.type, run.attempt, run.max_attempts) == (result.id, "inside", 1, 3)
    assert run.deadline_at == result.run.deadline_at


def test_it_is_frozen(inside):
    run, _ = inside(current_run)

    with pytest.raises(AttributeError):
        run.attempt = 2


def test_it_counts_attempts_and_knows_the_last(shop):
    seen = []

    @shop.app.task(max_attempts=3)
    def work():
        seen.append((current_run().attempt, current_run().is_last_attempt))
        raise RetryableError("busy")

    work.delay()
    shop.work()

    assert seen == [(1, False), (2, False), (3, True)]


def test_the_key_is_the_callers(inside):
    run, _ = inside(current_run, idempotency_key="order-7")

    assert run.idempotency_key == "order-7"


def test_the_key_is_the_id_of_the_run_when_the_caller_gave_none(inside):
    run, result = inside(current_run)

    assert run.idempotency_key == result.id


def test_meta_is_the_callers(inside):
    run, _ = inside(current_run, meta={"user": 7})

    assert run.meta == {"user": 7}


def test_no_meta_is_an_empty_dict(inside):
    run, _ = inside(current_run)

    assert run.meta == {}


def test_moments_are_in_utc(inside):
    run, _ = inside(current_run)

    assert run.deadline_at.tzinfo is timezone.utc
    assert run.now().tzinfo is timezone.utc


def test_a_child_knows_whose_it_is(shop):
    seen = []

    @shop.app.task
    def child():
        seen.append((current_run().parent_id, current_run().root_id))

    @shop.app.task
    def parent():
        child.delay()

    result = parent.delay()
    shop.work()

    assert seen == [(result.id, result.id)]


# Time


def test_the_time_left_is_that_to_the_deadline(inside):
    left, _ = inside(lambda: current_run().remaining(), deadline=60)

    assert timedelta(seconds=30) < left <= timedelta(seconds=60)


def test_the_time_left_is_never_negative():
    run = CurrentRun("run-1", "work", deadline_at=datetime(2020, 1, 1, tzinfo=timezone.utc))

    assert run.remaining() == timedelta(0)


@pytest.mark.parametrize("at_most", [5, 5.0, timedelta(seconds=5)])
def test_a_timeout_is_what_the_caller_allows_when_more_is_left(inside, at_most):
    timeout, _ = inside(lambda: current_run().timeout(at_most=at_most), deadline=60)

    assert timeout == 5.0


def test_a_timeout_is_what_is_left_when_the_caller_allows_more(inside):
    timeout, _ = inside(lambda: current_run().timeout(at_most=600), deadline=60)

    assert 30 < timeout <= 60


def test_a_timeout_is_what_is_left_when_the_caller_says_nothing(inside):
    timeout, _ = inside(lambda: current_run().timeout(), deadline=60)

    assert 30 < timeout <= 60


def test_a_timeout_of_nothing_stays_nothing(inside):
    timeout, _ = inside(lambda: current_run().timeout(at_most=0), deadline=60)

    assert timeout == 0


def test_no_timeout_is_given_when_nothing_is_left(inside, shop):
    def work():
        shop.clock.advance(1)
        return current_run().timeout(at_most=5)

    error, result = inside(work, deadline=1)

    assert isinstance(error, DeadlineExceeded)
    assert result.id in str(error)


# Checks


def test_a_check_of_a_run_that_may_go_on_says_nothing(inside):
    found, _ = inside(lambda: current_run().check())

    assert found is None


def test_a_check_after_the_deadline_raises(inside, shop):
    def work():
        shop.clock.advance(1)
        current_run().check()

    error, _ = inside(work, deadline=1)

    assert isinstance(error, DeadlineExceeded)
    assert error.reason == "failed_due_deadline"


def test_a_check_of_a_cancelled_run_raises(inside, shop):
    def work():
        claim = shop.guard.runs.held(current_run().id, shop.sql("SELECT claim_token FROM task_run")[0][0]).claim
        shop.guard.runs.settle(claim, Finish(State.CANCELLED, Reason.CANCELLED))
        current_run().check()

    error, result = inside(work)

    assert isinstance(error, RunCancelled)
    assert result.run.state is State.CANCELLED


def test_a_check_of_an_attempt_that_another_took_over_raises(inside, shop):
    def work():
        shop.sql("UPDATE task_run SET claim_token = 'another'")
        current_run().check()

    error, _ = inside(work)

    assert isinstance(error, RunCancelled)


def test_a_body_that_lets_a_check_end_it_leaves_the_ending_as_it_is(shop):
    @shop.app.task
    def work():
        shop.sql("UPDATE task_run SET claim_token = 'another'")
        current_run().check()

    result = work.delay()
    told = shop.deliver(shop.message())

    assert told.state == "IGNORED"
    assert result.run.state is State.RUNNING


# Where it works


def test_outside_of_a_body_there_is_no_run():
    with pytest.raises(RuntimeError, match="inside the body of a guarded task only"):
        current_run()


def test_after_a_body_there_is_no_run(inside):
    inside(current_run)

    with pytest.raises(RuntimeError):
        current_run()


def test_after_a_body_that_raised_there_is_no_run(shop):
    @shop.app.task
    def work():
        raise ValueError("wrong")

    work.apply()

    with pytest.raises(RuntimeError):
        current_run()


def test_in_a_thread_of_the_bodys_own_there_is_no_run(inside):
    def work():
        found = []
        thread = threading.Thread(target=lambda: found.append(ask()))
        thread.start()
        thread.join()
        return found

    found, _ = inside(work)

    assert isinstance(found[0], RuntimeError)


def ask():
    try:
        return current_run()
    except RuntimeError as error:
        return error


def test_in_a_plain_direct_call_it_is_a_run_of_its_own_without_a_deadline_or_a_row(shop):
    @shop.app.task(name="work")
    def work():
        run = current_run()
        run.check()
        return run, run.remaining(), run.timeout(), run.timeout(at_most=timedelta(seconds=5))

    run, left, unlimited, limited = work()

    assert (run.type, run.attempt, run.is_last_attempt, run.idempotency_key) == ("work", 1, True, run.id)
    assert (left, unlimited, limited) == (timedelta.max, None, 5.0)
    assert shop.rows() == []


def test_two_plain_direct_calls_are_two_runs(shop):
    @shop.app.task
    def work():
        return current_run().id

    assert work() != work()


def test_a_child_of_a_plain_direct_call_inherits_no_deadline(shop):
    @shop.app.task(deadline=60)
    def child():
        """Do nothing."""

    @shop.app.task
    def parent():
        return child.delay().run.deadline_at

    assert timedelta(seconds=30) < parent() - shop.clock() <= timedelta(seconds=60)


def test_in_a_direct_call_inside_a_body_it_is_the_outer_run(shop):
    @shop.app.task
    def inner():
        return current_run().id

    @shop.app.task
    def outer():
        return [inner(), current_run().id]

    result = outer.delay()
    shop.work()

    assert result.get() == [result.id] * 2


def test_in_an_applied_task_inside_a_body_it_is_the_inner_run_and_then_the_outer_again(shop):
    @shop.app.task
    def inner():
        return current_run().id

    @shop.app.task
    def outer():
        first = inner.apply()
        return [first.get(disable_sync_subtasks=False) == first.id, current_run().id]

    result = outer.delay()
    shop.work()

    assert result.get() == [True, result.id]


def test_hooks_after_the_body_have_no_run(shop):
    seen = []

    @shop.app.task(on_success=lambda *_: seen.append(ask()))
    def work():
        """Do nothing."""

    work.apply()

    assert isinstance(seen[0], RuntimeError)
