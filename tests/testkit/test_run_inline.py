"""Runs go through their lives without a worker, and without waiting."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from celery import chain, chord, group
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_guard import InvalidOption, RetryableError, RunNotFound, State, current_run


def test_a_run_is_run_to_its_end(guard_kit, shop, mails):
    result = shop.send.delay(42)

    run = guard_kit.run_inline(result)

    assert (run.state, run.attempt, mails) == ("succeeded", 1, [42])
    assert result.get(timeout=1) == "receipt 42"


def test_the_clock_is_moved_over_the_waits_between_attempts(guard_kit, shop, mails):
    before = guard_kit.clock()

    run = guard_kit.run_inline(shop.fail.delay("retryable"))

    assert (run.state, run.terminal_reason, run.attempt) == ("dead", "failed_due_max_attempts", 3)
    assert guard_kit.clock() == before + timedelta(seconds=1 + 2)
    assert [one.rule for one in run.attempts] == ["raised_retryable"] * 3
    assert mails == [0, 0, 0]


def test_a_permanent_error_ends_a_run_at_once(guard_kit, shop):
    run = guard_kit.run_inline(shop.fail.delay("permanent"))

    assert (run.state, run.attempt) == ("failed", 1)


def test_other_runs_stay_where_they_are(guard_kit, shop, mails):
    other, wanted = shop.send.delay(1), shop.send.delay(2)

    guard_kit.run_inline(wanted.id)

    assert mails == [2]
    assert other.run.state == "queued"


def test_a_countdown_is_waited_for_by_the_clock(guard_kit, shop, mails):
    before = guard_kit.clock()
    result = shop.send.apply_async((42,), countdown=300)

    guard_kit.run_due()
    assert mails == []

    run = guard_kit.run_inline(result)
    assert run.started_at == before + timedelta(seconds=300)


def test_the_test_moves_the_clock_itself(guard_kit, shop, mails):
    shop.send.apply_async((42,), countdown=300)

    guard_kit.clock.advance(299)
    guard_kit.run_due()
    assert mails == []

    guard_kit.clock.advance(timedelta(seconds=1))
    guard_kit.run_due()
    assert mails == [42]


def test_a_run_whose_deadline_passes_in_the_queue_never_starts(guard_kit, shop, mails):
    result = shop.send.delay(42)

    guard_kit.clock.advance(timedelta(minutes=10))
    run = guard_kit.run_inline(result)

    assert (run.terminal_reason, run.attempt, mails) == ("failed_due_deadline", 0, [])


def test_a_body_may_take_long_by_the_clock(guard_kit, guard_app):
    left = []

    @guard_app.task(deadline=60)
    def slow() -> None:
        guard_kit.clock.advance(45)
        left.append(current_run().remaining())
        guard_kit.clock.advance(45)

    run = guard_kit.run_inline(slow.delay())

    assert left == [timedelta(seconds=15)]
    assert run.terminal_reason == "failed_due_deadline"


def test_a_wait_past_the_deadline_ends_a_run_now(guard_kit, guard_app):
    before = guard_kit.clock()

    @guard_app.task(deadline=60)
    def busy() -> None:
        raise RetryableError("later", retry_after=600)

    run = guard_kit.run_inline(busy.delay())

    assert run.terminal_reason == "failed_due_deadline"
    assert guard_kit.clock() == before


def test_a_chain_and_a_chord_are_run_with_all_that_follows(guard_kit, guard_app):
    @guard_app.task
    def double(number: int) -> int:
        return 2 * number

    @guard_app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    in_a_row = chain(double.s(1), double.s(), double.s()).apply_async()
    together = chord(group(double.s(number) for number in range(3)), total.s()).apply_async()

    runs = guard_kit.run_all()

    assert {run.state for run in runs} == {State.SUCCEEDED}
    assert in_a_row.get(timeout=1) == 8
    assert together.get(timeout=1) == 6


def test_tasks_submitted_by_a_body_can_be_looked_at(guard_kit, guard_app, shop):
    @guard_app.task(name="shop.order")
    def order(order_id: int) -> None:
        shop.send.delay(order_id)

    parent = guard_kit.run_inline(order.delay(42))

    assert guard_kit.assert_submitted(shop.send, 42).parent_id == parent.id


def test_a_task_without_a_guard_runs_along(guard_kit, guard_app):
    from celery import Task

    done = []

    @guard_app.task(base=Task)
    def plain(text: str) -> None:
        done.append(text)

    @guard_app.task
    def guarded() -> str:
        return "hello"

    guarded.apply_async(link=plain.s())

    guard_kit.run_all()
    assert done == ["hello"]


def test_an_always_eager_configuration_does_not_matter(guard_app, shop, mails, guard_database_url):
    from celery_guard.testing import open_kit

    guard_app.conf.task_always_eager = True

    with open_kit(guard_app, guard_database_url):
        shop.send.delay(42)
        assert mails == []

    assert guard_app.conf.task_always_eager is True


def test_an_unknown_id_is_an_error_that_lists_what_there_is(guard_kit, shop):
    shop.send.delay(42)

    with pytest.raises(RunNotFound, match=r"no run has the id 'run-1'; what was submitted:\n  shop.send\(42\)"):
        guard_kit.run_inline("run-1")


@pytest.mark.parametrize("run", [None, 42, "object"], ids=str)
def test_what_is_no_run_is_refused(guard_kit, shop, run):
    with pytest.raises(InvalidOption if run != "object" else RunNotFound):
        guard_kit.run_inline(run)


def test_a_run_whose_key_was_in_use_is_run_with_the_one_that_it_follows(guard_kit, shop, mails):
    shop.send.apply_async((42,), idempotency_key="receipt-42")
    follower = shop.send.apply_async((42,), idempotency_key="receipt-42", task_id="member-of-a-group")

    assert guard_kit.run_inline(follower).state == "succeeded"
    assert mails == [42]


def test_a_run_whose_message_is_gone_is_told(guard_kit, guard_app, shop):
    run = shop.send.delay(42)
    guard_app.control.purge()

    with pytest.raises(AssertionError, match=rf"nothing moves on what is left: shop.send\[{run.id}\] is queued"):
        guard_kit.run_inline(run)


@pytest.mark.parametrize("by", [-1, timedelta(seconds=-1)], ids=str)
def test_a_clock_does_not_go_backwards(guard_kit, by):
    with pytest.raises(InvalidOption, match="forwards only"):
        guard_kit.clock.advance(by)


def test_a_clock_can_be_moved_to_a_moment(guard_kit):
    moment = guard_kit.clock() + timedelta(days=1)

    guard_kit.clock.move_to(moment)
    guard_kit.clock.move_to(moment - timedelta(hours=1))

    assert guard_kit.clock() == moment


@pytest.mark.parametrize("by", [0.0005, timedelta(microseconds=999), 0.001], ids=str)
def test_a_clock_shows_whole_milliseconds(guard_kit, by):
    before = guard_kit.clock()

    guard_kit.clock.advance(by)

    assert guard_kit.clock() == before + timedelta(milliseconds=1)


def test_a_key_starts_anew_at_the_very_moment_of_an_ending(guard_kit, guard_app):
    @guard_app.task(max_attempts=2, idempotency_key="once", idempotency_rerun_after={"dead"})
    def fail() -> None:
        raise RetryableError("busy", retry_after=1 / 3)

    first = guard_kit.run_inline(fail.delay())

    assert guard_kit.run_inline(fail.delay()).redrive_of == first.id


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "tomorrow"], ids=["naive", "text"])
def test_a_moment_without_a_zone_is_refused(guard_kit, moment):
    with pytest.raises(InvalidOption, match="moment must"):
        guard_kit.clock.move_to(moment)


def test_the_clock_starts_at_the_real_time(guard_kit):
    assert abs(guard_kit.clock() - datetime.now(timezone.utc)) < timedelta(minutes=5)


def test_a_run_submitted_in_a_transaction_is_run_once_that_has_committed(guard_kit, shop, guard_database_url):
    engine = create_engine(guard_database_url)

    with Session(engine) as session:
        result = shop.send.apply_async((42,), session=session, deadline=60)
        session.commit()
    run = guard_kit.run_inline(result)
    engine.dispose()

    assert run.state == "succeeded"
    assert run.created_at == guard_kit.clock()


def test_a_coroutine_is_run_like_any_body(guard_kit, guard_app):
    @guard_app.task
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    result = work.delay()
    guard_kit.run_inline(result)

    assert result.get(timeout=1) == "done"
