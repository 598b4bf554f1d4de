"""What the broker loses is published again; what it still has is not."""

from __future__ import annotations

import pytest
import redis

from celery_guard.flow.many import submit_many
from tests.acceptance.scenes import ids
from tests.fire.scenes import SUCCEEDED
from tests.infra.polling import eventually

#: How long a message may wait for a claim before it is a suspect, in seconds; doubled each time.
LEASE = [1.0, 1.5]


def _have_been_suspects(scene, results, *, times):
    """Wait until the patience with each of these runs was spent so often."""
    wanted = set(ids(results))

    def assertion():
        least = min(publishes for run_id, publishes in scene.rows("id, publishes") if run_id in wanted)
        assert least > times, f"a run was looked at {least} times"

    eventually(assertion, within=60)


def test_messages_that_vanish_are_published_again_exactly_once(broker_url, postgres_url, fire):
    scene = fire(broker_url=broker_url, guard_database_url=postgres_url, fire_lease=LEASE)
    scene.worker(queues=["another"], concurrency=1)  # dispatches, and executes nothing of this queue
    results = [scene.tasks.succeed.delay() for _ in range(3)]
    results += [scene.tasks.fail_until.apply_async((2,), countdown=1) for _ in range(2)]
    eventually(lambda: scene.depth() == 5, within=20)

    scene.take_messages(4)

    eventually(lambda: scene.depth() == 5, within=60)
    _have_been_suspects(scene, results, times=3)
    assert scene.depth() == 5
    scene.worker(concurrency=1)
    assert scene.ends(*ids(results)) == [(*SUCCEEDED, 1)] * 3 + [(*SUCCEEDED, 2)] * 2
    assert [scene.bodies(result.id) for result in results] == [1, 1, 1, 2, 2]
    eventually(lambda: scene.depth() == 0, within=20)


def test_a_broker_that_forgot_everything_costs_nothing_but_time(own_redis, postgres_url, fire):
    scene = fire(
        broker_url=own_redis.url, guard_database_url=postgres_url, fire_lease=LEASE, worker_prefetch_multiplier=1
    )
    worker = scene.worker(concurrency=1)
    retrying = [scene.tasks.fail_until.delay(2, wait=8) for _ in range(5)]
    for result in retrying:
        scene.becomes(result.id, "retrying", 1)
    held = scene.tasks.hold.delay("go")
    scene.begun(held.id)
    queued = [scene.tasks.succeed.delay(number) for number in range(10)]

    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()

    eventually(lambda: scene.depth() >= 10, within=60)
    _have_been_suspects(scene, queued, times=3)
    assert {result.run.state for result in queued} == {"queued"}
    scene.open_gate("go")
    assert scene.ends(held.id, *ids(queued)) == [(*SUCCEEDED, 1)] * 11
    assert scene.ends(*ids(retrying)) == [(*SUCCEEDED, 2)] * 5
    assert len(scene.traces("begin")) == 1 + 10 + 2 * 5
    assert [worker.log().count(f"[{result.id}] received") for result in queued] == [1] * 10


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_long_queue_is_not_multiplied_however_long_it_waits(request, postgres_url, fire, broker):
    url = request.getfixturevalue(f"{broker}_url")
    scene = fire(broker_url=url, guard_database_url=postgres_url, fire_lease=LEASE)
    scene.worker(concurrency=1)
    held = scene.tasks.hold.delay("go")
    scene.begun(held.id)

    # in pieces that are sent well within the short lease
    results = [result for _ in range(20) for result in submit_many(scene.tasks.succeed, [[n] for n in range(100)])]

    scene.reserves(3)
    _have_been_suspects(scene, results[3:], times=2)
    assert scene.depth() == 2_000 - 3
    assert {result.run.state for result in results[::100]} == {"queued"}


def test_2_000_runs_that_wait_are_in_no_queue_and_in_no_worker(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, fire_lease=LEASE)
    scene.worker(concurrency=1)

    results = submit_many(scene.tasks.succeed, [[number] for number in range(2_000)], countdown=600)

    scene.ended(scene.tasks.succeed.delay().id)
    scene.reserves(0)
    assert scene.depth() == 0
    waiting = scene.rows("state, publishes", "next_retry_at IS NOT NULL")
    assert waiting == [("queued", 0)] * len(results)
