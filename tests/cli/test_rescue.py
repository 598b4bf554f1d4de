"""``guard rescue``: what to do when no worker is there to do it."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def quick_shop(open_app, store_url):
    """A shop where a worker may be silent for a moment only."""
    return open_app(store_url, guard_heartbeat_interval=0.1, guard_rescue_after=0.4)


def held_by(shop, worker_id):
    run_id = shop.submit("add", 1, 2)
    shop.guard.workers.beat(worker_id, host="mill", pid=1, reserved=[])
    assert shop.guard.runs.claim(run_id, "token", worker_id=worker_id, fingerprint=None)
    return run_id


def test_the_attempts_of_a_silent_worker_are_ended(quick_shop):
    run_id = held_by(quick_shop, "gone")

    found = quick_shop.json("rescue", "--once")

    assert (found["workers_gone"], found["attempts_ended"]) == (1, 1)
    assert quick_shop.guard.runs.find(run_id).state == "retrying"


def test_an_attempt_that_was_left_when_its_worker_was_found_gone_is_ended(quick_shop):
    run_id = held_by(quick_shop, "gone")
    quick_shop.guard.workers.stop("gone")

    assert quick_shop.json("rescue", "--once")["attempts_ended"] == 1
    assert quick_shop.guard.runs.find(run_id).state == "retrying"


def test_a_worker_that_beats_is_left_alone(quick_shop):
    run_id, stop = held_by(quick_shop, "alive"), threading.Event()

    def beat():
        while not stop.wait(0.02):
            quick_shop.guard.workers.beat("alive", host="mill", pid=1, reserved=[])

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        found = quick_shop.json("rescue", "--once")
    finally:
        stop.set()
        thread.join()

    assert (found["workers_seen"], found["workers_gone"]) == (1, 0)
    assert quick_shop.guard.runs.find(run_id).state == "running"


def test_runs_past_their_deadline_are_ended(quick_shop):
    run_id = quick_shop.submit("add", 1, 2)
    with quick_shop.guard.database.connection() as connection:
        connection.exec_driver_sql("UPDATE task_run SET deadline_at = '2020-01-01 00:00:00.000000+00:00'")

    result = quick_shop.run("rescue", "--once")

    assert "1 runs whose deadline had passed" in result.stdout
    assert quick_shop.guard.runs.find(run_id).terminal_reason == "failed_due_deadline"


def test_the_observer_is_no_worker_when_it_has_left(quick_shop):
    quick_shop.run("rescue", "--once")

    assert quick_shop.json("workers")["workers"] == []
