"""A run is stopped in every live state, whoever asks, and stays stopped."""

from __future__ import annotations

import psycopg2
import pytest

from celery_guard import cancel
from tests.acceptance.scenes import ids
from tests.fire.scenes import CANCELLED, SUCCEEDED
from tests.infra.polling import eventually


@pytest.mark.parametrize("how", ["cancel", "revoke", "terminate"])
def test_a_stopped_run_is_cancelled_in_every_state_and_no_restart_revives_it(redis_url, postgres_url, fire, how):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    tasks = scene.tasks
    worker = scene.worker(concurrency=1, options=["--prefetch-multiplier=4"])
    retrying = tasks.fail_until.delay(99, wait=3)
    scene.becomes(retrying.id, "retrying", 1)
    running = tasks.hold.delay("never")
    scene.begun(running.id)
    runs = {
        "running": running,
        "prefetched": tasks.succeed.delay(),
        "waiting": tasks.succeed.apply_async(countdown=3),
        "retrying": retrying,
        "queued": tasks.succeed.apply_async(queue="a queue for later"),
    }
    scene.reserves(1)

    if how == "cancel":
        states = {name: cancel(result.id, app=scene.app).state.value for name, result in runs.items()}
        assert states == dict.fromkeys(runs, "cancelled")
    else:
        scene.app.control.revoke(ids(runs.values()), terminate=how == "terminate")

    attempts = {"running": 1, "prefetched": 0, "waiting": 0, "retrying": 1, "queued": 0}
    for name, result in runs.items():
        scene.becomes(result.id, "cancelled", attempts[name])
    assert scene.ends(tasks.succeed.delay().id) == [(*SUCCEEDED, 1)]  # the body that ran is gone
    scene.ended(*(result.id for name, result in runs.items() if name != "queued"))  # nothing is in its hands
    worker.stop()
    scene.worker(queues=[scene.queue, "a queue for later"])
    later = [tasks.succeed.apply_async(queue=queue, countdown=3) for queue in (scene.queue, "a queue for later")]
    scene.ended(*ids(later))
    ends = scene.ends(*ids(runs.values()))  # and Celery was told, by a worker of each queue
    assert dict(zip(runs, ends, strict=True)) == {name: (*CANCELLED, attempts[name]) for name in runs}
    assert {name: scene.bodies(result.id) for name, result in runs.items()} == attempts
    eventually(lambda: scene.depth() == 0, within=20)


def test_what_is_revoked_while_somebody_holds_its_row_is_cancelled_when_he_lets_go(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    worker = scene.worker(concurrency=1)
    result = scene.tasks.succeed.apply_async(queue="nobody's")
    connection = psycopg2.connect(postgres_url.replace("+psycopg2", ""))
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM task_run WHERE id = %s FOR UPDATE", (result.id,))

        scene.app.control.revoke(result.id)
        eventually(lambda: f"{result.id} was revoked and is not cancelled yet" in worker.log(), within=20)
        assert scene.run(result.id).state == "queued"
    finally:
        connection.rollback()
        connection.close()

    scene.becomes(result.id, "cancelled", 0)
