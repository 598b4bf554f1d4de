"""What a caller sees of a run: ``run``, ``created``, ``state`` and ``get()``, with a result backend and without."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timezone

import pytest
from celery.exceptions import TaskRevokedError, TimeoutError
from celery.result import AsyncResult

from celery_guard import (
    AttemptsExhausted,
    DeadlineExceeded,
    EagerRun,
    GuardedResult,
    NonRetryableError,
    Reason,
    ResultNotKept,
    RetryableError,
    RunEnded,
    RunNotFound,
    State,
    TaskFailed,
    WorkerLost,
    get_run,
)
from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category
from celery_guard.flow.settle import lost_fault
from tests.infra.naming import shown


@pytest.fixture(params=[None, "cache+memory://"], ids=["without a backend", "with a backend"])
def shop(open_shop, store_url, request):
    """Every test here runs on both databases, with a result backend and without."""
    return open_shop(url=store_url, result_backend=request.param)


@pytest.fixture
def plain(open_shop):
    """An app without a result backend: only the row knows."""
    return open_shop()


class OutOfStock(Exception):
    """An error of the user's own."""

    def __init__(self, product: str, left: int) -> None:
        super().__init__(product, left)
        self.product, self.left = product, left


@pytest.fixture
def order(shop):
    """A task that returns its argument, or raises what ``raising`` holds."""

    @shop.app.task(name="order", bind=True, raising=[], non_retryable=OutOfStock)
    def order(self, value=None):
        if self.raising:
            raise self.raising.pop(0)
        return value

    return shop.app.tasks["order"]


# The result itself


def test_a_result_is_celerys_and_ours(order):
    result = order.delay()

    assert isinstance(result, AsyncResult)
    assert isinstance(result, GuardedResult)


def test_a_run_is_a_frozen_snapshot(order, shop):
    result = order.delay()
    before = result.run

    shop.work()

    assert (before.state, result.run.state) == (State.QUEUED, State.SUCCEEDED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.state = State.DEAD


def test_a_snapshot_tells_the_whole_life(order, shop):
    order.raising += [RetryableError("busy"), ConnectionError("refused")]
    result = order.delay(7)

    shop.work()

    run = result.run
    assert (run.type, run.state, run.terminal_reason, run.attempt) == ("order", State.SUCCEEDED, Reason.SUCCEEDED, 3)
    assert run.created_at <= run.started_at <= run.finished_at < run.deadline_at
    assert {moment.tzinfo for moment in (run.created_at, run.started_at, run.finished_at, run.deadline_at)} == {
        timezone.utc
    }
    assert [(one.attempt, one.category, one.error_type, one.error) for one in run.attempts] == [
        (1, Category.RETRYABLE, "RetryableError", "busy"),
        (2, Category.RETRYABLE, "ConnectionError", "refused"),
    ]
    assert "raise self.raising.pop(0)" in run.attempts[0].traceback


def test_a_run_can_be_read_by_its_id(order, shop):
    result = order.delay()

    assert get_run(result.id, app=shop.app) == result.run


def test_an_unknown_id_is_no_run(shop):
    with pytest.raises(RunNotFound, match="'nobody'"):
        get_run("nobody", app=shop.app)


def test_a_result_made_from_an_id_alone_reads_the_row(order, shop):
    run_id = order.delay(7).id
    shop.work()

    assert order.AsyncResult(run_id).get() == 7


# Success


@pytest.mark.parametrize(
    "value",
    [None, 0, "", [], {}, False, "ß \u0000 🦊", [1, {"a": None}], 2**70, "x" * 60_000],
    ids=lambda v: repr(v)[:20],
)
def test_a_success_gives_the_value(order, shop, value):
    result = order.delay(value)

    shop.work()

    assert (result.state, result.successful(), result.ready()) == ("SUCCESS", True, True)
    assert result.get() == value


def test_a_large_result_is_read_from_the_backend(open_shop):
    shop = open_shop(result_backend="cache+memory://", guard_result_max_bytes=100)
    big = shop.app.task(lot, name="big")

    result = big.delay(1_000)
    shop.work()

    assert result.get() == "x" * 1_000
    assert result.run.encoded_result is None


def test_a_large_result_without_a_backend_says_why_it_is_not_kept(open_shop):
    shop = open_shop(guard_result_max_bytes=100)
    big = shop.app.task(lot, name="big")

    result = big.delay(1_000)
    shop.work()

    assert (result.state, result.run.state) == ("SUCCESS", State.SUCCEEDED)
    with pytest.raises(ResultNotKept, match="guard_result_max_bytes"):
        result.get()


def test_a_result_of_exactly_the_limit_is_kept(open_shop):
    shop = open_shop(guard_result_max_bytes=100)
    big = shop.app.task(lot, name="big")

    result = big.delay(98)
    shop.work()

    assert result.get() == "x" * 98


def test_a_limit_of_nothing_keeps_nothing(open_shop):
    shop = open_shop(guard_result_max_bytes=0)
    big = shop.app.task(lot, name="big")

    result = big.delay(0)
    shop.work()

    assert result.run.state is State.SUCCEEDED
    with pytest.raises(ResultNotKept):
        result.get()


def lot(n):
    return "x" * n


def test_a_result_that_nobody_can_encode_is_a_success_where_nobody_keeps_it(plain):
    odd = plain.app.task(an_object, name="odd")

    result = odd.delay()
    plain.work()

    assert result.run.state is State.SUCCEEDED
    with pytest.raises(ResultNotKept):
        result.get()


def test_a_result_that_nobody_can_encode_is_a_failure_where_it_must_be_kept(open_shop):
    shop = open_shop(result_backend="cache+memory://")
    odd = shop.app.task(an_object, name="odd")

    result = odd.delay()
    shop.work()

    assert (result.run.state, result.run.attempts[0].rule) == (State.FAILED, "result_not_serializable")
    assert result.state == "FAILURE"


def an_object():
    return object()


def test_a_pickled_result_is_read_from_the_row(open_shop):
    shop = open_shop(result_serializer="pickle", accept_content=["json", "pickle"])
    odd = shop.app.task(a_set, name="odd")

    result = odd.delay()
    shop.work()

    assert result.get() == {1, 2}


def a_set():
    return {1, 2}


# On the way


def test_a_run_that_nobody_has_started_is_pending(order):
    result = order.delay()

    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)


