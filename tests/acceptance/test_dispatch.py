"""Due rows reach the broker, each once."""

from __future__ import annotations

import time

import pytest
import redis

from tests.acceptance.scenes import ids
from tests.infra import servers
from tests.infra.polling import eventually
from tests.infra.processes import Process, free_port, listens


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


class OwnRedis(Process):
    """A Redis that a test may stop."""

    def __init__(self, folder):
        self.port = free_port()
        command = [servers._redis_program(), "--bind", "127.0.0.1", "--port", str(self.port)]
        super().__init__([*command, "--save", "", "--appendonly", "no"], name="redis", folder=folder)

    def start(self):
        super().start()
        self.wait_until(lambda: listens(self.port), within=15)

    def holds_nothing(self):
        """Whether each message that was taken is acknowledged."""
        with redis.Redis(port=self.port) as client:
            return not client.hlen("unacked")


@pytest.fixture
def own_redis(tmp_path):
    try:
        server = OwnRedis(tmp_path)
    except servers.MissingServer as missing:
        (pytest.fail if servers.IN_CI else pytest.skip)(str(missing))
    yield server
    server.destroy()


def test_a_run_submitted_while_the_broker_is_down_is_accepted_and_sent_when_it_is_back(own_redis, postgres_url, scene):
    life = scene(broker_url=f"redis://127.0.0.1:{own_redis.port}/0", guard_database_url=postgres_url)
    own_redis.start()
    life.worker()
    life.ends(life.tasks.succeed.delay().id)
    eventually(own_redis.holds_nothing)  # kombu's worker ends when Redis dies before it could acknowledge
    own_redis.kill()

    before = time.monotonic()
    results = [life.tasks.succeed.delay(number) for number in range(3)]
    took = time.monotonic() - before

    assert took < 30
    assert {(result.run.state, result.run.attempt, result.created) for result in results} == {("queued", 0, True)}
    own_redis.start()
    assert set(life.ends(*ids(results))) == {("succeeded", "succeeded", 1)}
    assert len(life.traces("begin")) == 4
