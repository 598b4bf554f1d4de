"""The life of a run as data."""

from __future__ import annotations

import pytest

from celery_guard.core.states import ENDINGS, LIVE, MOVES, TERMINAL, Reason, State, can_move

QUEUED, RUNNING, RETRYING = State.QUEUED, State.RUNNING, State.RETRYING
SUCCEEDED, FAILED, DEAD, CANCELLED = State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED

ALLOWED = {
    (QUEUED, RUNNING),
    (QUEUED, RETRYING),
    (QUEUED, DEAD),
    (QUEUED, CANCELLED),
    (RUNNING, SUCCEEDED),
    (RUNNING, RETRYING),
    (RUNNING, FAILED),
    (RUNNING, DEAD),
    (RUNNING, CANCELLED),
    (RETRYING, QUEUED),
    (RETRYING, DEAD),
    (RETRYING, CANCELLED),
}


def _reachable(start: State) -> set[State]:
    seen, edge = {start}, {start}
    while edge:
        edge = {target for source in edge for target in MOVES[source]} - seen
        seen |= edge
    return seen


@pytest.mark.parametrize("target", State)
@pytest.mark.parametrize("source", State)
def test_a_run_makes_exactly_the_moves_of_the_table(source, target):
    assert can_move(source, target) == ((source, target) in ALLOWED)


def test_every_state_has_its_row_in_the_table():
    assert set(MOVES) == set(State)


def test_a_terminal_state_has_no_exits_and_a_live_one_has_some():
    assert {SUCCEEDED, FAILED, DEAD, CANCELLED} == TERMINAL
    assert {QUEUED, RUNNING, RETRYING} == LIVE
    assert all(MOVES[state] for state in LIVE)


def test_every_state_is_reached_from_a_new_run():
    assert _reachable(QUEUED) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_can_run_out_of_time_and_be_cancelled(state):
    assert {DEAD, CANCELLED} <= MOVES[state]


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_can_still_succeed(state):
    assert SUCCEEDED in _reachable(state)


def test_success_and_failure_come_only_from_a_running_body():
    assert [source for source in State if {SUCCEEDED, FAILED} & MOVES[source]] == [RUNNING]


def test_only_terminal_states_have_reasons_and_each_reason_belongs_to_one():
    reasons = [reason for state in ENDINGS for reason in ENDINGS[state]]

    assert set(ENDINGS) == TERMINAL
    assert sorted(reasons) == sorted(Reason)


@pytest.mark.parametrize("member", [*State, *Reason])
def test_a_name_is_stored_as_its_text(member):
    assert str(member) == f"{member}" == member.value == member.name.lower()
