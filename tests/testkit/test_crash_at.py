"""A worker dies where a test says, and the run goes on."""

from __future__ import annotations

from typing import get_args

import pytest
from sqlalchemy import create_engine

from celery_guard import InvalidOption, current_run
from celery_guard.testing import CrashPoint, open_kit


@pytest.mark.parametrize(
    ("point", "bodies", "attempts"),
    [("before_claim", 1, 1), ("after_claim", 1, 2), ("after_body", 2, 2), ("after_settle", 1, 1)],
)
def test_a_run_survives_the_death_of_its_worker(guard_kit, shop, mails, point, bodies, attempts):
    result = shop.send.delay(42)
    guard_kit.crash_at(point)

    run = guard_kit.run_inline(result)

    assert (run.state, len(mails), run.attempt) == ("succeeded", bodies, attempts)


@pytest.mark.parametrize("point", ["after_claim", "after_body"])
def test_a_task_that_must_not_run_twice_is_dead(guard_kit, shop, mails, point):
    result = shop.pay.delay()
    guard_kit.crash_at(point)

    run = guard_kit.run_inline(result)

    assert run.terminal_reason == "failed_due_worker_loss"
    assert len(mails) == (point == "after_body")


def test_a_worker_may_die_again_and_again(guard_kit, shop, mails):
    result = shop.send.apply_async((42,), max_attempts=3)
    for _ in range(3):
        guard_kit.crash_at("after_body")

    run = guard_kit.run_inline(result)

    assert run.terminal_reason == "failed_due_max_attempts"
    assert [one.error for one in run.attempts] == ["its worker stopped beating"] * 3
    assert mails == [42, 42, 42]


def test_nobody_knows_of_a_death_before_rescue_after(guard_kit, shop):
    result = shop.send.delay(42)
    guard_kit.crash_at("after_claim")

    guard_kit.run_due()
    guard_kit.clock.advance(29)
    guard_kit.run_due()
    assert result.run.state == "running"

    guard_kit.clock.advance(1)
    guard_kit.run_due()
    assert result.run.state == "retrying"


def test_a_deadline_may_come_before_the_rescue(guard_kit, shop):
    result = shop.send.apply_async((42,), deadline=5)
    guard_kit.crash_at("after_body")

    run = guard_kit.run_inline(result)

    assert run.terminal_reason == "failed_due_deadline"


def test_a_step_that_was_recorded_is_not_done_again(guard_kit, guard_app):
    charges = []

    @guard_app.task
    def ship() -> None:
        current_run().step("charge", charges.append, 42)

    guard_kit.crash_at("after_body")
    run = guard_kit.run_inline(ship.delay())

    assert (run.attempt, charges) == (2, [42])


def test_what_follows_a_run_is_not_lost_with_its_worker(guard_kit, shop, mails):
    first = shop.send.apply_async((1,), link=shop.send.si(2))
    guard_kit.crash_at("after_settle")

    guard_kit.run_inline(first)
    guard_kit.run_all()

    assert mails == [1, 2]


@pytest.mark.parametrize("point", ["after_body", "after_settle"])
def test_a_run_that_completed_itself_in_a_transaction_has_succeeded(guard_kit, guard_app, guard_database_url, point):
    engine = create_engine(guard_database_url)

    @guard_app.task
    def book() -> str:
        with engine.begin() as connection:
            current_run().complete_in(connection, "booked")
        return "booked"

    guard_kit.crash_at(point)
    result = book.delay()
    run = guard_kit.run_inline(result)
    engine.dispose()

    assert (run.state, run.attempt, result.get(timeout=1)) == ("succeeded", 1, "booked")


def test_an_unknown_point_is_refused(guard_kit):
    with pytest.raises(
        InvalidOption, match=r"before_claim, after_claim, after_body, after_settle, not at 'in_the_end'"
    ):
        guard_kit.crash_at("in_the_end")


@pytest.mark.parametrize("point", get_args(CrashPoint))
def test_a_crash_that_does_not_happen_fails_the_test(guard_app, guard_database_url, point):
    with (
        pytest.raises(AssertionError, match=f"no worker got as far as crash_at\\('{point}'\\)"),
        open_kit(guard_app, guard_database_url) as kit,
    ):
        kit.crash_at(point)


def test_an_eager_call_is_no_worker_that_could_die(guard_kit, shop):
    guard_kit.crash_at("after_body")

    assert shop.send.apply((41,)).get() == "receipt 41"

    guard_kit.run_inline(shop.send.delay(42))
