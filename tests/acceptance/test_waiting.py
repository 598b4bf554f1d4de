"""What waits, waits in the table and nowhere else."""

from __future__ import annotations

import pytest

from tests.acceptance.scenes import messages_in
from tests.infra.polling import eventually


@pytest.fixture
def life(broker_url, postgres_url, queue_name, scene):
    life = scene(broker_url=broker_url, guard_database_url=postgres_url)
    if not broker_url.startswith("redis"):  # the queue must be there to be counted
        with life.app.connection_for_write() as connection:
            life.app.amqp.queues[queue_name](connection.default_channel).declare()
    return life


def _held_by(app, worker):
    """Return what a worker holds for later: messages with an eta, and what it prefetched."""
    inspect = app.control.inspect(destination=[worker.hostname], timeout=10)
    return [*inspect.scheduled()[worker.hostname], *inspect.reserved()[worker.hostname]]


def test_a_countdown_of_a_minute_leaves_no_message_in_the_broker(life, broker_url, queue_name):
    result = life.tasks.succeed.apply_async(countdown=60)

    assert messages_in(broker_url, queue_name) == 0
    worker = life.worker()
    life.ends(life.tasks.succeed.delay().id)
    assert _held_by(life.app, worker) == []
    assert messages_in(broker_url, queue_name) == 0
    assert (result.run.state, result.run.attempt) == ("queued", 0)


def test_the_wait_for_a_retry_leaves_no_message_in_the_broker(life, broker_url, queue_name):
    worker = life.worker()

    result = life.tasks.retry_in.delay(60)

    eventually(lambda: result.run.state == "retrying", within=30)
    assert _held_by(life.app, worker) == []
    worker.stop()  # what a worker held unacknowledged is a message again
    assert messages_in(broker_url, queue_name) == 0
    assert (result.run.state, result.run.attempt) == ("retrying", 1)


def test_a_delayed_run_starts_when_it_is_due(life):
    life.worker()

    result = life.tasks.succeed.apply_async(countdown=2)

    [run] = life.ended(result.id)
    assert (run.started_at - run.created_at).total_seconds() >= 2


def test_a_retry_starts_when_it_is_due(life):
    life.worker()

    result = life.tasks.retry_in.delay(2)

    [run] = life.ended(result.id)
    assert (run.state, run.attempt) == ("succeeded", 2)
    assert (run.started_at - run.attempts[0].finished_at).total_seconds() >= 2 - 0.1  # the wait began at the failure