def test_a_run_that_runs_is_started(order, shop):
    result = order.delay()

    shop.guard.runs.claim(result.id, "token", worker_id=None, fingerprint=None)

    assert result.state == "STARTED"


def test_a_run_that_waits_for_its_next_attempt_is_retrying(order, shop):
    order.raising += [RetryableError("busy")]
    result = order.delay()

    told = shop.deliver(shop.message())

    assert told.state == result.state == "RETRY"
    assert not result.ready()
    assert (result.run.state, result.run.last_error) == (State.RETRYING, "RetryableError: busy")


def test_waiting_ends_when_the_time_is_up(order):
    result = order.delay()

    with pytest.raises(TimeoutError):
        result.get(timeout=0.05)


def test_waiting_for_no_time_asks_once(order, shop):
    result = order.delay(7)
    with pytest.raises(TimeoutError):
        result.get(timeout=0)

    shop.work()

    assert result.get(timeout=0) == 7


def test_waiting_calls_back_while_it_waits(order, shop):
    result = order.delay(7)

    assert result.get(timeout=10, on_interval=shop.work) == 7


def test_a_pruned_run_is_pending_to_celery_and_not_found_to_us(order, shop, plain):
    result = GuardedResult("pruned", app=shop.app)

    assert result.state == "PENDING"
    with pytest.raises(RunNotFound):
        _ = result.run


# Failure


def test_a_permanent_error_is_the_tasks_own_exception(order, shop):
    order.raising += [OutOfStock("tea", 0)]
    result = order.delay()

    shop.work()

    assert (result.state, result.failed()) == ("FAILURE", True)
    assert (result.run.state, result.run.terminal_reason) == (State.FAILED, Reason.FAILED_NON_RETRYABLE)
    with pytest.raises(OutOfStock) as raised:
        result.get()
    assert raised.value.args == ("tea", 0)


def test_attempts_used_up_name_the_reason_and_the_last_error(order, shop):
    order.raising += [RetryableError("busy"), ConnectionError("refused")]
    result = order.apply_async(max_attempts=2)

    shop.work()

    assert result.run.terminal_reason is Reason.FAILED_DUE_MAX_ATTEMPTS
    with pytest.raises(AttemptsExhausted, match=r"^failed_due_max_attempts: ConnectionError: refused$") as raised:
        result.get()
    assert (raised.value.reason, raised.value.message) == ("failed_due_max_attempts", "ConnectionError: refused")


def test_a_deadline_that_passed_in_the_queue_names_the_reason(order, shop):
    result = order.apply_async(deadline=5)
    shop.clock.advance(6)

    told = shop.deliver(shop.message())

    assert type(told.value) is DeadlineExceeded
    assert (result.run.attempt, result.state) == (0, "FAILURE")
    with pytest.raises(DeadlineExceeded, match=r"^failed_due_deadline"):
        result.get()


def test_a_body_that_returns_late_ends_by_its_deadline(shop):
    @shop.app.task
    def slow():
        shop.clock.advance(1)
        return "too late"

    result = slow.apply_async(deadline=1)
    told = shop.deliver(shop.message())

    assert (told.state, type(told.value)) == ("FAILURE", DeadlineExceeded)
    assert (result.run.state, result.run.terminal_reason) == (State.DEAD, Reason.FAILED_DUE_DEADLINE)


def test_a_retry_that_can_not_start_before_the_deadline_ends_the_run_now(order, shop):
    order.raising += [RetryableError("busy", retry_after=60)]
    result = order.apply_async(deadline=30)

    shop.deliver(shop.message())

    assert result.run.terminal_reason is Reason.FAILED_DUE_DEADLINE
    with pytest.raises(DeadlineExceeded, match="RetryableError: busy"):
        result.get()


