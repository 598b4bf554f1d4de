"""Coroutines on real workers: every ending, the deadline whatever the body does, and nothing left for the next run."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_guard import cancel
from tests.acceptance.scenes import ending, ids
from tests.infra.polling import eventually

PLACES = 4
SUCCEEDED = ("succeeded", "succeeded")
LATE = ("dead", "failed_due_deadline")
USED_UP = ("dead", "failed_due_max_attempts")


@pytest.fixture(scope="module", params=["prefork", "threads"])
def pool(request):
    return request.param


@pytest.fixture(scope="module")
def stage(set_stage, redis_database, stage_database, pool):
    """An app with one worker."""
    stage = set_stage(
        "tests.aio.apps.bodies",
        broker_url=redis_database,
        guard_database_url=stage_database,
        guard_namespace=pool,
        guard_deadline_grace=1,
    )
    stage.at_work = stage.worker(pool=pool, concurrency=PLACES)
    return stage


@pytest.fixture
def tasks(stage):
    return stage.tasks


@pytest.fixture(autouse=True)
def _the_worker_goes_on(stage, tasks):
    """Whatever a body did, every process and thread of the worker serves the next runs."""
    yield
    after = [tasks.succeed.delay(number) for number in range(2 * PLACES)]
    assert stage.ends(*ids(after)) == [(*SUCCEEDED, 1)] * len(after)


def _begun(stage, result):
    eventually(lambda: stage.traces("begin", result.id) != [], within=60)


def _how_it_ended(stage, result):
    return [trace["error"] for trace in stage.traces("end", result.id)]


def test_two_hundred_runs_end_as_they_should_and_leave_nothing_behind(stage, tasks):
    mixed = {
        (*SUCCEEDED, 1): [
            *(tasks.succeed.delay(number) for number in range(80)),
            *(tasks.leave_children.delay() for _ in range(20)),
            *(tasks.snooze_once.delay() for _ in range(10)),
        ],
        (*SUCCEEDED, 2): [tasks.succeed_at.delay(2) for _ in range(40)],
        ("failed", "failed_non_retryable", 1): [tasks.refuse.delay() for _ in range(30)],
        (*USED_UP, 3): [tasks.succeed_at.apply_async((9,), max_attempts=3) for _ in range(5)],
        (*USED_UP, 2): [tasks.cancel_oneself.delay() for _ in range(5)],
        (*USED_UP, 1): [tasks.exceed_the_soft_limit.apply_async(max_attempts=1) for _ in range(10)],
    }

    found = {wanted: Counter(stage.ends(*ids(results))) for wanted, results in mixed.items()}

    assert found == {wanted: Counter({wanted: len(results)}) for wanted, results in mixed.items()}
    known = {run_id for results in mixed.values() for run_id in ids(results)}
    began = [trace for trace in stage.traces("found") if trace["run"] in known]
    assert len(known) == 200
    # Ten were put off, 40 and 5 repeated; a soft limit may come before the body begins.
    assert 110 + 10 + 2 * 40 + 30 + 3 * 5 + 2 * 5 <= len(began) <= 265
    assert [trace for trace in began if trace["others"] or trace["crumb"] or trace["handler"]] == []
    assert len({trace["loop"] for trace in began}) <= PLACES
    assert all(trace["of"] == trace["run"] for trace in stage.traces("child ended"))
    assert len(stage.traces("child ended")) == 40


def test_the_deadline_ends_a_run_whatever_its_coroutine_does(stage, tasks, pool):
    bodies = {
        "cleans up": tasks.oversleep.apply_async(deadline=4),
        "swallows the cancellation and returns within the grace": tasks.swallow.apply_async((4.4,), deadline=4),
        "swallows it for ever": tasks.swallow.apply_async((3_600,), deadline=4),
        "blocks its thread": tasks.block.apply_async((3_600 if pool == "prefork" else 6,), deadline=4),
    }

    runs = dict(zip(bodies, stage.ended(*ids(bodies.values())), strict=True))

    assert {name: ending(run) for name, run in runs.items()} == dict.fromkeys(bodies, (*LATE, 1))
    assert {name for name, run in runs.items() if run.finished_at < run.deadline_at} == set()
    assert runs["cleans up"].last_error == "SoftTimeLimitExceeded: stopped at the deadline"
    assert _how_it_ended(stage, bodies["cleans up"]) == ["CancelledError"]
    assert len(stage.traces("cleaned up", bodies["cleans up"].id)) == 1
    if pool == "prefork":  # the process is killed; it may see that coming
        assert _how_it_ended(stage, bodies["blocks its thread"]) in ([], ["SystemExit"])
    else:
        eventually(lambda: _how_it_ended(stage, bodies["blocks its thread"]) != [], within=60)
        assert stage.run(bodies["blocks its thread"].id) == runs["blocks its thread"]


def test_a_cancelled_run_stops_at_the_next_look_at_it(stage, tasks):
    result = tasks.hold.delay("never")
    _begun(stage, result)

    cancel(result.id, app=stage.app)

    eventually(lambda: len(_how_it_ended(stage, result)) == 1, within=60)
    assert _how_it_ended(stage, result)[0] in ("RunCancelled", "CancelledError")
    assert stage.ends(result.id) == [("cancelled", "cancelled", 1)]


def test_a_cancelled_run_that_waits_for_ever_is_stopped_by_its_worker(stage, tasks):
    result = tasks.wait_for_ever.delay()
    _begun(stage, result)

    cancel(result.id, app=stage.app)

    eventually(lambda: _how_it_ended(stage, result) == ["CancelledError"], within=60)
    assert stage.ends(result.id) == [("cancelled", "cancelled", 1)]
