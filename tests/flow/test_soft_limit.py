"""The soft limit's signal reaches the body of its own run, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import soft_timeout_sighandler
from celery.signals import task_postrun

from celery_guard.flow import softlimit

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal")


@pytest.fixture(autouse=True)
def _a_prefork_child() -> Iterator[None]:
    """Take soft limits as a prefork child does."""
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    yield
    signal.signal(signal.SIGUSR1, before)
    task_postrun.disconnect(dispatch_uid="celery_guard.softlimit")


def _signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_limit_reached_in_the_body_is_raised_there():
    softlimit.hold_back()

    with pytest.raises(SoftTimeLimitExceeded):
        softlimit.let_through(_signal)


def test_a_limit_reached_while_the_run_is_claimed_is_raised_before_the_body_begins():
    begun = []
    softlimit.hold_back()
    _signal()

    with pytest.raises(SoftTimeLimitExceeded):
        softlimit.let_through(lambda: begun.append(True))

    assert begun == []


def test_a_limit_reached_after_the_body_is_dropped_and_the_next_run_does_not_see_it():
    softlimit.hold_back()
    assert softlimit.let_through(lambda: "done") == "done"
    _signal()
    task_postrun.send(None)

    softlimit.hold_back()

    assert softlimit.let_through(lambda: "next") == "next"


def test_a_thread_that_a_body_left_behind_does_not_let_the_signal_through():
    end = threading.Event()
    left = threading.Thread(target=end.wait, args=(60,))
    softlimit.hold_back()
    softlimit.let_through(left.start)
    try:
        for _ in range(50):
            _signal()
            sum(range(1_000))  # Python looks for signals here, too
    finally:
        end.set()
        left.join()


def test_an_unguarded_neighbour_gets_its_own_limit():
    softlimit.hold_back()
    softlimit.let_through(lambda: None)
    task_postrun.send(None)

    with pytest.raises(SoftTimeLimitExceeded):
        _signal()
