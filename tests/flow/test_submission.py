"""``delay`` and ``apply_async``: a row first, then its message, with what the caller asked for."""

from __future__ import annotations

import random
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from celery import signature
from kombu.exceptions import OperationalError

from celery_guard import (
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidOption,
    RunExists,
    State,
    current_run,
)
from celery_guard.flow.submit import new_run_id
from tests.infra.naming import shown


@pytest.fixture
def shop(any_shop):
    """Every test here runs on both databases."""
    return any_shop


@pytest.fixture
def add(shop):
    @shop.app.task(name="add")
    def add(x, y=0):
        return x + y

    return shop.app.tasks["add"]


def about(moment: datetime, expected: datetime) -> bool:
    return abs(moment - expected) < timedelta(seconds=20)


# The row and its message


def test_a_submission_is_a_queued_row_and_one_message_with_its_id(add, shop):
    result = add.delay(1, y=2)

    message, run = shop.message(), shop.one()
    assert run.state is State.QUEUED
    assert (run.id, run.type, run.queue, run.attempt) == (result.id, "add", shop.queue, 0)
    assert message.headers["id"] == message.headers["guard"]["id"] == result.id
    assert message.payload[:2] == [[1], {"y": 2}]


def test_the_header_says_version_event_deadline_and_fingerprint(add, shop):
    result = add.delay(1)

    header = shop.message().headers["guard"]
    assert header["v"] == 1
    assert header["event"] == "created"
    assert datetime.fromisoformat(header["deadline"]) == result.run.deadline_at
    assert header["fingerprint"]


def test_a_run_without_arguments_is_a_run(shop):
    @shop.app.task
    def nothing():
        """Do nothing."""

    result = nothing.apply_async()
    shop.work()

    assert result.run.state is State.SUCCEEDED
    assert result.get() is None


def test_ids_sort_by_the_time_of_submission(add, shop):
    ids = [add.delay(n).id for n in range(5)]

    assert [uuid.UUID(run_id).version for run_id in ids] == [7] * 5
    assert [run.id for run in shop.rows()] == ids


def test_a_thousand_new_ids_are_a_thousand():
    assert len({new_run_id() for _ in range(1_000)}) == 1_000


def test_two_submissions_are_two_runs(add, shop):
    one, other = add.delay(1), add.delay(1)

    assert (one.created, other.created) == (True, True)
    assert one.id != other.id
    assert len(shop.messages()) == 2


def test_a_submission_with_a_name_for_monitors_keeps_its_type(add, shop):
    add.apply_async((1,), shadow="add one")

    assert shop.message().headers["shadow"] == "add one"
    assert shop.one().type == "add"


def test_a_signature_is_submitted_like_a_call(add, shop):
    result = signature("add", (1, 2), app=shop.app).delay()
    shop.work()

    assert result.get() == 3
    assert result.run.state is State.SUCCEEDED


def test_options_of_the_guard_may_be_set_on_a_signature(add, shop):
    result = add.s(1).set(deadline=60, max_attempts=2, meta={"user": 7}).apply_async()

    assert (result.run.max_attempts, result.run.meta) == (2, {"user": 7})
    assert about(result.run.deadline_at, shop.clock() + timedelta(seconds=60))


# Deadlines


@pytest.mark.parametrize(
    "deadline", [120, 120.0, timedelta(minutes=2), lambda now: now + timedelta(minutes=2)], ids=shown
)
def test_a_deadline_is_seconds_a_duration_or_a_moment(add, shop, deadline):
    given = deadline(shop.clock()) if callable(deadline) else deadline

    result = add.apply_async((1,), deadline=given)

    assert about(result.run.deadline_at, shop.clock() + timedelta(minutes=2))


