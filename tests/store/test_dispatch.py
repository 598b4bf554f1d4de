"""Dispatching: what is due is taken once, earliest first, and patience with the broker grows."""

from __future__ import annotations

import pytest

from celery_guard.core.states import State
from celery_guard.store.records import Due
from celery_guard.store.runs import RunStore
from tests.factories import a_new_run
from tests.store.lives import (
    CANCELLED,
    TOO_LATE,
    after,
    claim,
    claimed,
    due,
    ended,
    find,
    retry_at,
    row,
    submitted,
)


def published(runs, run_id="run-1", **given):
    """A run that nobody has claimed though its lease is over, once the clock has moved by 20 seconds."""
    return submitted(runs, run_id, lease=20.0, **given)


def lost(runs, *, queue="celery", limit=10, lease=20.0, reserved=()):
    return [found.id for found in runs.take_lost(queue, limit=limit, lease=lease, reserved=list(reserved))]


def test_a_due_retry_is_queued_again(runs, clock):
    ended(runs, settlement=retry_at(30))
    clock.forward(30)

    taken = due(runs)

    run = find(runs)
    assert taken == ["run-1"]
    assert (run.state, run.next_retry_at) == (State.QUEUED, None)


def test_a_due_row_carries_all_that_a_message_needs(runs, clock):
    submitted(runs, delay_for=30.0, payload="p", options="o", fingerprint="1:f", deadline_after=60.0)
    clock.forward(30)

    taken = runs.take_due(limit=10, lease=20)

    assert taken == [Due("run-1", "shop.send", "celery", "p", "o", "1:f", 0, 1, State.QUEUED, False, after(60))]


@pytest.mark.parametrize("finish", [CANCELLED, TOO_LATE], ids=["cancelled", "too late"])
def test_an_owed_ending_is_due_and_stays_ended(runs, finish):
    ended(runs, settlement=finish, owed=True)

    (taken,) = runs.take_due(limit=10, lease=20)

    assert (taken.owed, taken.state, taken.ticket) == (True, finish.state, 1)
    assert find(runs).state is finish.state


def test_what_was_taken_is_leased(runs, clock):
    submitted(runs, delay_for=30.0)
    clock.forward(30)
    due(runs, lease=20)

    assert row(runs)["publish_at"] is not None
    assert due(runs) == []


def test_the_earliest_is_taken_first(runs, clock):
    for seconds in (30.0, 10.0, 20.0):
        submitted(runs, f"run-{seconds:.0f}", delay_for=seconds)
    clock.forward(60)

    taken = [due(runs, limit=1) for _ in range(4)]

    assert taken == [["run-10"], ["run-20"], ["run-30"], []]


