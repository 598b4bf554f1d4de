"""Submitting: one new row, or nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category
from celery_guard.core.states import Reason, State
from celery_guard.store.records import Submitted
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_fault, a_new_run
from tests.store.lives import SUCCESS, after, due, ended, find, retry_at, row, submitted

REFUSED = Finish(
    State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=a_fault(Category.NON_RETRYABLE, error_type="TypeError", error="no")
)


def test_a_new_run_is_queued_and_counts_no_attempt(runs):
    submitted(runs)

    run = find(runs)
    assert (run.state, run.attempt, run.created_at) == (State.QUEUED, 0, NOON)


def test_a_submission_says_what_it_became(runs):
    answer = runs.submit(a_new_run("run-1", fingerprint="1:xyz", deadline_after=60.0))

    assert answer == Submitted("run-1", True, after(60), "1:xyz", "shop.send", State.QUEUED)


@pytest.mark.parametrize(
    ("deadline_at", "deadline_after"),
    [
        pytest.param(after(60), 3_600.0, id="the moment is earlier"),
        pytest.param(after(3_600), 60.0, id="the duration is shorter"),
        pytest.param((NOON + timedelta(seconds=60)).astimezone(), 3_600.0, id="a moment in another zone"),
    ],
)
def test_the_deadline_is_the_earlier_of_a_moment_and_a_duration(runs, deadline_at, deadline_after):
    submitted(runs, deadline_at=deadline_at, deadline_after=deadline_after)

    assert find(runs).deadline_at == after(60)


def test_a_duration_counts_by_the_clock_of_the_database(runs, clock):
    clock.forward(500)

    submitted(runs, deadline_after=60.0)

    assert find(runs).deadline_at == after(560)


def test_without_a_test_clock_a_duration_counts_from_the_real_one(runs):
    runs.database.clock = None

    submitted(runs, deadline_after=60.0)

    run = find(runs)
    assert timedelta(seconds=59.9) < run.deadline_at - run.created_at < timedelta(seconds=60.1)


@pytest.mark.parametrize(
    "late",
    [
        pytest.param({"deadline_at": after(-1)}, id="a moment that has passed"),
        pytest.param({"deadline_at": NOON}, id="this very moment"),
        pytest.param({"deadline_after": 0.0}, id="no time at all"),
    ],
)
def test_a_deadline_that_has_passed_is_refused_without_a_row(runs, late):
    answer = runs.submit(a_new_run("run-1", **late))

    assert answer is None
    assert runs.find("run-1") is None


@pytest.mark.parametrize(
    "start",
    [
        pytest.param({"delay_for": 60.0}, id="countdown to the deadline"),
        pytest.param({"delay_until": after(61)}, id="eta past the deadline"),
    ],
)
def test_a_run_that_could_not_start_in_time_is_refused_without_a_row(runs, start):
    answer = runs.submit(a_new_run("run-1", deadline_after=60.0, **start))

    assert answer is None
    assert runs.find("run-1") is None


def test_a_century_is_a_deadline_like_any_other(runs):
    submitted(runs, deadline_after=36_525 * 86_400.0)

    assert find(runs).deadline_at == NOON + timedelta(days=36_525)


@pytest.mark.parametrize(
    "delay",
    [pytest.param({"delay_for": 30.0}, id="countdown"), pytest.param({"delay_until": after(30)}, id="eta")],
)
def test_a_delayed_run_waits_unpublished_until_its_moment(runs, delay):
    answer = runs.submit(a_new_run("run-1", **delay))

    stored = find(runs)
    assert answer.waits
    assert (stored.state, stored.next_retry_at) == (State.QUEUED, after(30))
    assert due(runs) == []


def test_a_delayed_run_is_due_at_its_moment(runs, clock):
    submitted(runs, delay_for=30.0)
    clock.forward(30)

    assert due(runs) == ["run-1"]


def test_a_lease_keeps_a_row_from_being_published_twice(runs, clock):
    submitted(runs, lease=20.0)
    clock.forward(19)

    assert due(runs) == []
    assert runs.waiting(reserved=[], on_its_way=0.0) == {"celery": (1, 0)}


def test_a_row_without_a_lease_is_nobodys_to_publish(runs, clock):
    submitted(runs, lease=None)
    clock.forward(1_000)

    assert due(runs) == []
    assert runs.waiting(reserved=[], on_its_way=0.0) == {}


def test_an_id_that_is_taken_writes_nothing(runs):
    submitted(runs, payload="the first")

    answer = runs.submit(a_new_run("run-1", payload="the second"))

    assert answer is None
    assert runs.payload("run-1") == ("the first", "{}")


def test_a_key_that_is_taken_writes_nothing(runs):
    submitted(runs, "run-1", idempotency_scope="shop.send", idempotency_key="receipt-42")

    answer = runs.submit(a_new_run("run-2", idempotency_scope="shop.send", idempotency_key="receipt-42"))

    assert answer is None
    assert runs.find("run-2") is None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"idempotency_scope": "shop.other"}, id="another scope"),
        pytest.param({"idempotency_key": "receipt-43"}, id="another key"),
        pytest.param({"idempotency_key": "Receipt-42"}, id="another case"),
        pytest.param({"namespace": "office"}, id="another namespace"),
    ],
)
def test_a_key_is_one_runs_within_its_scope_and_namespace(runs, other):
    first = a_new_run("run-1", idempotency_scope="shop.send", idempotency_key="receipt-42")
    runs.submit(first)

    answer = runs.submit(replace(first, id="run-2", **other))

    assert answer is not None


def test_runs_without_a_key_never_collide(runs):
    submitted(runs, "run-1", idempotency_scope="shop.send")

    assert runs.submit(a_new_run("run-2", idempotency_scope="shop.send")) is not None


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(a_new_run("run-1", fingerprint="1:other"), id="by its id"),
        pytest.param(
            a_new_run("run-2", idempotency_scope="s", idempotency_key="k", fingerprint="1:other"), id="by its key"
        ),
    ],
)
def test_the_run_that_was_there_is_found(runs, second):
    submitted(runs, "run-1", idempotency_scope="s", idempotency_key="k", fingerprint="1:first", deadline_after=60.0)

    found = runs.taken_by(second)

    assert found == Submitted("run-1", False, after(60), "1:first", "shop.send", State.QUEUED)


def test_the_key_of_another_namespace_is_not_found(runs):
    RunStore(runs.database, "office").submit(
        a_new_run("run-1", namespace="office", idempotency_scope="s", idempotency_key="k")
    )

    assert runs.taken_by(a_new_run("run-2", idempotency_scope="s", idempotency_key="k")) is None


def test_nothing_is_found_where_nothing_was_taken(runs):
    submitted(runs, "run-1")

    assert runs.taken_by(a_new_run("run-2")) is None


def test_a_key_is_free_again_when_it_was_kept_long_enough(runs, clock):
    submitted(runs, "run-1", idempotency_scope="s", idempotency_key="k")
    held = runs.claim("run-1", "token-1", worker_id="worker-1", fingerprint=None).claim
    runs.settle(held, SUCCESS)
    clock.forward(60)

    freed = runs.free_key("run-1", timedelta(seconds=60))

    assert freed
    assert runs.submit(a_new_run("run-2", idempotency_scope="s", idempotency_key="k")) is not None


def test_a_key_stays_with_a_run_that_ended_a_moment_ago(runs, clock):
    submitted(runs, "run-1", idempotency_scope="s", idempotency_key="k")
    held = runs.claim("run-1", "token-1", worker_id="worker-1", fingerprint=None).claim
    runs.settle(held, SUCCESS)
    clock.forward(59)

    assert not runs.free_key("run-1", timedelta(seconds=60))


def test_a_live_run_never_loses_its_key(runs, clock):
    submitted(runs, "run-1", idempotency_scope="s", idempotency_key="k")
    clock.forward(10**6)

    assert not runs.free_key("run-1", timedelta(0))


def test_a_run_that_is_over_before_it_began_is_owed_to_celery(runs):
    written = runs.submit_finished(a_new_run("run-1"), REFUSED)

    run = find(runs)
    assert written
    assert (run.state, run.terminal_reason, run.finished_at) == (State.FAILED, Reason.FAILED_NON_RETRYABLE, NOON)
    assert (run.last_error, run.error_category) == ("TypeError: no", Category.NON_RETRYABLE)
    assert due(runs) == ["run-1"]


def test_a_run_that_is_over_before_it_began_replaces_no_other(runs):
    submitted(runs, "run-1")

    written = runs.submit_finished(a_new_run("run-1"), REFUSED)

    assert not written
    assert find(runs).state is State.QUEUED


@pytest.mark.parametrize(
    "text",
    ["100 %(percent)s %s %", ":now ?1 $1", "quote ' and \" and \\", "Grüße 🎉 ", "line\nbreak"],
)
def test_any_text_comes_back_as_it_went_in(runs, text):
    submitted(runs, payload=text, options=text)

    assert runs.payload("run-1") == (text, text)


def test_who_submitted_and_why_is_kept(runs):
    submitted(runs, meta='{"user": 7}', parent_id="p", root_id="r", redrive_of="old", same_as="first")

    run = find(runs)
    assert run.meta == {"user": 7}
    assert (run.parent_id, run.root_id, run.redrive_of, run.same_as) == ("p", "r", "old", "first")


def test_a_waiting_retry_keeps_the_deadline_of_its_submission(runs, clock):
    ended(runs, settlement=retry_at(30))
    clock.forward(30)
    due(runs)

    assert row(runs)["state"] == "queued"
    assert find(runs).deadline_at == after(3_600)
