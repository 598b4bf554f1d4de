"""The soft limit's signal reaches the body of its own run, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import soft_timeout_sighandler

from celery_guard.flow import softlimit
from tests.infra.tracer import in_hand

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal")


@pytest.fixture(autouse=True)
def _a_prefork_child(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take soft limits as a prefork child does."""
    monkeypatch.setattr(softlimit, "_pid", 0)
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    softlimit.answer()
    yield
    signal.signal(signal.SIGUSR1, before)


def _signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_limit_reached_in_the_body_is_raised_there():
    with in_hand() as traced, pytest.raises(SoftTimeLimitExceeded):
        softlimit.let_through(traced, _signal)


def test_a_limit_reached_while_the_run_is_claimed_is_raised_before_the_body_begins():
    begun = []
    with in_hand() as traced:
        _signal()

        with pytest.raises(SoftTimeLimitExceeded):
            softlimit.let_through(traced, lambda: begun.append(True))

    assert begun == []


def test_a_limit_reached_after_the_body_is_dropped_and_the_next_run_does_not_see_it():
    with in_hand() as traced:
        assert softlimit.let_through(traced, lambda: "done") == "done"
        _signal()

    with in_hand() as traced:
        assert softlimit.let_through(traced, lambda: "next") == "next"


def test_a_run_inside_of_a_body_hands_the_limit_back_to_it():
    with in_hand() as outer:

        def body():
            with in_hand() as inner:
                softlimit.let_through(inner, lambda: None)
            _signal()

        with pytest.raises(SoftTimeLimitExceeded):
            softlimit.let_through(outer, body)
        _signal()


def test_a_task_called_directly_after_the_body_does_not_let_the_signal_through():
    with in_hand() as traced:
        softlimit.let_through(traced, lambda: None)
        with in_hand(guarded=False):
            _signal()

    assert traced.limit_came


def test_a_task_called_directly_inside_of_a_coroutine_stops_the_coroutine():
    called = []

    def body():
        with softlimit.calls(lambda: called.append(True)), in_hand(guarded=False):
            _signal()

    with in_hand() as traced:
        softlimit.let_through(traced, body)

    assert called == [True]


def test_a_limit_that_calls_something_raises_nothing_then_or_later():
    called = []

    def body():
        with softlimit.calls(lambda: called.append(True)) as reaches:
            _signal()
        _signal()
        return reaches

    with in_hand() as traced:
        assert softlimit.let_through(traced, body)

    assert called == [True]


def test_a_thread_that_a_body_left_behind_does_not_let_the_signal_through():
    end = threading.Event()
    left = threading.Thread(target=end.wait, args=(60,))
    with in_hand() as traced:
        softlimit.let_through(traced, left.start)
        try:
            for _ in range(50):
                _signal()
                sum(range(1_000))  # Python looks for signals here, too
        finally:
            end.set()
            left.join()


def test_an_unguarded_neighbour_gets_its_own_limit():
    with in_hand() as traced:
        softlimit.let_through(traced, lambda: None)

    with in_hand(guarded=False), pytest.raises(SoftTimeLimitExceeded):
        _signal()


def test_a_limit_with_nothing_in_hand_is_raised_as_celery_does():
    with pytest.raises(SoftTimeLimitExceeded):
        _signal()
