"""Processes that die: children, by the kernel, by themselves, always; and whole workers."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.scenes import ids
from tests.fire.scenes import SUCCEEDED, USED_UP, shape
from tests.infra import servers
from tests.infra.polling import eventually

LOST = "worker_lost"


@pytest.mark.parametrize(("broker", "celery_wants_to_repeat"), [("redis", True), ("rabbitmq", False)])
def test_whatever_a_body_does_to_its_process_its_run_ends_and_the_worker_goes_on(
    request, postgres_url, fire, broker, celery_wants_to_repeat
):
    scene = fire(
        broker_url=request.getfixturevalue(f"{broker}_url"),
        guard_backoff_base=0.5,
        guard_database_url=postgres_url,
        guard_unknown_max_attempts=1,
        task_acks_late=celery_wants_to_repeat,
        task_reject_on_worker_lost=celery_wants_to_repeat,
        task_retry_on_worker_lost=celery_wants_to_repeat,
    )
    tasks = scene.tasks
    worker = scene.worker(concurrency=2)

    results = {
        "killed once": tasks.die_until.delay(2),
        "killed always": tasks.die_until.apply_async((99,), max_attempts=3),
        "killed, and never to be repeated": tasks.die_and_never_again.delay(),
        "left by os._exit": tasks.leave.apply_async(("_exit",), max_attempts=1),
        "left by SystemExit": tasks.leave.apply_async(("SystemExit",), max_attempts=1),
        "killed after its success": tasks.killed_after_its_success.delay(),
    }

    runs = scene.ended(*ids(results.values()), within=90)
    assert dict(zip(results, map(shape, runs), strict=True)) == {
        "killed once": (*SUCCEEDED, 2, [LOST]),
        "killed always": (*USED_UP, 3, [LOST] * 3),
        "killed, and never to be repeated": ("dead", "failed_due_worker_loss", 1, [LOST]),
        "left by os._exit": (*USED_UP, 1, [LOST]),
        "left by SystemExit": (*USED_UP, 1, [runs[4].attempts[0].rule]),
        "killed after its success": (*SUCCEEDED, 1, []),
    }
    assert runs[4].attempts[0].error_type == "SystemExit"  # the child settled it itself
    assert [scene.bodies(result.id) for result in results.values()] == [2, 3, 1, 1, 1, 1]
    first, second, third = runs[1].attempts  # with the backoff between them
    assert (second.started_at - first.finished_at).total_seconds() >= 0.5
    assert (third.started_at - second.finished_at).total_seconds() >= 1.0
    scene.ended(*(tasks.succeed.delay().id for _ in range(4)))
    assert worker.running
    worker.stop()
    assert scene.depth() == 0
    assert [scene.bodies(result.id) for result in results.values()] == [2, 3, 1, 1, 1, 1]


def test_20_runs_of_a_killed_worker_finish_on_another_although_redis_keeps_their_messages_for_an_hour(
    redis_url, postgres_url, fire
):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, worker_prefetch_multiplier=5)
    doomed = scene.worker(concurrency=4)
    results = [scene.tasks.hold.delay("go", number) for number in range(20)]
    eventually(lambda: len(scene.traces("begin")) == 4, within=30)
    scene.reserves(16)
    scene.worker(concurrency=4)

    [(killed_at,)] = scene.rows("clock_timestamp()", f"id = '{results[0].id}'")
    doomed.kill()
    scene.open_gate("go")

    runs = scene.ended(*ids(results))
    assert {run.state for run in runs} == {"succeeded"}
    assert sorted(run.attempt for run in runs) == [1] * 16 + [2] * 4
    took = max((run.finished_at - killed_at).total_seconds() for run in runs)
    assert took < 60, took  # not an hour; with the processors to itself, within rescue_after and 5 s
    assert sorted(scene.bodies(result.id) for result in results) == [1] * 16 + [2] * 4
    assert len(scene.workers()) == 1
    scene.reserves(0)


def test_a_body_that_holds_the_interpreter_for_longer_than_rescue_after_is_left_alone(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    for _ in range(2):
        scene.worker(concurrency=1)

    result = scene.tasks.keep_the_interpreter.delay(8)

    assert scene.ends(result.id) == [(*SUCCEEDED, 1)]
    assert scene.bodies(result.id) == 1


def test_what_a_lost_child_leaves_is_ended_by_the_audit_where_the_main_process_can_not(redis_url, own_database, fire):
    scene = fire(broker_url=redis_url, guard_database_url=own_database, guard_retry_rate="600/m")
    worker = scene.worker(concurrency=2)
    result = scene.tasks.hold.delay("go-{attempt}")
    scene.begun(result.id)
    server = servers.Postgres(own_database)

    server.execute("ALTER TABLE task_rate RENAME TO mislaid")
    os.kill(scene.pid_of(result.id), signal.SIGKILL)
    eventually(lambda: f"hold[{result.id}] could not be settled for its child" in worker.log(), within=60)
    server.execute("ALTER TABLE mislaid RENAME TO task_rate")

    scene.open_gate("go-2")
    [run] = scene.ended(result.id)
    assert shape(run) == (*SUCCEEDED, 2, [LOST])
    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(2)))
