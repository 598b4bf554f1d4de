"""Delivering: one message tells Celery an ending, and then nothing is owed."""

from __future__ import annotations

import pytest

from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category
from celery_guard.core.states import Reason, State
from celery_guard.store.records import Ending
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_fault
from tests.store.lives import SUCCESS, TOO_LATE, after, claimed, due, ended, find, retry_at, row, submitted

FAILED = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=a_fault(Category.NON_RETRYABLE))


def owed_and_published(runs, settlement=SUCCESS, **how):
    """An owed ending in a message; return the message's ticket."""
    ended(runs, settlement=settlement, owed=True, **how)
    (found,) = runs.take_due(limit=1, lease=20.0)
    return found.ticket


def taken(runs, ticket, lease=60.0):
    return runs.take_ending("run-1", ticket=ticket, lease=lease)


@pytest.mark.parametrize(
    ("settlement", "expected"),
    [
        (SUCCESS, Ending(State.SUCCEEDED, Reason.SUCCEEDED, "{}", None, None)),
        (
            FAILED,
            Ending(State.FAILED, Reason.FAILED_NON_RETRYABLE, "{}", "ConnectionError: refused", "ConnectionError"),
        ),
    ],
    ids=["success", "failure"],
)
def test_the_message_with_the_ticket_gets_the_ending(runs, settlement, expected):
    ticket = owed_and_published(runs, settlement, result="{}")

    assert taken(runs, ticket) == expected


def test_an_ending_is_handed_out_once(runs):
    ticket = owed_and_published(runs)

    assert [taken(runs, ticket) is not None for _ in range(3)] == [True, False, False]


def test_an_older_message_gets_nothing_once_a_newer_one_is_out(runs, clock):
    old = owed_and_published(runs)
    clock.forward(60)
    (newer,) = runs.take_lost("celery", limit=1, lease=20.0, reserved=[])

    assert taken(runs, old) is None
    assert taken(runs, newer.ticket) is not None


def test_an_ending_that_was_taken_and_not_told_is_due_again(runs, clock):
    ticket = owed_and_published(runs)
    taken(runs, ticket, lease=60.0)
    clock.forward(59)
    before = due(runs)
    clock.forward(1)

    assert (before, due(runs)) == ([], ["run-1"])


def test_the_message_that_comes_after_a_broken_one_gets_the_ending(runs, clock):
    taken(runs, owed_and_published(runs), lease=60.0)
    clock.forward(60)
    (again,) = runs.take_due(limit=1, lease=20.0)

    assert taken(runs, again.ticket) is not None


def test_what_was_told_is_not_owed(runs, clock):
    taken(runs, owed_and_published(runs))

    told = runs.told("run-1")

    clock.forward(10**6)
    assert told
    assert not find(runs).owed
    assert due(runs) == []


def test_telling_twice_changes_nothing(runs):
    owed_and_published(runs)
    runs.told("run-1")

    assert not runs.told("run-1")


def test_an_ending_that_owes_nothing_is_not_handed_out(runs):
    ended(runs)

    assert taken(runs, 0) is None


@pytest.mark.parametrize("live", [submitted, claimed])
def test_a_live_run_has_no_ending_to_tell(runs, live):
    live(runs)

    assert [taken(runs, ticket) for ticket in (0, 1)] == [None, None]
    assert not runs.told("run-1")


def test_the_child_that_ended_the_run_may_tell_it_without_a_ticket(runs):
    ended(runs, owed=True, lease=60.0)

    assert runs.told("run-1")
    assert row(runs)["publish_at"] is None


def test_a_snapshot_shows_the_whole_run(runs, clock):
    held = claimed(runs, meta='{"user": 7}', deadline_after=60.0)
    clock.forward(5)
    runs.settle(held, FAILED)

    run = runs.find("run-1")

    assert (run.type, run.queue, run.state, run.attempt, run.max_attempts) == (
        "shop.send",
        "celery",
        State.FAILED,
        1,
        5,
    )
    assert (run.created_at, run.started_at, run.finished_at, run.deadline_at) == (NOON, NOON, after(5), after(60))
    assert run.is_terminal


def test_a_snapshot_comes_without_history_unless_asked(runs):
    ended(runs, settlement=FAILED)

    assert runs.find("run-1").attempts == ()


def test_history_comes_oldest_first(runs, clock):
    ended(runs, settlement=retry_at(1))
    clock.forward(1)
    due(runs)
    runs.settle(runs.claim("run-1", "token-2", worker_id="worker-1", fingerprint=None).claim, FAILED)

    run = runs.find("run-1", history=True)

    assert [attempt.attempt for attempt in run.attempts] == [1, 2]
    assert [attempt.category for attempt in run.attempts] == [Category.RETRYABLE, Category.NON_RETRYABLE]


def test_the_runs_of_other_namespaces_are_not_found(runs):
    submitted(runs)

    assert RunStore(runs.database, "office").find("run-1") is None


def test_a_run_that_is_not_there_is_not_found(runs):
    assert runs.find("run-1") is None


def test_the_clock_is_the_one_that_was_passed(runs, clock):
    clock.forward(5)

    assert runs.clock() == after(5)


def test_the_clock_of_the_database_goes_on(runs):
    runs.database.clock = None

    first, second = runs.clock(), runs.clock()

    assert NOON < first <= second
    assert first.utcoffset() == NOON.utcoffset()


def test_a_late_ending_is_told_like_any_other(runs):
    ticket = owed_and_published(runs, TOO_LATE)

    assert taken(runs, ticket).reason is Reason.FAILED_DUE_DEADLINE


def test_a_success_that_was_told_as_something_else_is_owed_again(runs):
    held = ended(runs, result="{}")

    assert runs.owe("run-1", held.token)

    (found,) = runs.take_due(limit=1, lease=20.0)
    assert taken(runs, found.ticket) == Ending(State.SUCCEEDED, Reason.SUCCEEDED, "{}", None, None)


def test_nobody_owes_what_is_owed_already_nor_a_result_that_was_not_kept(runs):
    held = ended(runs, result="{}", owed=True)
    assert not runs.owe("run-1", held.token)

    held = ended(runs, "run-2")
    assert not runs.owe("run-2", held.token)
