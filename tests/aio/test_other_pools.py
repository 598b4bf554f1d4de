"""Coroutines in the main process of a solo worker, and among greenlets, where there is no place for them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from celery_guard import cancel
from tests.acceptance.scenes import ending
from tests.infra.polling import eventually


@pytest.fixture
def set_pool(set_stage, redis_database, stage_database):
    """Start a worker with a pool."""

    def start(pool, **options):
        stage = set_stage(
            "tests.aio.apps.bodies",
            broker_url=redis_database,
            guard_database_url=stage_database,
            guard_namespace=pool,
            guard_deadline_grace=1,
        )
        stage.at_work = stage.worker(pool=pool, concurrency=1, **options)
        return stage

    return start


def test_a_solo_worker_cancels_at_the_deadline_on_demand_and_goes_on(set_pool):
    stage = set_pool("solo")
    late = stage.tasks.oversleep.apply_async(deadline=3)
    clinging = stage.tasks.swallow.apply_async((3_600,), deadline=6)
    endless = stage.tasks.wait_for_ever.delay()
    after = stage.tasks.succeed.delay("next")

    eventually(lambda: stage.traces("begin", endless.id) != [], within=60)
    cancel(endless.id, app=stage.app)

    assert stage.ends(late.id, clinging.id, endless.id, after.id) == [
        ("dead", "failed_due_deadline", 1),
        ("dead", "failed_due_deadline", 1),
        ("cancelled", "cancelled", 1),
        ("succeeded", "succeeded", 1),
    ]
    assert len(stage.traces("cleaned up", late.id)) == 1
    assert [trace["error"] for trace in stage.traces("end", endless.id)] == ["CancelledError"]
    found = [trace for run in (late, clinging, endless, after) for trace in stage.traces("found", run.id)]
    assert [trace["others"] for trace in found] == [[]] * 4


def test_workers_of_greenlets_refuse_a_coroutine_and_say_where_it_can_run(set_pool):
    pools = [pool for pool in ("gevent", "eventlet") if find_spec(pool)]
    if not pools:
        pytest.skip("neither gevent nor eventlet is installed")
    begun = []
    for pool in pools:
        stage = set_pool(pool, wait=False)
        begun.append((stage, stage.tasks.succeed.delay().id))

    runs = [stage.ended(run_id, within=90)[0] for stage, run_id in begun]

    assert [ending(run) for run in runs] == [("failed", "failed_non_retryable", 1)] * len(pools)
    for pool, run in zip(pools, runs, strict=True):
        assert "an async def body needs the prefork, threads or solo pool" in run.last_error
        assert f"this process runs {pool}" in run.last_error
    assert [stage.traces("begin") for stage, _ in begun] == [[]] * len(pools)
