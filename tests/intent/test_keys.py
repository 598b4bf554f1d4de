"""One key, one run: whatever the state, however the call is spelt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel

from celery_guard import (
    IdempotencyConflict,
    InvalidOption,
    NonRetryableError,
    RetryableError,
    RunNotFound,
    cancel,
    current_run,
)
from celery_guard.flow.sweep import Sweeper

ENDINGS = ["succeeded", "failed", "dead", "cancelled"]
STATES = ["queued", "running", "retrying", *ENDINGS]


@pytest.fixture
def plan():
    """What the body raises next."""
    return {"error": None}


@pytest.fixture
def ship(any_shop, plan):
    @any_shop.app.task
    def ship(order_id, copies=1, note=None):
        if plan["error"] is not None:
            raise plan["error"]
        return [order_id, copies, note]

    return ship


@pytest.fixture
def bring_to(any_shop, plan):
    """Bring a queued run to a state, by what happens to runs."""

    def bring(result, state):
        if state == "running":
            assert any_shop.guard.runs.claim(result.id, "token", worker_id=None, fingerprint=None)
        elif state == "retrying":
            plan["error"] = RetryableError("busy", retry_after=60)
            any_shop.deliver(any_shop.message())
        elif state == "succeeded":
            any_shop.work()
        elif state == "failed":
            plan["error"] = NonRetryableError("no")
            any_shop.work()
        elif state == "dead":
            plan["error"] = RetryableError("busy")
            any_shop.work()
        elif state == "cancelled":
            assert cancel(result.id, app=any_shop.app)
        plan["error"] = None
        assert result.run.state == state

    return bring


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((7,), {"copies": 2}), ((), {"copies": 2, "order_id": 7}), ((7, 2), {"note": None})],
    ids=["identical", "keywords in another order", "defaults spelt out"],
)
def test_the_same_request_is_the_same_run_in_every_state(ship, bring_to, any_shop, state, args, kwargs):
    first = ship.apply_async((7,), {"copies": 2}, idempotency_key="order-7")
    bring_to(first, state)

    again = ship.apply_async(args, kwargs, idempotency_key="order-7")

    assert (again.id, again.created, again.run.state) == (first.id, False, state)
    assert len(any_shop.rows()) == 1


@pytest.mark.parametrize("state", STATES)
def test_another_request_is_a_conflict_in_every_state(ship, bring_to, any_shop, state):
    first = ship.apply_async((7,), {"copies": 2}, idempotency_key="order-7")
    bring_to(first, state)

    with pytest.raises(IdempotencyConflict, match=first.id):
        ship.apply_async((7,), {"copies": 3}, idempotency_key="order-7")

    assert len(any_shop.rows()) == 1
    assert first.run.state == state


def test_the_result_of_the_first_run_is_the_result_of_the_second_call(ship, any_shop):
    ship.apply_async((7,), idempotency_key="order-7")
    any_shop.work()

    assert ship.apply_async((7,), idempotency_key="order-7").get() == [7, 1, None]


def test_no_key_is_no_shared_run(ship):
    first = ship.apply_async((7,), idempotency_key=None)
    second = ship.apply_async((7,))

    assert first.id != second.id
    assert second.created


@pytest.mark.parametrize(
    "key", ["", "   ", "\t\n", 0, 1, False, b"order-7", 7.5, ["order-7"], "x" * 256, "x" * 300, "a\x00b", "\ud800"]
)
def test_a_key_that_is_no_usable_text_is_refused_and_nothing_is_submitted(ship, any_shop, key):
    with pytest.raises(InvalidOption, match="idempotency_key"):
        ship.apply_async((7,), idempotency_key=key)

    assert any_shop.rows() == []


@pytest.mark.parametrize("scope", ["", " ", 0, "x" * 300, b"tenant"])
def test_a_scope_that_is_no_usable_text_is_refused(ship, scope):
    with pytest.raises(InvalidOption, match="idempotency_scope"):
        ship.apply_async((7,), idempotency_key="order-7", idempotency_scope=scope)


@pytest.mark.parametrize("key", ["null", "None", "0", "bestellung-ä-日本-🧾", "x" * 255, " order-7 ", "a'b\"c%s{}"])
def test_any_other_text_is_a_key_as_it_is(ship, key):
    first = ship.apply_async((7,), idempotency_key=key)
    again = ship.apply_async((7,), idempotency_key=key)

    assert again.id == first.id
    assert again.run.idempotency_key == key


def test_keys_that_look_alike_are_different_keys(ship):
    keys = ["é", "e\u0301", "order-7", "Order-7", " order-7"]

    assert len({ship.apply_async((7,), idempotency_key=key).id for key in keys}) == len(keys)


def test_a_key_is_unique_within_its_scope(ship):
    def submit(scope):
        return ship.apply_async((7,), idempotency_key="order-7", idempotency_scope=scope).id

    assert submit("one") == submit("one")
    assert submit("one") != submit("two")


def test_two_tasks_with_one_scope_share_their_keys(ship, any_shop):
    @any_shop.app.task
    def other(order_id):
        return None

    first = ship.apply_async((7,), idempotency_key="k", idempotency_scope="client")

    with pytest.raises(IdempotencyConflict, match=first.id):
        other.apply_async((8,), idempotency_key="k", idempotency_scope="client")


def test_two_tasks_with_one_scope_and_equal_arguments_are_not_the_same_request(ship, any_shop):
    @any_shop.app.task
    def refund(order_id):
        return None

    first = ship.apply_async((7,), idempotency_key="k", idempotency_scope="client")

    with pytest.raises(IdempotencyConflict, match=first.id):
        refund.apply_async((7,), idempotency_key="k", idempotency_scope="client")


def test_the_body_sees_the_key(any_shop, noted):
    @any_shop.app.task
    def see():
        noted.append(current_run().idempotency_key)

    see.apply_async(idempotency_key="order-7")
    any_shop.work()

    assert noted == ["order-7"]


def test_the_key_of_a_run_without_one_is_its_id(any_shop, noted):
    @any_shop.app.task
    def see():
        noted.append(current_run().idempotency_key)

    result = see.delay()
    any_shop.work()

    assert noted == [result.id]


# A key per task


def test_a_template_makes_the_key_of_the_bound_arguments(any_shop):
    @any_shop.app.task(idempotency_key="export-{tenant}-{day}-{copies}", idempotency_scope="{tenant}")
    def export(tenant, day, copies=1):
        return None

    first = export.delay("acme", "monday")
    again = export.delay(day="monday", tenant="acme", copies=1)

    assert (first.run.idempotency_key, again.id) == ("export-acme-monday-1", first.id)


def test_a_template_works_on_a_bound_task(any_shop):
    @any_shop.app.task(bind=True, idempotency_key="order-{order_id}")
    def ship(self, order_id):
        return None

    assert ship.delay(7).run.idempotency_key == "order-7"


def test_a_template_names_an_attribute_of_an_argument(any_shop):
    @any_shop.app.task(idempotency_key="order-{order[id]}")
    def ship(order):
        return None

    assert ship.delay({"id": 7, "lines": []}).run.idempotency_key == "order-7"


@pytest.mark.parametrize("template", ["{nobody}", "order-{}", "{order_id.nothing}", "{order_id[x]}", "{"])
def test_a_template_that_does_not_fit_is_refused_with_the_template(any_shop, template):
    @any_shop.app.task(idempotency_key=template)
    def ship(order_id):
        return None

    with pytest.raises(InvalidOption, match=r"ship: idempotency_key=.*does not fit the arguments"):
        ship.delay(7)


def test_a_missing_argument_is_an_error_of_the_call(any_shop):
    @any_shop.app.task(idempotency_key="order-{order_id}")
    def ship(order_id):
        return None

    with pytest.raises((InvalidOption, TypeError), match="order_id"):
        ship.delay()

    assert any_shop.rows() == []


@pytest.mark.parametrize("missing", [None, ""])
def test_a_template_whose_only_argument_is_missing_makes_no_shared_run_of_two_requests(any_shop, missing):
    @any_shop.app.task(idempotency_key="order-{order_id}")
    def ship(order_id, weight):
        return None

    first = ship.delay(missing, 1)

    with pytest.raises(IdempotencyConflict):
        ship.delay(missing, 2)
    assert first.created


def test_a_callable_makes_the_key(any_shop):
    @any_shop.app.task(idempotency_key=lambda order_id, **_: f"order-{order_id}")
    def ship(order_id, copies=1):
        return None

    assert ship.delay(7).id == ship.delay(order_id=7, copies=1).id


def test_a_callable_that_says_none_makes_no_key(any_shop):
    @any_shop.app.task(idempotency_key=lambda order_id: None)
    def ship(order_id):
        return None

    assert ship.delay(7).id != ship.delay(7).id


def test_a_callable_that_says_no_text_is_refused(any_shop):
    @any_shop.app.task(idempotency_key=lambda order_id: order_id)
    def ship(order_id):
        return None

    with pytest.raises(InvalidOption, match="idempotency_key must be text"):
        ship.delay(7)


def test_the_key_of_a_call_wins_over_that_of_the_task(any_shop):
    @any_shop.app.task(idempotency_key="order-{order_id}")
    def ship(order_id):
        return None

    assert ship.apply_async((7,), idempotency_key="mine").run.idempotency_key == "mine"


# How long a key is kept


@pytest.mark.parametrize("state", ENDINGS)
def test_a_key_is_free_when_it_was_kept_for_long_enough_after_the_end(ship, bring_to, any_shop, state):
    first = ship.apply_async((7,), idempotency_key="order-7")
    bring_to(first, state)
    any_shop.clock.advance(timedelta(hours=24, seconds=1).total_seconds())

    again = ship.apply_async((8,), idempotency_key="order-7")

    assert again.created
    assert (again.id != first.id, first.run.idempotency_key) == (True, None)


@pytest.mark.parametrize("state", ENDINGS)
def test_a_key_is_kept_until_then(ship, bring_to, any_shop, state):
    first = ship.apply_async((7,), idempotency_key="order-7")
    bring_to(first, state)
    any_shop.clock.advance(timedelta(hours=23, minutes=59).total_seconds())

    assert ship.apply_async((7,), idempotency_key="order-7").id == first.id


def test_a_live_run_keeps_its_key_however_old_it_is(any_shop):
    @any_shop.app.task(deadline=timedelta(days=100), idempotency_ttl=1)
    def wait():
        return None

    first = wait.apply_async(idempotency_key="k")
    any_shop.clock.advance(timedelta(days=99).total_seconds())

    assert wait.apply_async(idempotency_key="k").id == first.id


def test_a_task_says_how_long_its_keys_are_kept(any_shop):
    @any_shop.app.task(idempotency_ttl=60)
    def once():
        return None

    first = once.apply_async(idempotency_key="k")
    any_shop.work()
    any_shop.clock.advance(61)

    assert once.apply_async(idempotency_key="k").id != first.id


def test_a_key_that_is_kept_longer_than_its_row_keeps_the_row(any_shop):
    @any_shop.app.task(idempotency_ttl=timedelta(days=90))
    def once():
        return None

    first = once.apply_async(idempotency_key="k")
    any_shop.work()
    any_shop.clock.advance(timedelta(days=60).total_seconds())
    sweeper = Sweeper(any_shop.guard)
    for _ in range(4):
        sweeper.prune()

    assert once.apply_async(idempotency_key="k").id == first.id


def test_a_row_is_pruned_when_neither_it_nor_its_key_is_kept(ship, any_shop):
    first = ship.apply_async((7,), idempotency_key="order-7")
    any_shop.work()
    any_shop.clock.advance(timedelta(days=8).total_seconds())
    sweeper = Sweeper(any_shop.guard)
    for _ in range(4):
        sweeper.prune()

    with pytest.raises(RunNotFound):
        first.run  # noqa: B018
    assert ship.apply_async((7,), idempotency_key="order-7").created


@pytest.mark.parametrize("state", ["failed", "dead", "cancelled"])
def test_a_key_starts_anew_after_the_endings_that_the_task_names(any_shop, plan, bring_to, state):
    @any_shop.app.task(idempotency_rerun_after={state})
    def ship(order_id):
        if plan["error"] is not None:
            raise plan["error"]

    first = ship.apply_async((7,), idempotency_key="order-7")
    bring_to(first, state)

    again = ship.apply_async((7,), idempotency_key="order-7")

    assert again.created
    assert again.run.redrive_of == first.id
    assert again.run.idempotency_key == "order-7"


@pytest.mark.parametrize("state", ["queued", "running", "retrying", "succeeded", "failed"])
def test_a_key_does_not_start_anew_in_any_other_state(any_shop, plan, bring_to, state):
    @any_shop.app.task(idempotency_rerun_after={"dead", "cancelled"})
    def ship(order_id):
        if plan["error"] is not None:
            raise plan["error"]

    first = ship.apply_async((7,), idempotency_key="order-7")
    bring_to(first, state)

    assert ship.apply_async((7,), idempotency_key="order-7").id == first.id


def test_a_key_does_not_start_anew_with_another_request(any_shop, plan, bring_to):
    @any_shop.app.task(idempotency_rerun_after={"failed"})
    def ship(order_id):
        if plan["error"] is not None:
            raise plan["error"]

    bring_to(ship.apply_async((7,), idempotency_key="order-7"), "failed")

    with pytest.raises(IdempotencyConflict):
        ship.apply_async((8,), idempotency_key="order-7")


@pytest.mark.parametrize("endings", [{"succeeded"}, {"running"}, {"oops"}, "lost"])
def test_endings_that_no_key_may_start_anew_after_are_refused(any_shop, endings):
    @any_shop.app.task(idempotency_rerun_after=endings, lazy=True)
    def ship(order_id):
        return None

    with pytest.raises(InvalidOption, match="idempotency_rerun_after"):
        ship.delay(7)


# What makes two requests the same


def _ship_of_yesterday(order_id, copies=1):
    return None


def _ship_of_today(order_id, copies=1, carrier="post", *, insured=False):
    return None


def test_a_deploy_that_adds_parameters_with_defaults_changes_no_request(open_shop, store_url):
    yesterday, today = open_shop(url=store_url), open_shop(url=store_url)
    before = yesterday.app.task(name="ship")(_ship_of_yesterday)
    after = today.app.task(name="ship")(_ship_of_today)

    first = before.apply_async((7,), {"copies": 2}, idempotency_key="k")
    again = after.apply_async((7, 2), idempotency_key="k")

    assert again.id == first.id


class Parcel(BaseModel):
    weight: float
    tags: list[str] = []


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_equal_models_are_the_same_request_however_they_were_built(any_shop, serializer):
    any_shop.app.conf.accept_content = ["json", "pickle"]

    @any_shop.app.task(pydantic=True, serializer=serializer)
    def ship(parcel: Parcel):
        return None

    first = ship.apply_async((Parcel(weight=1),), idempotency_key="k")
    again = ship.apply_async((Parcel(tags=[], weight=1.0),), idempotency_key="k")

    assert again.id == first.id


def test_another_model_is_another_request(any_shop):
    @any_shop.app.task(pydantic=True)
    def ship(parcel: Parcel):
        return None

    ship.apply_async((Parcel(weight=1),), idempotency_key="k")

    with pytest.raises(IdempotencyConflict):
        ship.apply_async((Parcel(weight=2),), idempotency_key="k")


def test_a_retry_with_other_arguments_leaves_the_key_what_it_was(any_shop):
    @any_shop.app.task(bind=True)
    def page_through(self, page):
        if page < 4:
            raise self.retry(args=(page + 1,), countdown=0.01)
        return page

    first = page_through.apply_async((1,), idempotency_key="pages")
    any_shop.work()

    assert page_through.apply_async((1,), idempotency_key="pages").id == first.id
    assert first.get() == 4
    with pytest.raises(IdempotencyConflict):
        page_through.apply_async((4,), idempotency_key="pages")


def test_a_run_never_meets_its_own_key(any_shop, noted):
    @any_shop.app.task(bind=True, idempotency_key="order-{order_id}")
    def ship(self, order_id):
        noted.append(self.request.id)
        if len(noted) < 3:
            raise self.retry(countdown=0.01)

    result = ship.delay(7)
    any_shop.work()

    assert noted == [result.id] * 3
    assert result.run.state == "succeeded"


def test_an_eager_call_meets_the_key_too(open_shop, store_url, noted):
    shop = open_shop(url=store_url, task_always_eager=True)

    @shop.app.task
    def ship(order_id):
        noted.append(order_id)
        return order_id

    first = ship.apply_async((7,), idempotency_key="k", idempotency_scope="client")
    again = ship.apply_async((7,), idempotency_key="k", idempotency_scope="client")

    assert (noted, again.id, again.created, again.get()) == ([7], first.id, False, 7)


def test_apply_takes_key_and_scope(any_shop, noted):
    @any_shop.app.task
    def ship(order_id):
        noted.append(order_id)

    for scope in ("one", "two", "one"):
        ship.apply((7,), idempotency_key="k", idempotency_scope=scope)

    assert noted == [7, 7]


def test_an_explicit_id_that_is_taken_is_refused_though_the_key_names_another_run(ship, any_shop):
    ship.apply_async((1,), task_id="mine")
    ship.apply_async((7,), idempotency_key="order-7")

    with pytest.raises(Exception, match="'mine'"):
        ship.apply_async((7,), task_id="mine", idempotency_key="order-7")
