"""Real workers keep a limit, whoever dies: what ran together is told by what the bodies wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_guard import cancel
from celery_guard.core.states import State
from tests.acceptance.scenes import Scene, ids
from tests.infra.polling import eventually


def most_at_once(traces: Sequence[Mapping[str, Any]]) -> int:
    """Return how many bodies were between their begin and their end, in the order in which they wrote that."""
    running = [0]
    for trace in traces:
        running.append(running[-1] + (1 if trace["what"] == "begin" else -1))
    return max(running)


def begun(kitchen: Scene) -> list[str]:
    """Return the runs whose bodies began, in that order."""
    return [trace["run"] for trace in kitchen.traces("begin")]


def running(kitchen: Scene, *runs: str) -> list[str]:
    return [run_id for run_id in runs if kitchen.run(run_id).state is State.RUNNING]


def waiting(kitchen: Scene, *runs: str) -> list[str]:
    return [run_id for run_id in runs if kitchen.run(run_id).waits_for_permit]


def test_two_workers_keep_the_limit_and_finish_everything(open_kitchen, store_url):
    kitchen = open_kitchen(guard_database_url=store_url)
    for _ in range(2):
        kitchen.worker(concurrency=4)
    runs = ids(kitchen.tasks.fry.delay(0.01) for _ in range(40))

    endings = kitchen.ends(*runs, within=120)

    assert set(endings) == {("succeeded", "succeeded", 1)}
    assert sorted(begun(kitchen)) == sorted(runs)
    assert most_at_once(kitchen.traces()) <= 5


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools_keep_the_limit(open_kitchen, sqlite_url, pool):
    kitchen = open_kitchen(guard_database_url=sqlite_url)
    for _ in range(2):
        kitchen.worker(pool=pool, concurrency=6)
    runs = ids(kitchen.tasks.serve.delay(number % 2) for number in range(20))

    endings = kitchen.ends(*runs, within=60)

    assert set(endings) == {("succeeded", "succeeded", 1)}
    for table in (0, 1):
        ours = runs[table::2]
        assert most_at_once([trace for trace in kitchen.traces() if trace["run"] in ours]) == 1


def test_runs_over_the_limit_wait_in_their_rows_and_come_in_order(kitchen):
    kitchen.worker(concurrency=4)
    runs = ids(kitchen.tasks.serve.delay("one", f"plate{number}") for number in range(4))
    other = kitchen.tasks.serve.delay("another").id

    eventually(lambda: len(waiting(kitchen, *runs)) == 3, within=30)
    kitchen.ends(other)
    first = running(kitchen, *runs)
    for number in range(4):
        kitchen.open_gate(f"plate{number}")
    kitchen.ends(*runs)

    order = [run_id for run_id in begun(kitchen) if run_id != other]
    assert order == [*first, *(run_id for run_id in runs if run_id not in first)]
    assert {kitchen.run(run_id).attempt for run_id in runs} == {1}


def test_a_killed_worker_gives_its_permits_back(kitchen):
    doomed = kitchen.worker(concurrency=2, options=["--prefetch-multiplier=1"])
    held = ids(kitchen.tasks.keep_warm.delay("first") for _ in range(2))
    eventually(lambda: len(running(kitchen, *held)) == 2, within=30)
    kitchen.worker(concurrency=4)
    waiters = ids(kitchen.tasks.keep_warm.delay("second") for _ in range(2))
    eventually(lambda: len(waiting(kitchen, *waiters)) == 2, within=30)

    doomed.destroy()

    eventually(lambda: len(running(kitchen, *waiters)) == 2, within=60)
    for gate in ("first", "second"):
        kitchen.open_gate(gate)
    endings = kitchen.ends(*held, *waiters)
    assert endings == [("succeeded", "succeeded", 2)] * 2 + [("succeeded", "succeeded", 1)] * 2


@pytest.fixture
def crowded(kitchen):
    """A kitchen in which two of three runs hold both permits, and the third, which waits."""
    kitchen.worker(concurrency=4)
    runs = ids(kitchen.tasks.keep_warm.delay("plate") for _ in range(3))
    eventually(lambda: len(waiting(kitchen, *runs)) == 1, within=30)
    return kitchen, runs, *waiting(kitchen, *runs)


def test_a_cancelled_run_gives_its_permit_back(crowded):
    kitchen, runs, third = crowded
    cancelled = running(kitchen, *runs)[0]

    cancel(cancelled, app=kitchen.app)

    eventually(lambda: running(kitchen, third) == [third], within=60)


def test_a_waiting_run_that_is_cancelled_never_begins(crowded):
    kitchen, runs, third = crowded

    cancel(third, app=kitchen.app)
    kitchen.open_gate("plate")

    states = {run.id: run.state for run in kitchen.ended(*runs)}
    assert states.pop(third) is State.CANCELLED
    assert set(states.values()) == {State.SUCCEEDED}
    assert third not in begun(kitchen)


def test_a_lost_child_gives_its_permit_back(kitchen):
    kitchen.worker(concurrency=4)

    runs = ids(kitchen.tasks.burn.delay(f"pan{number}") for number in range(6))

    assert set(kitchen.ends(*runs)) == {("dead", "failed_due_worker_loss", 1)}


def test_the_deadline_rules_for_those_who_run_and_for_those_who_wait(kitchen):
    kitchen.worker(concurrency=2)

    deadline = datetime.now(timezone.utc) + timedelta(seconds=5)
    runs = ids(kitchen.tasks.sit_down.apply_async(deadline=deadline) for _ in range(2))

    endings = kitchen.ends(*runs)
    assert sorted(endings) == [("dead", "failed_due_deadline", 0), ("dead", "failed_due_deadline", 1)]


def test_a_raised_limit_holds_from_the_start_of_a_worker_that_knows_it(crowded):
    kitchen, runs, third = crowded

    kitchen.worker(concurrency=4, env={"GUARD_TEST_PLATES": "3"})

    eventually(lambda: running(kitchen, third) == [third], within=60)
    assert len(running(kitchen, *runs)) == 3
