"""The event loop's timer holds what is still to come, and nothing of what has been cancelled."""

from __future__ import annotations

from types import SimpleNamespace

from kombu.asynchronous.timer import Timer

from celery_guard.flow.timers import forget_cancelled
from celery_guard.flow.worker import GuardStep

DAY = 86_400


def started(timer: Timer) -> list[str]:
    """What was due, in the order in which the loop starts it."""
    found = []
    for _, entry in timer:
        if entry is None:
            return found
        found.append(entry.args[0])
    return found


def test_cancelled_time_limits_are_forgotten():
    timer = Timer()
    for number in range(100):
        limit = timer.call_after(DAY, print, (number,))
        if number != 42:
            limit.cancel()

    forget_cancelled(timer)

    assert [event.entry.args for event in timer._queue] == [(42,)]


def test_what_is_left_starts_in_its_order():
    timer = Timer()
    for number in (5, 3, 1, 4, 2):
        entry = timer.call_at(number, print, (number,))
        if number == 3:
            entry.cancel()

    forget_cancelled(timer)

    assert started(timer) == [1, 2, 4, 5]


def test_a_loop_that_runs_the_timer_goes_on_with_what_is_left():
    timer = Timer()
    timer.call_at(1, print, (1,))
    dropped = timer.call_at(2, print, (2,))
    timer.call_at(3, print, (3,))
    running = iter(timer)
    _, first = next(running)

    dropped.cancel()
    forget_cancelled(timer)

    assert first.args == (1,)
    assert next(running)[1].args == (3,)


def test_a_consumer_that_restarts_leaves_one_of_us_on_the_loop():
    timer = Timer()
    hub = SimpleNamespace(timer=timer, call_repeatedly=timer.call_repeatedly)
    step = GuardStep.__new__(GuardStep)
    step.obj = SimpleNamespace(settle_together=lambda hub: None)

    for _ in range(3):
        step.register_with_event_loop(None, hub)
    forget_cancelled(timer)

    assert len(timer) == 1