def test_a_moment_of_another_time_zone_is_the_same_moment(add):
    moment = datetime(2090, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    result = add.apply_async((1,), deadline=moment)

    assert result.run.deadline_at == moment


def test_a_deadline_of_a_call_wins_over_that_of_the_task(shop):
    @shop.app.task(deadline=60)
    def add():
        """Do nothing."""

    assert about(add.delay().run.deadline_at, shop.clock() + timedelta(seconds=60))
    assert about(add.apply_async(deadline=600).run.deadline_at, shop.clock() + timedelta(seconds=600))


def test_a_deadline_farther_than_a_century_is_a_century_away(add, shop):
    result = add.apply_async((1,), deadline=datetime.max.replace(tzinfo=timezone.utc))

    assert about(result.run.deadline_at, shop.clock() + timedelta(days=36_525))


def test_a_child_ends_no_later_than_its_parent(add, shop):
    @shop.app.task
    def parent():
        return add.apply_async((1,), deadline=3_600).id

    result = parent.apply_async(deadline=60)
    shop.deliver(shop.message())

    assert shop.run(result.get()).deadline_at == result.run.deadline_at


def test_a_child_may_end_earlier_than_its_parent(add, shop):
    @shop.app.task
    def parent():
        return add.apply_async((1,), deadline=5).id

    result = parent.apply_async(deadline=60)
    shop.deliver(shop.message())

    assert shop.run(result.get()).deadline_at < result.run.deadline_at


@pytest.mark.parametrize("expires", [60, lambda now: now + timedelta(seconds=60)], ids=["seconds", "moment"])
def test_expires_narrows_the_deadline_and_puts_no_time_on_the_message(add, shop, expires):
    given = expires(shop.clock()) if callable(expires) else expires

    result = add.apply_async((1,), expires=given, deadline=600)

    message = shop.message()
    assert about(result.run.deadline_at, shop.clock() + timedelta(seconds=60))
    assert message.headers["expires"] is None
    assert message.properties.get("expiration") is None


def test_expires_as_text_or_a_naive_moment_of_the_apps_time_zone_is_read_as_celery_does(add, shop):
    moment = (shop.clock() + timedelta(seconds=60)).replace(microsecond=0)

    text = add.apply_async((1,), expires=moment.isoformat())
    naive = add.apply_async((1,), expires=moment.replace(tzinfo=None))

    assert text.run.deadline_at == naive.run.deadline_at == moment


def test_expires_never_extends_the_deadline(add, shop):
    result = add.apply_async((1,), expires=600, deadline=60)

    assert about(result.run.deadline_at, shop.clock() + timedelta(seconds=60))


def test_a_task_that_expires_puts_no_time_on_any_of_its_messages(shop):
    @shop.app.task(expires=60)
    def add():
        """Do nothing."""

    now, later = add.delay(), add.apply_async(countdown=5)
    shop.clock.advance(6)
    shop.dispatch()

    messages = shop.messages()
    assert {message.headers["id"] for message in messages} == {now.id, later.id}
    assert [message.headers["expires"] for message in messages] == [None, None]
    assert about(now.run.deadline_at, shop.clock() + timedelta(seconds=54))


# Attempts, meta, ids


def test_max_attempts_of_a_call_win_over_those_of_the_task(shop):
    @shop.app.task(max_attempts=3)
    def add():
        """Do nothing."""

    assert add.delay().run.max_attempts == 3
    assert add.apply_async(max_attempts=1).run.max_attempts == 1


def test_meta_is_kept_and_inherited_by_children_whose_own_wins(add, shop):
    @shop.app.task
    def parent():
        return add.apply_async((1,), meta={"user": 8, "step": 1}).id

    result = parent.apply_async(meta={"request": "r-1", "user": 7})
    shop.work()

    assert result.run.meta == {"request": "r-1", "user": 7}
    assert shop.run(result.get()).meta == {"request": "r-1", "user": 8, "step": 1}


def test_meta_is_inherited_by_the_next_task_of_a_chain(add, shop):
    result = (add.s(1) | add.s(2)).apply_async(meta={"request": "r-1"})
    shop.work()

    assert result.get() == 3
    assert [run.meta for run in shop.rows()] == [{"request": "r-1"}] * 2


def test_meta_of_any_json_value_comes_back_as_it_was(add):
    meta = {
        "text": "ß \u0000 🦊 'quoted\"",
        "none": None,
        "list": [1, 2.5, True],
        "deep": {"a": {"b": []}},
        "": "empty",
    }

    assert add.apply_async((1,), meta=meta).run.meta == meta


def test_no_meta_and_empty_meta_are_the_same(add):
    assert add.delay(1).run.meta == add.apply_async((1,), meta={}).run.meta == {}


def test_meta_may_be_four_kilobytes_long(add):
    meta = {"text": "x" * (4_096 - len('{"text": ""}'))}

    assert add.apply_async((1,), meta=meta).run.meta == meta


def test_a_child_knows_its_parent_and_its_root(add, shop):
    @shop.app.task
    def middle():
        return add.delay(1).id

    @shop.app.task
    def top():
        return middle.delay().id

    result = top.delay()
    shop.work()

    _, second, third = shop.rows()
    assert (second.parent_id, second.root_id) == (result.id, result.id)
    assert (third.parent_id, third.root_id) == (second.id, result.id)


def test_an_explicit_id_is_the_id_of_the_run(add, shop):
    result = add.apply_async((1,), task_id="receipt 42/ß")

    assert result.id == shop.one().id == "receipt 42/ß"


def test_an_explicit_id_used_twice_while_the_run_lives_is_the_same_run(add, shop):
    first, second = add.apply_async((1,), task_id="one"), add.apply_async((1,), task_id="one")

    assert (first.created, second.created) == (True, False)
    assert len(shop.messages()) == 1


@pytest.mark.parametrize(("again", "finished"), [(2, False), (1, True)], ids=["other payload", "finished"])
def test_an_explicit_id_that_belongs_to_another_run_is_refused(add, shop, again, finished):
    add.apply_async((1,), task_id="one")
    if finished:
        shop.work()

    with pytest.raises(RunExists, match="'one' belongs to a run of add"):
        add.apply_async((again,), task_id="one")

    assert len(shop.rows()) == 1


# Idempotency keys


def test_a_key_used_again_with_the_same_payload_is_the_first_run(add, shop):
    first = add.apply_async((1, 2), idempotency_key="order-7")

    second = add.apply_async((1,), {"y": 2}, idempotency_key="order-7")

    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert len(shop.rows()) == len(shop.messages()) == 1


def test_a_key_used_again_after_the_end_still_names_the_first_run(add, shop):
    first = add.apply_async((1, 2), idempotency_key="order-7")
    shop.work()

    second = add.apply_async((1, 2), idempotency_key="order-7")

    assert (second.created, second.id, second.get()) == (False, first.id, 3)


def test_a_key_used_again_with_another_payload_is_a_conflict(add, shop):
    first = add.apply_async((1, 2), idempotency_key="order-7")

    with pytest.raises(IdempotencyConflict, match=rf"add: .*'order-7' was used by the run {first.id}"):
        add.apply_async((1, 3), idempotency_key="order-7")

    assert len(shop.rows()) == len(shop.messages()) == 1


def test_a_key_belongs_to_its_task(add, shop):
    @shop.app.task
    def subtract(x, y):
        return x - y

    first = add.apply_async((1, 2), idempotency_key="order-7")
    second = subtract.apply_async((1, 2), idempotency_key="order-7")

    assert second.created
    assert second.id != first.id


def test_a_key_keeps_its_run_when_a_retry_changed_the_arguments(shop):
    @shop.app.task(bind=True)
    def move(self, page):
        if page == 1:
            raise self.retry(args=(2,), countdown=0.01)
        return page

    first = move.apply_async((1,), idempotency_key="pages")
    shop.work()

    second = move.apply_async((1,), idempotency_key="pages")

    assert (second.created, second.id, first.get()) == (False, first.id, 2)


# Waiting is a row


@pytest.mark.parametrize(
    "option",
    [
        {"countdown": 60},
        {"countdown": 0.5},
        {"countdown": timedelta(minutes=1)},
        {"eta": lambda now: now + timedelta(minutes=1)},
        {"eta": lambda now: (now + timedelta(minutes=1)).replace(tzinfo=None)},
        {"eta": lambda now: (now + timedelta(minutes=1)).isoformat()},
        {"eta": lambda now: now - timedelta(minutes=1)},
    ],
    ids=["countdown", "half a second", "duration", "eta", "naive eta", "eta as text", "eta in the past"],
)
def test_a_wait_is_a_row_and_no_message(add, shop, option):
    ((name, value),) = option.items()

    result = add.apply_async((1,), **{name: value(shop.clock()) if callable(value) else value})

    assert shop.messages() == []
    assert result.run.state is State.QUEUED
    assert result.run.next_retry_at is not None


def test_a_run_that_waited_is_published_once_when_its_time_has_come(add, shop):
    result = add.apply_async((1,), countdown=60)

    early = shop.dispatch()
    shop.clock.advance(61)
    due = shop.dispatch()
    again = shop.dispatch()

    assert (early, due, again) == (0, 1, 0)
    message = shop.message()
    assert (message.headers["id"], message.headers["eta"]) == (result.id, None)


def test_a_message_that_arrives_while_its_run_waits_is_not_run(add, shop):
    add.delay(1)
    message = shop.message()
    add.apply_async((1,), task_id="waiting", countdown=60)
    message.headers["id"] = "waiting"

    told = shop.deliver(message)

    assert told.state == "IGNORED"
    assert (shop.run("waiting").state, shop.run("waiting").attempt) == (State.QUEUED, 0)


def test_a_countdown_of_nothing_is_no_wait(add, shop):
    add.apply_async((1,), countdown=0)

    assert len(shop.messages()) == 1


# Routes


def test_a_run_goes_to_the_queue_that_the_call_names(add, shop):
    result = add.apply_async((1,), queue=f"{shop.queue}-other")

    assert result.run.queue == f"{shop.queue}-other"
    assert shop.message(f"{shop.queue}-other").headers["id"] == result.id


def test_a_run_goes_to_the_queue_that_the_routes_name(open_shop, store_url, queue_name):
    shop = open_shop(url=store_url, task_routes={"add": {"queue": f"{queue_name}-routed"}})

    @shop.app.task(name="add")
    def add():
        """Do nothing."""

    result = add.delay()

    assert result.run.queue == f"{queue_name}-routed"
    assert shop.message(f"{queue_name}-routed").headers["id"] == result.id


# What a broker that is away costs


def test_a_run_whose_message_can_not_be_sent_is_accepted_and_published_later(add, shop, monkeypatch):
    with monkeypatch.context() as away:
        away.setattr(shop.app, "send_task", refuse)
        result = add.delay(1)

    shop.clock.advance(5)
    shop.dispatch()

    assert result.run.state is State.QUEUED
    assert shop.message().headers["id"] == result.id


def refuse(*args, **kwargs):
    raise OperationalError("the broker is away")


# Chance


def test_odd_but_legal_arguments_come_back_as_they_were(shop):
    @shop.app.task
    def echo(value, **more):
        return [value, more]

    odd = ["\u0000", "🦊", "'; DROP TABLE task_run; --", 2**70, -0.0, [], {"": None}, "%s %(now)s :now"]

    result = echo.delay(odd, now=1, id=2, state="x", token=3)
    shop.work()

    assert result.get() == [odd, {"now": 1, "id": 2, "state": "x", "token": 3}]


def test_a_large_payload_comes_back_whole(shop):
    @shop.app.task
    def size(text):
        return len(text)

    result = size.delay("".join(random.Random(1).choices("abcß", k=300_000)))
    shop.work()

    assert result.get() == 300_000


def test_a_deadline_in_the_parent_that_has_passed_refuses_its_children(add, shop):
    seen = []

    @shop.app.task
    def parent():
        shop.clock.advance(61)
        try:
            add.delay(1)
        except DeadlineExceeded as error:
            seen.append(str(error))

    parent.apply_async(deadline=60)
    shop.deliver(shop.message())

    assert len(seen) == 1
    assert "nothing was submitted" in seen[0]
    assert len(shop.rows()) == 1


def test_an_unguarded_call_inside_a_guarded_one_knows_the_outer_run(add, shop):
    @shop.app.task
    def outer():
        return current_run().id

    result = outer.delay()
    shop.work()

    assert result.get() == result.id


@pytest.mark.parametrize("countdown", [-1, True, "5", float("nan"), float("inf"), 10**400, object()], ids=shown)
def test_a_countdown_that_is_none_is_refused(add, shop, countdown):
    with pytest.raises(InvalidOption, match="countdown must be a number of seconds of at least 0"):
        add.apply_async((1,), countdown=countdown)

    assert shop.rows() == []
