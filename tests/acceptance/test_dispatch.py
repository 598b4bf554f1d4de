"""Due rows reach the broker, each once."""

from __future__ import annotations

import time

import redis

from tests.acceptance.scenes import ids
from tests.infra.polling import eventually


def test_two_dispatchers_share_200_due_rows_and_publish_none_twice(redis_url, postgres_url, scene):
    life = scene(broker_url=redis_url, guard_database_url=postgres_url, guard_dispatch_batch=20)
    workers = [life.worker(), life.worker()]

    results = [life.tasks.succeed.apply_async((number,), countdown=2) for number in range(200)]

    runs = life.ended(*ids(results))
    assert {(run.state, run.attempt) for run in runs} == {("succeeded", 1)}
    assert sorted(trace["run"] for trace in life.traces("begin")) == sorted(ids(results))
    for worker in workers:
        worker.stop()  # it writes down what it receives until its end
    assert sum(worker.log().count(" received\n") for worker in workers) == len(results)


def test_a_run_submitted_while_the_broker_is_down_is_accepted_and_sent_when_it_is_back(own_redis, postgres_url, scene):
    life = scene(broker_url=own_redis.url, guard_database_url=postgres_url)
    life.worker()
    life.ends(life.tasks.succeed.delay().id)
    with redis.Redis.from_url(own_redis.url) as client:
        # kombu's worker ends when Redis dies before it could acknowledge
        eventually(lambda: not client.hlen("unacked"))
    own_redis.kill()

    before = time.monotonic()
    results = [life.tasks.succeed.delay(number) for number in range(3)]
    took = time.monotonic() - before

    assert took < 30
    assert {(result.run.state, result.run.attempt, result.created) for result in results} == {("queued", 0, True)}
    own_redis.start()
    assert set(life.ends(*ids(results))) == {("succeeded", "succeeded", 1)}
    assert len(life.traces("begin")) == 4
