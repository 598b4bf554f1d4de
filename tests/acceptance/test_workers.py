"""Workers of every kind start, run guarded tasks and stop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_guard.flow.guard import guard_of
from tests.acceptance.scenes import ids
from tests.infra.polling import eventually
from tests.infra.processes import ROOT


def _endings(life):
    """Submit one run for each way to end; return how each ended."""
    results = [life.tasks.succeed.delay(1), life.tasks.succeed_at.delay(2, 2), life.tasks.refuse.delay()]
    return life.ends(*ids(results))


ENDINGS = [("succeeded", "succeeded", 1), ("succeeded", "succeeded", 2), ("failed", "failed_non_retryable", 1)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_runs_end_alike_in_every_pool(redis_url, store_url, scene, pool):
    life = scene(broker_url=redis_url, guard_database_url=store_url)
    life.worker(pool=pool)

    endings = _endings(life)

    assert endings == ENDINGS


def test_runs_end_alike_in_spawned_children(redis_url, postgres_url, scene):
    life = scene(broker_url=redis_url, guard_database_url=postgres_url, worker_pool_start_method="spawn")
    worker = life.worker()

    endings = _endings(life)
    killed = life.ends(life.tasks.die_once.delay().id)

    assert endings == ENDINGS
    assert killed == [("succeeded", "succeeded", 2)]
    assert worker.pid not in {trace["pid"] for trace in life.traces()}


def test_a_worker_refuses_to_start_without_tables_and_names_the_command(redis_url, empty_postgres_url, scene):
    life = scene(broker_url=redis_url, guard_database_url=empty_postgres_url)

    worker = life.worker(wait=False)

    assert worker.wait(30) != 0
    assert "guard migrate" in worker.log()
    migrated = subprocess.run(
        [sys.executable, "-m", "celery", "-A", life.module, "guard", "migrate"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    assert migrated.returncode == 0, migrated.stderr
    life.worker()
    assert life.ends(life.tasks.succeed.delay().id) == [("succeeded", "succeeded", 1)]


def test_a_warm_shutdown_finishes_the_body_and_leaves_the_queue_to_the_next_worker(broker_url, postgres_url, scene):
    life = scene(broker_url=broker_url, guard_database_url=postgres_url)
    worker = life.worker(concurrency=1)
    held = life.tasks.hold.delay("go", "finished")
    eventually(lambda: life.traces("begin") != [], within=20)
    waiting = [life.tasks.succeed.delay(number) for number in range(6)]

    worker.terminate()

    eventually(lambda: "Warm shutdown" in worker.log(), within=20)
    life.open_gate("go")
    assert worker.wait(30) == 0
    assert life.ends(held.id) == [("succeeded", "succeeded", 1)]
    life.worker(concurrency=1)
    assert set(life.ends(*ids(waiting))) == {("succeeded", "succeeded", 1)}
    assert len(life.traces("begin")) == 7


def test_what_a_killed_worker_ran_and_held_is_taken_over_by_another(broker_url, postgres_url, scene):
    life = scene(broker_url=broker_url, guard_database_url=postgres_url, guard_rescue_after=4)
    victim = life.worker()
    running = [life.tasks.hold.delay("go", number) for number in range(2)]
    eventually(lambda: len(life.traces("begin")) == 2, within=20)
    reserved = [life.tasks.succeed.delay(number) for number in range(6)]
    eventually(lambda: victim.log().count(" received\n") == 8, within=20)
    inspect = life.app.control.inspect(destination=[victim.hostname], timeout=10)
    assert len(inspect.reserved()[victim.hostname]) == 6
    eventually(lambda: _beaten_with(life, 6), within=20)

    victim.destroy()

    life.open_gate("go")
    life.worker()
    assert set(life.ends(*ids(running))) == {("succeeded", "succeeded", 2)}
    assert set(life.ends(*ids(reserved))) == {("succeeded", "succeeded", 1)}
    assert len(life.traces("begin")) == 2 + 2 + 6


def _beaten_with(life, reserved):
    """Say whether a worker has told the table that it holds so many runs."""
    return any(len(beat.reserved) == reserved for beat in guard_of(life.app).workers.alive())
