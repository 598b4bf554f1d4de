"""A user's hooks are called exactly when Celery says, and what they raise changes no ending."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from celery_guard import GuardedTask, NonRetryableError, RetryableError, State, current_run


class Hooked(GuardedTask):
    """Notes the calls of its hooks; ``broken`` names one that raises."""

    abstract = True
    calls: list[Any]
    broken: str | None = None

    def note(self, name: str, *facts: Any) -> None:
        self.calls.append((name, *facts))
        if self.broken == name:
            raise LookupError(f"{name} is broken")

    def before_start(self, task_id, args, kwargs):
        self.note("before_start", current_run().attempt)

    def on_success(self, retval, task_id, args, kwargs):
        self.note("on_success", retval)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        self.note("on_failure", type(exc).__name__)

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        self.note("on_retry", type(exc).__name__)

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        self.note("after_return", status)


@pytest.fixture
def work(shop):
    """A task that raises what it is told, once for each exception, and returns at last."""

    @shop.app.task(base=Hooked, name="work", bind=True, calls=[], plan=[])
    def work(self):
        self.calls.append(("body",))
        if self.plan:
            raise self.plan.pop(0)
        return "done"

    return shop.app.tasks["work"]


@pytest.fixture
def noted(shop):
    """An errback that notes its calls."""

    @shop.app.task(name="noted", bind=True, calls=[])
    def noted(self, *args):
        self.calls.append(args)

    return shop.app.tasks["noted"]


SUCCESS = [("before_start", 1), ("body",), ("on_success", "done"), ("after_return", "SUCCESS")]


# When they are called


def test_a_success_calls_each_of_its_hooks_once_and_in_order(work, shop):
    work.delay()

    shop.work()

    assert work.calls == SUCCESS


def test_the_same_hooks_are_called_in_eager_mode(work):
    work.apply()

    assert work.calls == SUCCESS


def test_each_retry_calls_its_hook_and_the_ending_calls_the_last_ones(work, shop):
    work.plan += [RetryableError("busy"), RetryableError("busy")]
    work.delay()

    shop.work()

    retried = [("body",), ("on_retry", "RetryableError")]
    assert work.calls == [
        ("before_start", 1),
        *retried,
        ("before_start", 2),
        *retried,
        ("before_start", 3),
        ("body",),
        ("on_success", "done"),
        ("after_return", "SUCCESS"),
    ]


def test_a_failure_calls_on_failure_once_with_the_tasks_own_exception(work, shop):
    work.plan += [NonRetryableError("no such address")]
    work.delay()

    shop.work()

    assert work.calls[2:] == [("on_failure", "NonRetryableError"), ("after_return", "FAILURE")]


def test_used_up_attempts_call_on_failure_once_with_the_reason(work, shop):
    work.plan += [RetryableError("busy")] * 2
    work.apply_async(max_attempts=2)

    shop.work()

    assert [call for call in work.calls if call[0] == "on_failure"] == [("on_failure", "AttemptsExhausted")]


def test_a_copy_of_a_finished_run_calls_no_hook(work, shop):
    work.delay()
    message = shop.message()
    shop.deliver(message)

    told = shop.deliver(message)

    assert told.state == "IGNORED"
    assert work.calls == SUCCESS


def test_a_copy_of_a_waiting_run_calls_no_hook(work, shop):
    work.plan += [RetryableError("busy")]
    work.delay()
    message = shop.message()
    shop.deliver(message)
    calls = list(work.calls)

    told = shop.deliver(message)

    assert told.state == "IGNORED"
    assert work.calls == calls


def test_a_run_that_can_not_start_any_more_calls_no_before_start(work, shop):
    work.apply_async(deadline=5)
    shop.clock.advance(6)

    shop.work()

    assert work.calls == [("on_failure", "DeadlineExceeded"), ("after_return", "FAILURE")]


def test_a_direct_call_calls_no_hook(work):
    work()

    assert work.calls == [("body",)]


#: Since Python 3.14 a partial that a class holds is a method, and takes the task as any other does.
PARTIAL = pytest.param(
    partial,
    id="partial",
    marks=[
        pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning"),
        pytest.mark.skipif(sys.version_info >= (3, 14), reason="a partial is a method since Python 3.14"),
    ],
)


@pytest.mark.parametrize("kind", [pytest.param(staticmethod, id="static"), PARTIAL])
def test_a_hook_that_takes_no_task_is_called_without_one(shop, kind):
    calls = []
    hooks = {
        name: kind(partial(note_call, calls, name))
        for name in ("before_start", "on_success", "on_failure", "on_retry", "after_return")
    }

    @shop.app.task(bind=True, **hooks)
    def work(self):
        if self.request.retries == 0:
            raise RetryableError("busy")
        return "done"

    work.delay()
    shop.work()

    assert [(name, len(args)) for name, args in calls] == [
        ("before_start", 3),
        ("on_retry", 5),
        ("before_start", 3),
        ("on_success", 4),
        ("after_return", 6),
    ]


def note_call(calls, name, *args):
    calls.append((name, args))


# When they raise


def test_a_before_start_that_raises_is_a_failed_attempt_and_the_body_does_not_run(work, shop):
    work.broken = "before_start"
    result = work.delay()

    shop.work()

    assert ("body",) not in work.calls
    assert result.run.state is State.FAILED
    assert result.run.last_error == "LookupError: before_start is broken"


def test_an_on_success_that_raises_leaves_the_success(work, noted, shop):
    work.broken = "on_success"
    result = work.apply_async(link_error=noted.si())

    told = shop.work()

    assert [one.state for one in told] == ["SUCCESS"]
    assert (result.run.state, result.run.owed, result.get()) == (State.SUCCEEDED, False, "done")


def test_an_on_failure_that_raises_leaves_the_failure_and_runs_the_errback_once(work, noted, shop):
    work.broken = "on_failure"
    work.plan += [NonRetryableError("no such address")]
    result = work.apply_async(link_error=noted.si("told"))

    told = shop.work()

    assert (told[0].state, type(told[0].value)) == ("FAILURE", NonRetryableError)
    assert noted.calls == [("told",)]
    assert (result.run.state, result.run.owed) == (State.FAILED, False)


def test_an_on_retry_that_raises_leaves_the_retry_and_runs_no_errback(work, noted, shop):
    work.broken = "on_retry"
    work.plan += [RetryableError("busy")]
    result = work.apply_async(link_error=noted.si("told"))

    told = shop.work()

    assert [one.state for one in told] == ["RETRY", "SUCCESS"]
    assert noted.calls == []
    assert result.get() == "done"


@pytest.mark.parametrize("plan", [[], [NonRetryableError("no such address")]], ids=["success", "failure"])
def test_an_after_return_that_raises_leaves_the_ending_and_nothing_owed(work, noted, shop, plan):
    work.broken = "after_return"
    work.plan += plan
    result = work.apply_async(link=noted.si("link"), link_error=noted.si("errback"))

    shop.work()

    assert noted.calls == [("errback",) if plan else ("link",)]
    assert (result.run.state, result.run.owed) == (State.FAILED if plan else State.SUCCEEDED, False)


@pytest.mark.parametrize("hook", ["on_success", "after_return"])
def test_an_eager_caller_sees_what_a_hook_raises_and_the_row_keeps_its_ending(work, noted, shop, hook):
    work.broken = hook

    with pytest.raises(LookupError, match=f"{hook} is broken"):
        work.apply(link=noted.si())

    run = shop.rows()[0]
    assert (run.state, run.owed) == (State.SUCCEEDED, False)


def test_an_eager_caller_sees_what_an_on_failure_raises_and_the_row_keeps_its_ending(work, noted, shop):
    work.broken = "on_failure"
    work.plan += [NonRetryableError("no such address")]

    with pytest.raises(LookupError, match="on_failure is broken"):
        work.apply(link_error=noted.si())

    run = shop.rows()[0]
    assert (run.state, run.owed) == (State.FAILED, False)
