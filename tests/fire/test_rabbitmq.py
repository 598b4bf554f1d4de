"""What only RabbitMQ does: quorum queues, and a limit on how long a message may stay unacknowledged."""

from __future__ import annotations

from tests.acceptance.scenes import ids
from tests.fire.scenes import SUCCEEDED
from tests.infra.polling import eventually


def test_waits_retries_and_losses_are_the_same_on_quorum_queues(rabbitmq_url, postgres_url, fire):
    scene = fire(
        broker_url=rabbitmq_url,
        guard_database_url=postgres_url,
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
    )
    scene.worker(concurrency=2)
    tasks = scene.tasks

    results = [tasks.fail_until.delay(3, wait=1), tasks.succeed.apply_async(countdown=1), tasks.die_until.delay(2)]

    assert scene.ends(*ids(results), within=60) == [(*SUCCEEDED, 3), (*SUCCEEDED, 1), (*SUCCEEDED, 2)]
    assert [scene.bodies(result.id) for result in results] == [3, 1, 2]
    eventually(lambda: scene.depth() == 0, within=60)


def test_a_body_longer_than_the_consumer_timeout_runs_once(own_rabbitmq, postgres_url, fire):
    limits = (
        "application:set_env(rabbit, consumer_timeout, 3000), application:set_env(rabbit, channel_tick_interval, 500)."
    )
    assert own_rabbitmq.administer("eval", limits)
    scene = fire(broker_url=own_rabbitmq.url, guard_database_url=postgres_url)
    worker = scene.worker(concurrency=2)
    result = scene.tasks.hold.delay("go")
    scene.begun(result.id)

    eventually(lambda: "PRECONDITION_FAILED" in worker.log(), within=60)
    other = scene.worker(concurrency=2)  # Celery ends the first one, which waits for its body
    eventually(lambda: f"hold[{result.id}] received" in other.log(), within=60)

    scene.open_gate("go")
    assert scene.ends(result.id, within=60) == [(*SUCCEEDED, 1)]
    assert scene.bodies(result.id) == 1
    scene.ended(scene.tasks.succeed.delay().id)
