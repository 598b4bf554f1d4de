"""Claiming: a queued run becomes one attempt of one holder."""

from __future__ import annotations

import pytest

from celery_guard.core.decide import Claim
from celery_guard.core.faults import Category
from celery_guard.core.states import TERMINAL, State
from tests.factories import NOON
from tests.store.lives import (
    CANCELLED,
    SUCCESS,
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


def taken(runs, token="token-2", **how):
    return runs.claim("run-1", token, **{"worker_id": "worker-2", "fingerprint": None, **how})


def test_a_claim_counts_the_attempt_and_starts_it(runs):
    submitted(runs)

    claim(runs)

    run = find(runs)
    assert (run.state, run.attempt, run.started_at) == (State.RUNNING, 1, NOON)


def test_a_claim_hands_over_what_the_holder_must_know(runs, clock):
    submitted(runs, max_attempts=7, deadline_after=60.0, meta='{"user": 7}', parent_id="p", root_id="r")
    clock.forward(5)

    found = taken(runs)

    assert found.claim == Claim("run-1", "token-2", 1, 7, 0, after(60))
    assert found.now == after(5)
    assert (found.meta, found.parent_id, found.root_id) == ({"user": 7}, "p", "r")


def test_a_claim_remembers_its_worker_and_its_token(runs):
    submitted(runs)

    claim(runs, token="token-9", worker_id="worker-9")

    stored = row(runs)
    assert (stored["claim_token"], stored["worker_id"]) == ("token-9", "worker-9")


def test_a_claimed_row_is_nobodys_to_publish(runs, clock):
    claimed(runs)
    clock.forward(1_000)

    assert due(runs) == []
    assert runs.waiting(reserved=[], on_its_way=0.0) == {}


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        pytest.param("1:abc", None, id="the message says the same as the row"),
        pytest.param("1:old", "[[42], {}]", id="the row is newer"),
        pytest.param(None, "[[42], {}]", id="the message says nothing"),
    ],
)
def test_the_payload_comes_back_only_when_the_message_does_not_have_it(runs, fingerprint, expected):
    submitted(runs, payload="[[42], {}]", fingerprint="1:abc")

    found = taken(runs, fingerprint=fingerprint)

    assert found.payload == expected
    assert (found.options is None) is (expected is None)


def test_a_run_that_is_not_there_cannot_be_claimed(runs):
    assert taken(runs) is None


def test_a_running_run_cannot_be_claimed_by_another(runs):
    claimed(runs)

    assert taken(runs) is None
    assert row(runs)["claim_token"] == "token-1"


@pytest.mark.parametrize("settlement", [SUCCESS, TOO_LATE, CANCELLED], ids=lambda settlement: str(settlement.state))
def test_a_run_that_has_ended_cannot_be_claimed(runs, settlement):
    ended(runs, settlement=settlement)

    assert taken(runs) is None
    assert find(runs).state in TERMINAL


def test_a_retrying_run_cannot_be_claimed(runs, clock):
    ended(runs, settlement=retry_at(30))
    clock.forward(60)

    assert taken(runs) is None


def test_a_delayed_run_cannot_be_claimed_before_it_is_dispatched(runs, clock):
    submitted(runs, delay_for=30.0)
    clock.forward(60)

    assert taken(runs) is None


def test_a_delayed_run_can_be_claimed_once_it_is_dispatched(runs, clock):
    submitted(runs, delay_for=30.0)
    clock.forward(30)
    due(runs)

    assert taken(runs) is not None


def test_a_run_cannot_be_claimed_at_its_deadline(runs, clock):
    submitted(runs, deadline_after=60.0)
    clock.forward(60)

    assert taken(runs) is None


def test_a_run_can_be_claimed_just_before_its_deadline(runs, clock):
    submitted(runs, deadline_after=60.0)
    clock.forward(59.999)

    assert taken(runs) is not None


def test_a_run_whose_attempts_are_used_up_cannot_be_claimed(runs, clock):
    held = claimed(runs, max_attempts=1)
    runs.settle(held, retry_at(1))
    clock.forward(1)
    due(runs)

    assert find(runs).state is State.QUEUED
    assert taken(runs) is None


def test_the_next_attempt_counts_on(runs, clock):
    ended(runs, settlement=retry_at(1, category=Category.UNKNOWN))
    clock.forward(1)
    due(runs)

    found = taken(runs)

    assert (found.claim.attempt, found.claim.unknown_faults) == (2, 1)


def test_the_same_token_gets_what_it_already_holds(runs, clock):
    first = claimed(runs)
    clock.forward(5)

    again = taken(runs, "token-1")

    assert again.claim == first
    assert again.now == after(5)
    assert find(runs).attempt == 1


def test_a_token_gets_nothing_once_its_attempt_has_ended(runs):
    ended(runs)

    assert taken(runs, "token-1") is None


def test_a_token_shows_what_it_holds(runs):
    held = claimed(runs)

    assert runs.held("run-1", "token-1").claim == held


def test_another_token_holds_nothing(runs):
    claimed(runs)

    assert runs.held("run-1", "token-2") is None


def test_nothing_is_held_after_the_attempt_has_ended(runs):
    ended(runs, settlement=retry_at(30))

    assert runs.held("run-1", "token-1") is None