def test_no_more_than_the_limit_is_taken(runs, clock):
    for number in range(5):
        submitted(runs, f"run-{number}", delay_for=1.0)
    clock.forward(1)

    assert [len(due(runs, limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_the_due_rows_of_other_namespaces_are_not_ours(runs, clock):
    RunStore(runs.database, "office").submit(a_new_run("run-1", namespace="office", delay_for=1.0))
    clock.forward(10)

    assert due(runs) == []


@pytest.mark.parametrize(("publishes", "patience"), [(1, 20), (2, 40), (3, 80), (7, 1_280), (9, 1_280)])
def test_patience_doubles_with_each_publish_up_to_a_limit(runs, clock, publishes, patience):
    ended(runs, settlement=TOO_LATE, owed=True)
    due(runs, lease=20)
    for _ in range(publishes - 1):
        clock.forward(2_000)
        lost(runs, lease=20)

    clock.forward(patience - 1)
    before = suspects(runs)
    clock.forward(1)

    assert (before, suspects(runs)) == ({}, {"celery": 1})


def test_patience_with_an_owed_ending_leaves_its_ticket_valid(runs, clock):
    ended(runs, settlement=TOO_LATE, owed=True)
    (sent,) = runs.take_due(limit=1, lease=20.0)
    clock.forward(20)

    extended = runs.extend_leases("celery", limit=10, lease=20.0)

    assert extended == 1
    assert suspects(runs) == {}
    assert runs.take_ending("run-1", ticket=sent.ticket, lease=20.0) is not None


def test_a_claim_ends_the_count_of_publishes(runs, clock):
    ended(runs, settlement=retry_at(1))
    clock.forward(1)
    due(runs)
    runs.settle(claim(runs, token="token-2"), retry_at(10))
    clock.forward(60)

    (taken,) = runs.take_due(limit=10, lease=20)

    assert taken.ticket == 1


def test_a_row_whose_publishing_failed_is_due_again_soon(runs, clock):
    submitted(runs, delay_for=1.0)
    clock.forward(1)
    due(runs)

    assert runs.publish_soon(["run-1"], delay=2.0) == 1
    clock.forward(2)
    assert due(runs) == ["run-1"]


def test_soon_is_not_at_once(runs, clock):
    submitted(runs)
    runs.publish_soon(["run-1"], delay=2.0)
    clock.forward(1)

    assert due(runs) == []


@pytest.mark.parametrize("busy", [claimed, ended], ids=["running", "ended and told"])
def test_what_needs_no_message_is_not_made_due(runs, busy):
    busy(runs)

    assert runs.publish_soon(["run-1"], delay=0.0) == 0
    assert due(runs) == []


def test_several_rows_are_made_due_at_once(runs):
    for number in range(3):
        submitted(runs, f"run-{number}")

    touched = runs.publish_soon(["run-0", "run-2", "nobody's"], delay=0.0)

    assert touched == 2
    assert sorted(due(runs)) == ["run-0", "run-2"]


def test_nothing_to_make_due_is_nothing_to_do(runs):
    assert runs.publish_soon([], delay=0.0) == 0


def suspects(runs):
    return {queue: found for queue, (_, found) in runs.waiting(reserved=[], on_its_way=0.0).items() if found}


def test_published_rows_past_their_lease_are_suspects(runs, clock):
    published(runs, "run-1", queue="mail")
    published(runs, "run-2", queue="mail")
    published(runs, "run-3", queue="export")
    claimed(runs, "run-4")
    clock.forward(20)

    assert suspects(runs) == {"mail": 2, "export": 1}


def test_the_suspects_of_other_namespaces_are_not_ours(runs, clock):
    published(RunStore(runs.database, "office"), namespace="office")
    clock.forward(20)

    assert runs.waiting(reserved=[], on_its_way=0.0) == {}


def test_a_suspect_is_not_simply_due(runs, clock):
    published(runs)
    clock.forward(20)

    assert due(runs) == []


def test_all_published_and_unclaimed_rows_wait_in_their_queue(runs, clock):
    published(runs, "run-1", queue="mail")
    clock.forward(30)
    published(runs, "run-2", queue="mail")
    published(runs, "run-3", queue="export")
    submitted(runs, "run-4", queue="mail", delay_for=60.0)
    claimed(runs, "run-5", queue="mail")

    assert runs.waiting(reserved=[], on_its_way=0.0) == {"mail": (2, 1), "export": (1, 0)}


def test_a_message_in_a_workers_hands_is_not_waited_for(runs, clock):
    published(runs, "run-1", queue="mail")
    published(runs, "run-2", queue="mail")
    published(runs, "run-3", queue="export")
    clock.forward(3)

    assert runs.waiting(reserved=["run-2", "somebody's"], on_its_way=2.0) == {"mail": (1, 0), "export": (1, 0)}


def test_a_message_that_may_be_on_its_way_is_not_waited_for(runs, clock):
    published(runs, "run-1")
    clock.forward(3)
    published(runs, "run-2")
    clock.forward(1)

    assert runs.waiting(reserved=[], on_its_way=2.0) == {"celery": (1, 0)}


def test_a_lost_row_is_taken_and_leased_for_longer(runs, clock):
    published(runs)
    clock.forward(20)

    taken = lost(runs, lease=20.0)

    clock.forward(39)
    assert taken == ["run-1"]
    assert suspects(runs) == {}


def test_a_row_in_a_workers_hands_is_not_lost(runs, clock):
    published(runs, "run-1")
    published(runs, "run-2")
    clock.forward(20)

    assert lost(runs, reserved=["run-1", "someone's"]) == ["run-2"]


def test_a_row_of_another_queue_is_not_lost(runs, clock):
    published(runs, queue="mail")
    clock.forward(20)

    assert lost(runs, queue="export") == []


def test_a_row_within_its_lease_is_not_lost(runs, clock):
    published(runs)
    clock.forward(19)

    assert lost(runs) == []


def test_a_row_with_which_patience_was_had_before_is_lost_whenever_it_is_missed(runs, clock):
    published(runs)
    clock.forward(20)
    runs.extend_leases("celery", limit=10, lease=20.0)

    assert lost(runs) == ["run-1"]
    assert lost(runs) == []


def test_the_longest_lost_is_taken_first(runs, clock):
    published(runs, "run-1")
    clock.forward(1)
    published(runs, "run-2")
    clock.forward(60)

    assert [lost(runs, limit=1), lost(runs, limit=1), lost(runs, limit=1)] == [["run-1"], ["run-2"], []]


def test_what_the_broker_still_has_is_waited_for_longer(runs, clock):
    published(runs)
    clock.forward(20)

    extended = runs.extend_leases("celery", limit=10, lease=20.0)

    clock.forward(39)
    assert extended == 1
    assert suspects(runs) == {}


def test_patience_with_what_the_broker_still_has_keeps_growing(runs, clock):
    published(runs)
    clock.forward(20)
    runs.extend_leases("celery", limit=10, lease=20.0)
    clock.forward(40)
    runs.extend_leases("celery", limit=10, lease=20.0)
    clock.forward(79)

    assert suspects(runs) == {}


def test_only_rows_past_their_lease_are_extended(runs, clock):
    published(runs, "run-1")
    clock.forward(10)
    published(runs, "run-2")
    clock.forward(10)

    assert runs.extend_leases("celery", limit=10, lease=20.0) == 1


def test_a_waiting_run_can_be_made_claimable_without_a_message(runs):
    ended(runs, settlement=retry_at(30))

    requeued = runs.requeue("run-1")

    assert requeued
    assert claim(runs, token="token-2").attempt == 2


def test_a_run_without_a_message_is_nobodys_to_publish(runs, clock):
    ended(runs, settlement=retry_at(30))
    runs.requeue("run-1")
    clock.forward(60)

    assert due(runs) == []


@pytest.mark.parametrize("busy", [claimed, ended], ids=["running", "ended"])
def test_only_a_waiting_run_can_be_made_claimable(runs, busy):
    busy(runs)
    before = row(runs)

    assert not runs.requeue("run-1")
    assert row(runs) == before


def test_a_row_that_its_submitter_has_not_published_is_due_after_its_lease(runs, clock):
    submitted(runs, published=False, lease=20.0)
    before = due(runs)
    clock.forward(20)

    assert (before, due(runs)) == ([], ["run-1"])


def test_a_submitter_may_publish_later(runs, clock):
    submitted(runs, published=False, lease=20.0)

    noted = runs.published(["run-1"], lease=20.0)

    clock.forward(20)
    assert noted
    assert due(runs) == []
    assert suspects(runs) == {"celery": 1}


def test_a_submitter_does_not_publish_what_the_dispatcher_took(runs, clock):
    submitted(runs, published=False, lease=20.0)
    clock.forward(20)
    due(runs)

    assert not runs.published(["run-1"], lease=20.0)


@pytest.mark.parametrize("state", [claimed, ended], ids=["running", "ended"])
def test_a_submitter_does_not_publish_what_has_gone_on(runs, state):
    state(runs)

    assert not runs.published(["run-1"], lease=20.0)
