"""Settling: the holder ends its attempt, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category
from celery_guard.core.states import Reason, State
from celery_guard.store.database import Database
from celery_guard.store.records import Attempt
from celery_guard.store.runs import RunStore
from tests.factories import NOON, a_fault
from tests.store.lives import (
    CANCELLED,
    NAMESPACE,
    SUCCESS,
    TOO_LATE,
    Clock,
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

FAILED = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault=a_fault(Category.NON_RETRYABLE))
USED_UP = Finish(State.DEAD, Reason.FAILED_DUE_MAX_ATTEMPTS, fault=a_fault())
LOST = Finish(State.DEAD, Reason.FAILED_DUE_WORKER_LOSS, fault=a_fault(rule="worker_lost"))

ENDINGS = pytest.mark.parametrize(
    "settlement",
    [SUCCESS, FAILED, TOO_LATE, USED_UP, LOST, CANCELLED],
    ids=lambda settlement: str(settlement.reason),
)
NOT_SUCCEEDED = pytest.mark.parametrize(
    "settlement",
    [FAILED, TOO_LATE, USED_UP, LOST, CANCELLED, retry_at(30)],
    ids=["failed", "too late", "used up", "lost", "cancelled", "retry"],
)
#: Encoded results of a few runs, by number; that of the last was too large.
A_FEW = [(1, "1"), (2, '{"paid": true}'), (3, None)]
ANY = pytest.mark.parametrize("settlement", [SUCCESS, FAILED, retry_at(30)], ids=["success", "failure", "retry"])


@pytest.fixture
def postgres_runs(postgres_url: str, clock: Clock) -> Iterator[RunStore]:
    """The runs of one namespace on PostgreSQL."""
    with closing(Database(postgres_url, clock=clock)) as database:
        yield RunStore(database, NAMESPACE)


@ENDINGS
def test_an_ending_says_how_why_and_when(runs, clock, settlement):
    held = claimed(runs)
    clock.forward(7)

    won = runs.settle(held, settlement)

    run = find(runs)
    assert won
    assert (run.state, run.terminal_reason, run.finished_at) == (settlement.state, settlement.reason, after(7))


def test_a_retry_waits_for_its_moment_and_is_not_finished(runs):
    held = claimed(runs)

    won = runs.settle(held, retry_at(30))

    run = find(runs)
    assert won
    assert (run.state, run.next_retry_at, run.finished_at) == (State.RETRYING, after(30), None)


def test_a_retry_is_due_at_its_moment_and_not_before(runs, clock):
    ended(runs, settlement=retry_at(30))
    before = due(runs)
    clock.forward(30)

    assert (before, due(runs)) == ([], ["run-1"])


def test_a_success_keeps_its_encoded_result(runs):
    ended(runs, result='{"paid": true}')

    assert find(runs).encoded_result == '{"paid": true}'


def test_the_last_error_is_shown_after_a_failure(runs):
    ended(runs, settlement=FAILED)

    run = find(runs)
    assert (run.last_error, run.error_type) == ("ConnectionError: refused", "ConnectionError")
    assert run.error_category is Category.NON_RETRYABLE


def test_an_ending_without_an_error_keeps_the_last_one(runs, clock):
    ended(runs, settlement=retry_at(1))
    clock.forward(1)
    due(runs)

    runs.settle(claim(runs, token="token-2"), TOO_LATE)

    assert find(runs).last_error == "ConnectionError: refused"


@pytest.mark.parametrize(("category", "expected"), [(Category.UNKNOWN, 1), (Category.RETRYABLE, 0)])
def test_only_unknown_faults_count_as_unknown(runs, category, expected):
    ended(runs, settlement=retry_at(30, category=category))

    assert find(runs).unknown_faults == expected


@ANY
def test_another_token_changes_nothing(runs, settlement):
    held = claimed(runs)
    before = row(runs)

    won = runs.settle(replace(held, token="token-2"), settlement)

    assert not won
    assert row(runs) == before
    assert history(runs) == []


@ANY
def test_a_stale_attempt_cannot_settle_the_run_that_replaced_it(runs, clock, settlement):
    stale = ended(runs, settlement=retry_at(1), successor="rescuer")
    clock.forward(1)
    due(runs)
    claim(runs, token="token-2")

    won = runs.settle(stale, settlement)

    assert not won
    assert find(runs).state is State.RUNNING
    assert runs.held("run-1", "token-2") is not None


@ENDINGS
@pytest.mark.parametrize("later", [SUCCESS, FAILED, retry_at(30)], ids=["success", "failure", "retry"])
def test_a_run_that_has_ended_keeps_its_ending(runs, settlement, later):
    held = ended(runs, settlement=settlement, successor="rescuer")
    before = row(runs)

    won = runs.settle(held, later)

    assert not won
    assert row(runs) == before


@ANY
def test_a_run_that_never_started_cannot_be_settled(runs, settlement):
    held = claimed(runs, "run-2")
    submitted(runs, "run-1")

    assert not runs.settle(replace(held, run_id="run-1"), settlement)


def test_a_success_writes_no_history(runs):
    ended(runs)

    assert history(runs) == []


@NOT_SUCCEEDED
def test_an_attempt_that_did_not_succeed_is_history(runs, settlement):
    ended(runs, settlement=settlement)

    assert history(runs) == [1]


def test_history_tells_what_happened(runs, clock):
    held = claimed(runs, worker_id="worker-7")
    clock.forward(5)
    fault = replace(a_fault(Category.UNKNOWN, rule="unknown", error_type="KeyError", error="'x'"), traceback="…")

    runs.settle(held, replace(retry_at(30), fault=fault))

    assert find(runs).attempts == (
        Attempt(1, "worker-7", NOON, after(5), Category.UNKNOWN, "unknown", "KeyError", "'x'", "…"),
    )


def test_history_of_an_attempt_without_an_error_gives_the_reason(runs):
    ended(runs, settlement=CANCELLED)

    (attempt,) = find(runs).attempts
    assert (attempt.rule, attempt.category, attempt.error) == ("cancelled", None, None)


@NOT_SUCCEEDED
def test_settling_twice_writes_history_once(runs, settlement):
    held = ended(runs, settlement=settlement)

    runs.settle(held, settlement)

    assert history(runs) == [1]


def test_each_attempt_adds_to_the_history(runs, clock):
    ended(runs, settlement=retry_at(1))
    clock.forward(1)
    due(runs)

    runs.settle(claim(runs, token="token-2"), FAILED)

    assert history(runs) == [1, 2]


def test_the_token_of_the_holder_stays_on_the_row(runs):
    ended(runs)

    assert runs.holder("run-1") == (State.SUCCEEDED, "token-1")


@ANY
def test_a_successor_leaves_its_own_token_on_the_row(runs, settlement):
    ended(runs, settlement=settlement, successor="rescuer")

    assert runs.holder("run-1")[1] == "rescuer"


def test_nobody_holds_a_run_that_is_not_there(runs):
    assert runs.holder("run-1") == (None, None)


@ENDINGS
def test_an_ending_that_celery_was_told_owes_nothing(runs, clock, settlement):
    ended(runs, settlement=settlement, owed=False)
    clock.forward(10**6)

    assert not find(runs).owed
    assert due(runs) == []


@ENDINGS
def test_an_owed_ending_is_due_when_its_lease_is_over(runs, clock, settlement):
    ended(runs, settlement=settlement, owed=True, lease=60.0)
    clock.forward(59)
    before = due(runs)
    clock.forward(1)

    assert find(runs).owed
    assert (before, due(runs)) == ([], ["run-1"])


@ENDINGS
def test_an_owed_ending_without_a_lease_is_due_at_once(runs, settlement):
    ended(runs, settlement=settlement, owed=True)

    assert due(runs) == ["run-1"]


def test_a_retry_owes_celery_nothing(runs):
    ended(runs, settlement=retry_at(30), owed=True, lease=0.0)

    assert not find(runs).owed
    assert due(runs) == []


def test_the_holder_can_change_the_arguments_of_the_next_attempt(runs, clock):
    held = claimed(runs)

    changed = runs.rewrite(held, payload="[[43], {}]", options='{"x": 1}', fingerprint="1:new")

    assert changed
    assert runs.payload("run-1") == ("[[43], {}]", '{"x": 1}')
    assert row(runs)["fingerprint"] == "1:new"


def test_nobody_else_can_change_the_arguments(runs):
    held = claimed(runs)

    assert not runs.rewrite(replace(held, token="token-2"), payload="x", options="x", fingerprint="x")
    assert runs.payload("run-1") == ("[[42], {}]", "{}")


def test_a_run_that_is_not_there_has_no_payload(runs):
    assert runs.payload("run-1") is None


def test_several_successes_are_written_at_once_each_with_its_result(postgres_runs, clock):
    left = {
        f"token-{n}": (claimed(postgres_runs, f"run-{n}", token=f"token-{n}").run_id, result) for n, result in A_FEW
    }
    clock.forward(7)

    won = postgres_runs.succeed_together(left)

    ended_runs = [find(postgres_runs, run_id) for run_id, _ in left.values()]
    assert won == set(left)
    assert [(run.state, run.finished_at, run.encoded_result) for run in ended_runs] == [
        (State.SUCCEEDED, after(7), result) for _, result in A_FEW
    ]


def test_of_several_successes_those_that_are_not_held_change_nothing(postgres_runs):
    claimed(postgres_runs, "run-1", token="token-1")
    claimed(postgres_runs, "run-2", token="another")
    postgres_runs.settle(claimed(postgres_runs, "run-3", token="token-3"), FAILED)
    before = [row(postgres_runs, run_id) for run_id in ("run-2", "run-3")]

    won = postgres_runs.succeed_together({f"token-{n}": (f"run-{n}", "1") for n in (1, 2, 3, 4)})

    assert won == {"token-1"}
    assert [row(postgres_runs, run_id) for run_id in ("run-2", "run-3")] == before
