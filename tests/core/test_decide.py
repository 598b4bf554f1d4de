"""What one attempt means for its run: the order of the questions is the rule."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from celery_guard.core.backoff import Backoff
from celery_guard.core.decide import Cancelled, Expired, Finish, Lost, Policy, Raised, Retry, Returned, decide
from celery_guard.core.faults import Category
from celery_guard.core.states import ENDINGS, MOVES, Reason, State
from tests.factories import NOON, a_claim, a_fault

LATE = a_claim(deadline_at=NOON)
LAST = a_claim(attempt=5, max_attempts=5)
LAST_AND_LATE = a_claim(attempt=5, max_attempts=5, deadline_at=NOON)

RETRYABLE = a_fault(Category.RETRYABLE)
PERMANENT = a_fault(Category.NON_RETRYABLE)
UNKNOWN = a_fault(Category.UNKNOWN)
FAR = a_fault(Category.RETRYABLE, retry_after=timedelta(hours=2))

POLICY = Policy(unknown_max_attempts=3, backoff=Backoff(base=10, cap=60, jitter="none"))
FORBIDS_A_REPEAT = Policy(on_worker_lost="fail")

SUCCEEDED = (State.SUCCEEDED, Reason.SUCCEEDED)
FAILED = (State.FAILED, Reason.FAILED_NON_RETRYABLE)
TOO_LATE = (State.DEAD, Reason.FAILED_DUE_DEADLINE)
USED_UP = (State.DEAD, Reason.FAILED_DUE_MAX_ATTEMPTS)
LOST = (State.DEAD, Reason.FAILED_DUE_WORKER_LOSS)
CANCELLED = (State.CANCELLED, Reason.CANCELLED)
AGAIN = (State.RETRYING, None)


def ending(outcome, claim, policy=POLICY, *, now=NOON):
    settlement = decide(outcome, claim, policy, now=now, rng=random.Random(0))
    return AGAIN if isinstance(settlement, Retry) else (settlement.state, settlement.reason)


@pytest.mark.parametrize(
    ("outcome", "claim", "policy", "expected"),
    [
        pytest.param(Returned(1), a_claim(), POLICY, SUCCEEDED, id="returned in time"),
        pytest.param(Returned(1), LAST, POLICY, SUCCEEDED, id="returned in the last attempt"),
        pytest.param(Returned(1), LATE, POLICY, TOO_LATE, id="returned at the deadline"),
        pytest.param(Raised(PERMANENT), a_claim(), POLICY, FAILED, id="permanent"),
        pytest.param(Raised(PERMANENT), LAST, POLICY, FAILED, id="permanent before used up"),
        pytest.param(Raised(PERMANENT), LAST_AND_LATE, POLICY, TOO_LATE, id="deadline before permanent"),
        pytest.param(Raised(RETRYABLE), a_claim(), POLICY, AGAIN, id="retryable"),
        pytest.param(Raised(RETRYABLE), LAST, POLICY, USED_UP, id="retryable in the last attempt"),
        pytest.param(Raised(RETRYABLE), LAST_AND_LATE, POLICY, TOO_LATE, id="deadline before used up"),
        pytest.param(Raised(FAR), a_claim(), POLICY, TOO_LATE, id="the next start past the deadline"),
        pytest.param(Raised(FAR), LAST, POLICY, USED_UP, id="used up before the next start"),
        pytest.param(Raised(UNKNOWN), a_claim(), POLICY, AGAIN, id="first unknown"),
        pytest.param(Raised(UNKNOWN), a_claim(unknown_faults=1), POLICY, AGAIN, id="second unknown"),
        pytest.param(Raised(UNKNOWN), a_claim(unknown_faults=2), POLICY, USED_UP, id="third unknown"),
        pytest.param(Raised(UNKNOWN), LAST, POLICY, USED_UP, id="unknown in the last attempt"),
        pytest.param(Raised(RETRYABLE), a_claim(unknown_faults=2), POLICY, AGAIN, id="retryable after unknowns"),
        pytest.param(Lost(RETRYABLE), a_claim(), POLICY, AGAIN, id="lost"),
        pytest.param(Lost(RETRYABLE), LAST, POLICY, USED_UP, id="lost in the last attempt"),
        pytest.param(Lost(RETRYABLE), LATE, POLICY, TOO_LATE, id="lost at the deadline"),
        pytest.param(Lost(RETRYABLE), a_claim(), FORBIDS_A_REPEAT, LOST, id="lost, a repeat forbidden"),
        pytest.param(Lost(RETRYABLE), LAST, FORBIDS_A_REPEAT, LOST, id="loss before used up"),
        pytest.param(Lost(RETRYABLE), LATE, FORBIDS_A_REPEAT, TOO_LATE, id="deadline before loss"),
        pytest.param(Raised(RETRYABLE), a_claim(), FORBIDS_A_REPEAT, AGAIN, id="an error is no loss"),
        pytest.param(Expired(), a_claim(), POLICY, TOO_LATE, id="expired"),
        pytest.param(Expired(RETRYABLE), LAST, POLICY, TOO_LATE, id="expired in the last attempt"),
        pytest.param(Cancelled(), a_claim(), POLICY, CANCELLED, id="cancelled"),
        pytest.param(Cancelled(), LAST_AND_LATE, POLICY, CANCELLED, id="cancelled after everything else"),
    ],
)
def test_the_first_question_that_says_yes_ends_the_run(outcome, claim, policy, expected):
    assert ending(outcome, claim, policy) == expected


def test_a_microsecond_before_the_deadline_is_in_time():
    assert ending(Returned(1), LATE, now=NOON - timedelta(microseconds=1)) == SUCCEEDED


def test_a_retry_starts_after_the_backoff_of_its_attempt(now, rng):
    settlement = decide(Raised(RETRYABLE), a_claim(attempt=3), POLICY, now=now, rng=rng)

    assert settlement == Retry(now + timedelta(seconds=40), RETRYABLE)


def test_what_the_error_asked_for_replaces_the_backoff(now, rng):
    asked = a_fault(retry_after=timedelta(seconds=7))

    settlement = decide(Raised(asked), a_claim(attempt=3), POLICY, now=now, rng=rng)

    assert isinstance(settlement, Retry)
    assert timedelta(seconds=7) <= settlement.at - now <= timedelta(seconds=7.7)


def test_a_retry_that_could_start_only_at_the_deadline_is_refused_not_clamped():
    just_in_time = a_fault(retry_after=timedelta(hours=1, microseconds=-1))
    at_the_deadline = a_fault(retry_after=timedelta(hours=1))

    assert ending(Raised(just_in_time), a_claim()) == AGAIN
    assert ending(Raised(at_the_deadline), a_claim()) == TOO_LATE


@pytest.mark.parametrize("retry_after", [timedelta.max, timedelta(days=10**6)])
def test_a_wait_beyond_the_calendar_ends_at_the_deadline(retry_after):
    assert ending(Raised(a_fault(retry_after=retry_after)), a_claim()) == TOO_LATE


def test_a_wait_of_less_than_nothing_never_starts_in_the_past(now, rng):
    settlement = decide(Raised(a_fault(retry_after=-timedelta(days=1))), a_claim(), POLICY, now=now, rng=rng)

    assert settlement.at >= now


def test_success_carries_the_result_and_no_fault(now, rng):
    settlement = decide(Returned([1, 2]), a_claim(), POLICY, now=now, rng=rng)

    assert settlement == Finish(State.SUCCEEDED, Reason.SUCCEEDED, fault=None, result=[1, 2])


def test_a_late_result_is_not_kept(now, rng):
    settlement = decide(Returned("too late"), LATE, POLICY, now=now, rng=rng)

    assert settlement.result is None


@pytest.mark.parametrize(
    ("outcome", "claim"),
    [(Raised(PERMANENT), a_claim()), (Raised(RETRYABLE), LAST), (Lost(RETRYABLE), LATE), (Expired(UNKNOWN), a_claim())],
)
def test_an_ending_after_a_fault_carries_it(outcome, claim, now, rng):
    assert decide(outcome, claim, POLICY, now=now, rng=rng).fault is outcome.fault


outcomes = st.one_of(
    st.builds(Returned, st.integers()),
    st.builds(Raised, st.builds(a_fault, st.sampled_from(Category), retry_after=st.none() | st.timedeltas())),
    st.builds(Lost, st.builds(a_fault, st.sampled_from(Category))),
    st.just(Expired()),
    st.just(Cancelled()),
)
claims = st.builds(
    a_claim,
    attempt=st.integers(1, 6),
    max_attempts=st.integers(1, 5),
    unknown_faults=st.integers(0, 5),
    deadline_at=st.timedeltas(timedelta(seconds=-100), timedelta(seconds=100)).map(lambda left: NOON + left),
)
policies = st.builds(
    Policy,
    unknown_max_attempts=st.integers(1, 5),
    backoff=st.just(Backoff()),
    on_worker_lost=st.sampled_from(["retry", "fail"]),
)


@given(outcomes, claims, policies, st.integers(0, 9))
def test_every_decision_is_a_move_of_the_table_with_a_reason_of_its_state(outcome, claim, policy, seed):
    settlement = decide(outcome, claim, policy, now=NOON, rng=random.Random(seed))

    if isinstance(settlement, Retry):
        assert State.RETRYING in MOVES[State.RUNNING]
        assert NOON <= settlement.at < claim.deadline_at
        assert claim.attempt < claim.max_attempts
    else:
        assert settlement.state in MOVES[State.RUNNING]
        assert settlement.reason in ENDINGS[settlement.state]


@given(outcomes, claims, policies)
def test_after_the_deadline_nothing_succeeds_and_nothing_is_tried_again(outcome, claim, policy):
    state, _ = ending(outcome, claim, policy, now=claim.deadline_at)

    assert state in (State.DEAD, State.CANCELLED)
