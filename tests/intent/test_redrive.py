"""Running again what has ended."""

from __future__ import annotations

import pytest
from celery import group

from celery_guard import (
    InvalidOption,
    NonRetryableError,
    RetryableError,
    RunNotFound,
    cancel,
    current_run,
    redrive,
)


@pytest.fixture
def plan():
    return {"error": None}


@pytest.fixture
def ship(any_shop, plan, noted):
    @any_shop.app.task(max_attempts=2)
    def ship(order_id, copies=1):
        noted.append((order_id, copies))
        if plan["error"] is not None:
            raise plan["error"]
        return order_id

    return ship


@pytest.mark.parametrize("ending", ["succeeded", "failed", "dead", "cancelled"])
def test_an_ended_run_runs_again_as_a_new_one(ship, plan, any_shop, ending):
    plan["error"] = {"failed": NonRetryableError("no"), "dead": RetryableError("busy")}.get(ending)
    old = ship.apply_async((7,), {"copies": 2}, meta={"user": "ada"}, idempotency_key="order-7")
    cancel(old.id, app=any_shop.app) if ending == "cancelled" else any_shop.work()
    any_shop.messages()
    assert old.run.state == ending
    any_shop.clock.advance(3_600)
    plan["error"] = None

    new = redrive(old.id, app=any_shop.app)

    assert new.id != old.id
    assert (new.run.redrive_of, new.run.meta, new.run.attempt) == (old.id, {"user": "ada"}, 0)
    assert new.run.deadline_at > old.run.deadline_at
    any_shop.dispatch()
    any_shop.work()
    assert (new.run.state, new.get()) == ("succeeded", 7)
    assert old.run.state == ending


@pytest.mark.parametrize("state", ["queued", "running", "retrying"])
def test_a_live_run_is_refused(ship, plan, any_shop, state):
    old = ship.apply_async((7,))
    if state == "running":
        any_shop.guard.runs.claim(old.id, "token", worker_id=None, fingerprint=None)
    elif state == "retrying":
        plan["error"] = RetryableError("busy", retry_after=60)
        any_shop.deliver(any_shop.message())

    with pytest.raises(InvalidOption, match=f"{state}: only a run that has ended"):
        redrive(old.id, app=any_shop.app)

    assert len(any_shop.rows()) == 1


@pytest.mark.parametrize("run_id", ["nobody", "", "a\x00b", "x" * 1_000, "\ud800"])
def test_an_unknown_run_is_refused(any_shop, run_id):
    with pytest.raises(RunNotFound):
        redrive(run_id, app=any_shop.app)


def test_a_run_of_another_namespace_is_unknown(ship, open_shop, any_shop):
    old = ship.delay(7)
    any_shop.work()
    other = open_shop(url=any_shop.guard.settings.database_url, guard_namespace="other")

    with pytest.raises(RunNotFound):
        redrive(old.id, app=other.app)


def test_a_redriven_run_can_be_redriven(ship, any_shop):
    first = ship.delay(7)
    any_shop.work()
    second = redrive(first.id, app=any_shop.app)
    any_shop.dispatch()
    any_shop.work()
    third = redrive(second.id, app=any_shop.app)

    assert third.run.redrive_of == second.id


def test_the_arguments_of_the_latest_attempt_are_those_that_run_again(any_shop, noted):
    @any_shop.app.task(bind=True)
    def page(self, number):
        noted.append(number)
        if number == 1:
            raise self.retry(args=(2,), countdown=0)

    old = page.delay(1)
    any_shop.work()
    redrive(old.id, app=any_shop.app)
    any_shop.dispatch()
    any_shop.work()

    assert noted == [1, 2, 2]


def test_links_and_chains_run_again(ship, any_shop):
    seen = []

    @any_shop.app.task
    def note(value, where):
        seen.append((where, value))

    chain = (ship.s(7) | note.s("chain")).set(link=None)
    result = chain.delay()
    any_shop.work()
    redrive(result.parent.id, app=any_shop.app)
    any_shop.dispatch()
    any_shop.work()

    assert seen == [("chain", 7)] * 2


def test_a_member_of_a_group_runs_again_alone(ship, any_shop):
    result = group(ship.s(1), ship.s(2))()
    any_shop.work()

    new = redrive(result.results[0].id, app=any_shop.app)
    any_shop.dispatch()
    (message,) = any_shop.messages()

    assert message.headers["id"] == new.id
    assert message.headers["group"] is None


def test_steps_of_the_old_run_are_done_again(any_shop, noted):
    @any_shop.app.task
    def charge():
        return current_run().step("charge", lambda: noted.append(1))

    old = charge.delay()
    any_shop.work()
    redrive(old.id, app=any_shop.app)
    any_shop.dispatch()
    any_shop.work()

    assert noted == [1, 1]


def test_a_follow_up_that_could_not_be_submitted_runs_with_its_own_arguments(any_shop, noted):
    plan = {"key": ""}

    @any_shop.app.task
    def head():
        return 1

    @any_shop.app.task(idempotency_key=lambda value=0: plan["key"])
    def tail(value=0):
        noted.append(value)

    (head.s() | tail.s()).delay()
    any_shop.work()
    (stillborn,) = [run for run in any_shop.rows() if run.type.endswith("tail")]
    assert stillborn.state == "failed"
    plan["key"] = "k"

    redrive(stillborn.id, app=any_shop.app)
    any_shop.dispatch()
    any_shop.work()

    assert noted == [1]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyError, AttributeError, TypeError])
def test_a_key_that_can_not_be_made_is_the_failure_of_the_follow_up_only(any_shop, error):
    def make(value):
        raise error("oops")

    @any_shop.app.task
    def head():
        return 1

    @any_shop.app.task(idempotency_key=make)
    def tail(value):
        return value

    result = (head.s() | tail.s()).delay()
    any_shop.work()

    assert result.parent.run.state == "succeeded"
    assert result.run.state == "failed"