def test_a_lost_worker_names_the_reason_where_a_repeat_is_forbidden(order, shop):
    result = order.delay()
    claimed = shop.guard.runs.claim(result.id, "token", worker_id=None, fingerprint=None)
    finish = Finish(State.DEAD, Reason.FAILED_DUE_WORKER_LOSS, lost_fault("worker_lost", "killed"))

    shop.guard.runs.settle(claimed.claim, finish)

    with pytest.raises(WorkerLost, match=r"^failed_due_worker_loss: WorkerLost: killed"):
        result.get()


def test_a_cancelled_run_is_revoked(order, shop):
    result = order.delay()

    shop.guard.runs.finish_waiting(result.id, Finish(State.CANCELLED, Reason.CANCELLED), token="token")

    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get()


def test_an_error_is_returned_where_it_is_not_to_be_raised(order, shop):
    order.raising += [OutOfStock("tea", 0)]
    result = order.delay()
    shop.work()

    assert isinstance(result.get(propagate=False), OutOfStock)
    assert isinstance(result.result, OutOfStock)


def test_an_unknown_error_may_be_seen_twice(order, shop):
    order.raising += [RuntimeError("what?")] * 3
    result = order.delay()

    shop.work()

    assert (result.run.attempt, result.run.unknown_faults) == (2, 2)
    assert result.run.terminal_reason is Reason.FAILED_DUE_MAX_ATTEMPTS


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__("told")

    def __reduce__(self):
        raise TypeError("not me")


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [
        Unpicklable(1, 2),
        Hostile("x"),
        NonRetryableError("x" * 1_000_000),
        NonRetryableError("\x00 \ud800 ß"),
        NonRetryableError({(1, 2): object()}),
        NonRetryableError(),
    ],
    ids=["unpicklable", "hostile", "long", "broken text", "odd arguments", "nothing"],
)
def test_an_odd_permanent_error_still_ends_the_run(order, shop, error):
    type(order).non_retryable = (*order.non_retryable, Unpicklable, Hostile)
    order.raising += [error]
    result = order.delay()

    told = shop.deliver(shop.message())

    assert told.state == "FAILURE"
    assert result.run.state is State.FAILED
    assert len(result.run.last_error) <= 2_300
    assert result.failed()


def test_an_error_whose_arguments_no_json_can_hold_still_ends_the_run(open_shop):
    shop = open_shop(result_serializer="pickle", accept_content=["json", "pickle"])

    @shop.app.task(name="order")
    def order():
        odd: dict = {(1, 2): 3}
        odd["self"] = odd
        raise NonRetryableError(odd)

    result = order.delay()
    told = shop.deliver(shop.message())

    assert told.state == "FAILURE"
    assert result.run.state is State.FAILED


@pytest.mark.parametrize("error", [SystemExit(1), MemoryError("full"), KeyboardInterrupt()], ids=shown)
def test_an_error_that_would_end_the_process_is_a_fault_like_any_other(order, shop, error):
    order.raising += [error]
    result = order.delay()

    told = shop.deliver(shop.message())

    assert told.state == "RETRY"
    assert result.run.state is State.RETRYING


@pytest.mark.parametrize("error", [SystemExit(1), MemoryError("full"), KeyboardInterrupt()], ids=shown)
def test_an_error_that_would_end_the_process_ends_the_run_by_its_attempts(order, shop, error):
    order.raising += [error]
    result = order.apply_async(max_attempts=1)

    told = shop.deliver(shop.message())

    assert type(told.value) is AttemptsExhausted
    assert result.run.state is State.DEAD


def test_an_ending_survives_pickle_as_celery_needs(order, shop):
    order.raising += [RetryableError("busy")]
    order.apply_async(max_attempts=1)

    told = shop.deliver(shop.message())

    copy = pickle.loads(pickle.dumps(told.value))
    assert (type(copy), copy.reason, str(copy)) == (type(told.value), told.value.reason, str(told.value))


def test_a_permanent_error_too_large_for_its_row_is_told_by_its_reason(open_shop):
    shop = open_shop(guard_result_max_bytes=100)

    @shop.app.task(name="order")
    def order():
        raise NonRetryableError("x" * 1_000)

    result = order.delay()
    shop.deliver(shop.message())

    with pytest.raises(TaskFailed, match=r"^failed_non_retryable: NonRetryableError: xxx"):
        result.get()


@pytest.mark.parametrize("ending", [AttemptsExhausted, DeadlineExceeded, TaskFailed, WorkerLost])
def test_every_ending_of_the_guard_is_caught_by_one_name(ending):
    assert issubclass(ending, RunEnded)


def test_a_result_of_an_ignoring_task_is_none_at_once(shop):
    @shop.app.task(ignore_result=True)
    def order():
        return 7

    assert order.delay().get(timeout=0) is None


def test_an_eager_result_is_ours_too(order):
    result = order.apply((7,))

    assert isinstance(result, EagerRun)
    assert (result.get(), result.created, result.run.state) == (7, True, State.SUCCEEDED)
