"""Several at the same moment: exactly one wins, and all hear the same."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from celery_guard.core.decide import Finish
from celery_guard.core.states import Reason, State
from tests.factories import a_fault, a_new_run
from tests.store.lives import (
    CANCELLED,
    SUCCESS,
    TOO_LATE,
    claimed,
    due,
    ended,
    find,
    history,
    retry_at,
    submitted,
    write,
)
from tests.store.races import FORKS, at_once, in_forks

FAILED = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=a_fault())


def claim_with(runs, token):
    return runs.claim("run-1", token, worker_id=token, fingerprint=None)


def test_one_of_many_claims_wins(runs):
    submitted(runs)

    claims = at_once(*(partial(claim_with, runs, f"token-{number}") for number in range(8)))

    (won,) = [found for found in claims if found is not None]
    assert runs.holder("run-1") == (State.RUNNING, won.claim.token)
    assert find(runs).attempt == 1


@FORKS
def test_one_of_many_claims_from_several_processes_wins(runs):
    submitted(runs)

    claims = in_forks(4, lambda: claim_with(runs, f"token-{os.getpid()}") is not None)

    assert sorted(claims) == [False, False, False, True]


def test_the_same_delivery_claiming_twice_at_once_holds_one_attempt(runs):
    submitted(runs)

    claims = at_once(*(partial(claim_with, runs, "token-1") for _ in range(2)))

    assert [found.claim.attempt for found in claims] == [1, 1]
    assert find(runs).attempt == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(SUCCESS, FAILED, id="success and failure"),
        pytest.param(SUCCESS, TOO_LATE, id="success and deadline"),
        pytest.param(retry_at(30), CANCELLED, id="retry and cancel"),
        pytest.param(FAILED, retry_at(30), id="failure and retry"),
    ],
)
def test_one_of_two_settlements_wins(runs, one, other):
    held = claimed(runs)

    won = at_once(lambda: runs.settle(held, one), lambda: runs.settle(held, other, successor="rescuer"))

    winner = one if won[0] else other
    assert sorted(won) == [False, True]
    assert find(runs).state is (winner.state if isinstance(winner, Finish) else State.RETRYING)
    assert history(runs) == ([] if winner is SUCCESS else [1])


def test_a_body_that_returns_and_a_rescue_have_one_winner(runs):
    held = claimed(runs)

    def rescue():
        return [
            runs.settle(found.claim, retry_at(30), owed=True, lease=0.0, successor="rescuer")
            for found in runs.running_on("worker-1")
        ] == [True]

    won = at_once(lambda: runs.settle(held, SUCCESS), rescue)

    assert sorted(won) == [False, True]


def test_a_claim_and_the_end_of_a_waiting_run_have_one_winner(runs):
    submitted(runs)

    claim, ending = at_once(
        lambda: claim_with(runs, "token-1") is not None,
        lambda: runs.finish_waiting("run-1", CANCELLED, token="anybody"),
    )

    assert claim is not ending
    assert find(runs).state is (State.RUNNING if claim else State.CANCELLED)


def test_a_key_submitted_by_many_makes_one_run_and_equal_answers(runs):
    news = [a_new_run(f"run-{number}", idempotency_scope="s", idempotency_key="k") for number in range(16)]

    answers = at_once(*(partial(write, runs, new) for new in news))

    assert sum(answer.created for answer in answers) == 1
    assert len({replace(answer, created=False) for answer in answers}) == 1


def test_an_id_submitted_by_many_makes_one_run(runs):
    answers = at_once(*(partial(runs.submit, a_new_run("run-1")) for _ in range(8)))

    assert sum(answer is not None for answer in answers) == 1


def test_two_dispatchers_take_disjoint_rows(runs, clock):
    ids = {f"run-{number}" for number in range(40)}
    for run_id in ids:
        submitted(runs, run_id, delay_for=1.0)
    clock.forward(1)

    one, other = at_once(lambda: due(runs, limit=20), lambda: due(runs, limit=20))

    taken = [*one, *other, *due(runs)]
    assert sorted(taken) == sorted(ids)
    assert len(one) == len(other) == 20


def test_many_dispatchers_publish_each_row_once(runs, clock):
    ids = {f"run-{number}" for number in range(40)}
    for run_id in ids:
        submitted(runs, run_id, delay_for=1.0)
    clock.forward(1)

    def dispatch():
        taken = []
        while batch := due(runs, limit=3):
            taken += batch
        return taken

    taken = [run_id for batch in at_once(*[dispatch] * 4) for run_id in batch]

    assert sorted(taken) == sorted(ids)


def test_two_looks_for_lost_messages_take_disjoint_rows(runs, clock):
    ids = {f"run-{number}" for number in range(10)}
    for run_id in ids:
        submitted(runs, run_id)
    clock.forward(20)

    def look():
        return [found.id for found in runs.take_lost("celery", limit=5, lease=20.0, reserved=[])]

    one, other = at_once(look, look)

    assert sorted(one + other) == sorted(ids)


def test_two_sweeps_end_each_run_once(runs, clock):
    ids = {f"run-{number}" for number in range(10)}
    for run_id in ids:
        submitted(runs, run_id, deadline_after=1.0)
    clock.forward(1)

    one, other = at_once(*[lambda: runs.finish_expired(TOO_LATE, limit=10)] * 2)

    assert sorted(ended.claim.run_id for ended in one + other) == sorted(ids)


def test_one_of_many_copies_tells_the_ending(runs):
    ended(runs, owed=True)
    (found,) = runs.take_due(limit=1, lease=20.0)

    endings = at_once(*[lambda: runs.take_ending("run-1", ticket=found.ticket, lease=60.0)] * 8)

    assert sum(ending is not None for ending in endings) == 1


def test_a_key_is_freed_by_one(runs, clock):
    runs.settle(claimed(runs, idempotency_scope="s", idempotency_key="k"), SUCCESS)
    clock.forward(60)
    news = [a_new_run(f"new-{number}", idempotency_scope="s", idempotency_key="k") for number in range(8)]

    def replace_old(new):
        found = write(runs, new)
        if found.id == "run-1":
            runs.free_key("run-1", timedelta(0))
            found = write(runs, new)
        return found.id

    ids = at_once(*(partial(replace_old, new) for new in news))

    assert len(set(ids)) == 1
    assert ids[0].startswith("new-")
