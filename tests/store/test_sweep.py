"""Ending runs from outside: what waits, what is past its deadline, what a lost worker ran; and pruning."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, insert, select

from celery_guard.core.states import Reason, State
from celery_guard.store.models import task_attempt, task_effect
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_new_run
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
    history,
    retry_at,
    row,
    submitted,
)

GRACE = timedelta(seconds=5)


def retrying(runs):
    ended(runs, settlement=retry_at(30))


def delayed(runs):
    submitted(runs, delay_for=30.0)


@pytest.mark.parametrize("waiting", [submitted, delayed, retrying])
@pytest.mark.parametrize("finish", [CANCELLED, TOO_LATE], ids=["cancelled", "too late"])
def test_a_waiting_run_can_be_ended(runs, waiting, finish):
    waiting(runs)

    won = runs.finish_waiting("run-1", finish, token="anybody")

    run = find(runs)
    assert won
    assert (run.state, run.terminal_reason, run.finished_at) == (finish.state, finish.reason, NOON)
    assert run.next_retry_at is None


def test_the_ending_of_a_waiting_run_is_owed_at_once(runs):
    submitted(runs)

    runs.finish_waiting("run-1", CANCELLED, token="anybody")

    assert due(runs) == ["run-1"]


def test_a_run_that_ended_while_it_waited_has_no_new_history(runs):
    retrying(runs)

    runs.finish_waiting("run-1", CANCELLED, token="anybody")

    assert history(runs) == [1]


@pytest.mark.parametrize("busy", [claimed, ended], ids=["running", "ended"])
def test_only_a_waiting_run_can_be_ended_without_its_token(runs, busy):
    busy(runs)
    before = row(runs)

    won = runs.finish_waiting("run-1", CANCELLED, token="anybody")

    assert not won
    assert row(runs) == before


@pytest.mark.parametrize("waiting", [submitted, delayed, retrying])
def test_waiting_runs_end_at_their_deadline(runs, clock, waiting):
    waiting(runs)
    clock.forward(3_600)

    swept = runs.finish_expired(TOO_LATE, limit=10)

    run = find(runs)
    assert [ended.claim.run_id for ended in swept] == ["run-1"]
    assert (run.state, run.terminal_reason, run.finished_at) == (
        State.DEAD,
        Reason.FAILED_DUE_DEADLINE,
        after(3_600),
    )


def test_waiting_runs_live_until_their_deadline(runs, clock):
    submitted(runs)
    clock.forward(3_599)

    assert runs.finish_expired(TOO_LATE, limit=10) == []


def test_the_sweep_of_waiting_runs_leaves_the_running_to_their_grace(runs, clock):
    claimed(runs)
    clock.forward(3_600)

    assert runs.finish_expired(TOO_LATE, limit=10) == []
    assert find(runs).state is State.RUNNING


def test_the_sweep_begins_with_the_earliest_deadline(runs, clock):
    for seconds in (30.0, 10.0, 20.0):
        submitted(runs, f"run-{seconds:.0f}", deadline_after=seconds)
    clock.forward(60)

    swept = [runs.finish_expired(TOO_LATE, limit=1) for _ in range(4)]

    assert [[ended.claim.run_id for ended in one] for one in swept] == [["run-10"], ["run-20"], ["run-30"], []]


def test_the_sweep_leaves_other_namespaces_alone(runs, clock):
    RunStore(runs.database, "office").submit(a_new_run("run-1", namespace="office", deadline_after=1.0))
    clock.forward(60)

    assert runs.finish_expired(TOO_LATE, limit=10) == []


def test_what_was_swept_is_owed_at_once(runs, clock):
    submitted(runs, deadline_after=60.0)
    clock.forward(60)
    runs.finish_expired(TOO_LATE, limit=10)

    assert due(runs) == ["run-1"]


def test_a_running_run_is_overdue_after_its_grace(runs, clock):
    held = claimed(runs, deadline_after=60.0)
    clock.forward(65)

    (found,) = runs.overdue(GRACE, limit=10)

    assert (found.claim, found.type, found.now) == (held, "shop.send", after(65))


def test_a_running_run_is_not_overdue_within_its_grace(runs, clock):
    claimed(runs, deadline_after=60.0)
    clock.forward(64.9)

    assert runs.overdue(GRACE, limit=10) == []


@pytest.mark.parametrize("still", [submitted, delayed, retrying, ended])
def test_only_running_runs_are_overdue(runs, clock, still):
    still(runs)
    clock.forward(10_000)

    assert runs.overdue(GRACE, limit=10) == []


def test_the_longest_overdue_comes_first(runs, clock):
    for seconds in (30.0, 10.0, 20.0):
        claimed(runs, f"run-{seconds:.0f}", deadline_after=seconds)
    clock.forward(60)

    found = runs.overdue(GRACE, limit=2)

    assert [running.claim.run_id for running in found] == ["run-10", "run-20"]


def test_the_overdue_of_other_namespaces_are_not_ours(runs, clock):
    office = RunStore(runs.database, "office")
    office.submit(a_new_run("run-1", namespace="office", deadline_after=1.0))
    claim(office)
    clock.forward(60)

    assert runs.overdue(GRACE, limit=10) == []


def test_a_worker_runs_what_it_claimed_and_has_not_ended(runs):
    held = claimed(runs, "run-1", worker_id="worker-1")
    claimed(runs, "run-2", worker_id="worker-2")
    runs.settle(claimed(runs, "run-3", worker_id="worker-1"), SUCCESS)
    submitted(runs, "run-4")

    found = runs.running_on("worker-1")

    assert [running.claim for running in found] == [held]


def test_a_rescue_settles_with_the_claim_it_found(runs):
    claimed(runs)
    (found,) = runs.running_on("worker-1")

    won = runs.settle(found.claim, retry_at(30), owed=True, lease=0.0, successor="rescuer")

    assert won
    assert find(runs).state is State.RETRYING


def test_a_rescued_holder_has_lost(runs):
    held = claimed(runs)
    (found,) = runs.running_on("worker-1")
    runs.settle(found.claim, TOO_LATE, owed=True, lease=0.0, successor="rescuer")

    assert not runs.settle(held, TOO_LATE)
    assert history(runs) == [1]


def test_a_running_run_is_found_by_its_id(runs):
    held = claimed(runs)

    assert runs.running("run-1").claim == held


@pytest.mark.parametrize("still", [submitted, retrying, ended])
def test_a_run_that_is_not_running_is_not_found_as_running(runs, still):
    still(runs)

    assert runs.running("run-1") is None


def test_the_running_runs_of_other_namespaces_are_not_found(runs):
    claimed(runs)

    assert RunStore(runs.database, "office").running("run-1") is None


def prune(runs, age=60.0, *, keys=0.0, state=State.SUCCEEDED, limit=10):
    return runs.prune(state, timedelta(seconds=age), timedelta(seconds=keys), limit=limit)


def test_a_run_is_pruned_when_it_was_kept_long_enough(runs, clock):
    ended(runs)
    clock.forward(60)

    assert prune(runs) == 1
    assert runs.find("run-1") is None


def test_a_run_that_ended_lately_is_kept(runs, clock):
    ended(runs)
    clock.forward(59)

    assert prune(runs) == 0


def test_another_state_is_kept_for_its_own_time(runs, clock):
    ended(runs, settlement=TOO_LATE)
    clock.forward(60)

    assert prune(runs, state=State.SUCCEEDED) == 0


@pytest.mark.parametrize("live", [submitted, delayed, retrying, claimed])
def test_a_live_run_is_never_pruned(runs, clock, live):
    live(runs)
    clock.forward(10**6)

    assert [prune(runs, state=state) for state in State] == [0] * len(State)


def test_a_run_with_a_key_is_kept_as_long_as_its_key(runs, clock):
    runs.settle(claimed(runs, idempotency_scope="s", idempotency_key="k"), SUCCESS)
    clock.forward(60)
    early = prune(runs, keys=100.0)
    clock.forward(40)

    assert (early, prune(runs, keys=100.0)) == (0, 1)


def test_pruning_goes_in_batches(runs, clock):
    for number in range(3):
        ended(runs, f"run-{number}")
    clock.forward(60)

    assert [prune(runs, limit=2), prune(runs, limit=2), prune(runs, limit=2)] == [2, 1, 0]


@pytest.mark.parametrize("table", [task_attempt, task_effect], ids=["history", "effects"])
def test_what_belongs_to_a_run_goes_with_it(runs, clock, table):
    ended(runs, settlement=TOO_LATE)
    with runs.database.connection() as connection:
        connection.execute(insert(task_effect).values(run_id="run-1", name="charge", result="1", created_at=NOON))
    clock.forward(60)

    prune(runs, state=State.DEAD)

    with runs.database.connection() as connection:
        assert connection.scalar(select(func.count()).select_from(table)) == 0


def test_pruning_leaves_other_namespaces_alone(runs, clock):
    ended(runs)
    clock.forward(60)

    assert prune(RunStore(runs.database, "office")) == 0
