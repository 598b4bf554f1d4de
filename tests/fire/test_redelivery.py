"""Copies of messages, whoever makes them: a visibility timeout, a rescue, a hand."""

from __future__ import annotations

import pytest

from tests.acceptance.scenes import messages_in
from tests.fire.scenes import SUCCEEDED, shape, thaw
from tests.infra.polling import eventually

#: Redis gives out again what nobody acknowledged within two seconds, and looks once a second.
HASTY = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


def test_waits_and_bodies_longer_than_the_visibility_timeout_run_once(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, broker_transport_options=HASTY)
    tasks, workers = scene.tasks, [scene.worker(), scene.worker()]

    counted_down = tasks.succeed.apply_async(countdown=7)
    waiting = tasks.fail_until.delay(2, wait=7)
    lasting = tasks.last.delay(9)

    ends = scene.ends(counted_down.id, waiting.id, lasting.id)
    assert ends == [(*SUCCEEDED, 1), (*SUCCEEDED, 2), (*SUCCEEDED, 1)]
    assert [scene.bodies(result.id) for result in (counted_down, waiting, lasting)] == [1, 2, 1]
    assert len(scene.traces("end")) == 4
    eventually(lambda: messages_in(redis_url, scene.queue) == 0, within=20)  # every copy is acknowledged
    assert scene.run(lasting.id).attempt == 1
    received = sum(worker.log().count(f"last[{lasting.id}] received") for worker in workers)
    assert received > 1, "there was no copy to drop"


def test_a_rescue_by_two_workers_and_the_brokers_own_copy_make_one_attempt_more(redis_url, postgres_url, fire):
    options = {**HASTY, "visibility_timeout": 8}
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, broker_transport_options=options)
    doomed = scene.worker(concurrency=1)
    result = scene.tasks.hold.delay("go-{attempt}")
    scene.begun(result.id)
    others = [scene.worker(concurrency=1) for _ in range(2)]

    doomed.kill()

    scene.begun(result.id, times=2, within=60)
    line = f"hold[{result.id}] received"
    eventually(lambda: sum(worker.log().count(line) for worker in others) >= 2, within=60)
    scene.open_gate("go-2")
    [run] = scene.ended(result.id)
    assert shape(run) == (*SUCCEEDED, 2, ["worker_lost"])
    eventually(lambda: messages_in(redis_url, scene.queue) == 0, within=60)
    assert scene.bodies(result.id) == 2


def test_100_copies_of_a_running_run_and_of_a_finished_one_are_dropped_at_once(broker_url, postgres_url, fire):
    scene = fire(broker_url=broker_url, guard_database_url=postgres_url)
    result = scene.tasks.hold.delay("go", "value")
    [message] = scene.take_messages(1)
    scene.put_back(message)
    worker = scene.worker()
    scene.begun(result.id)

    scene.put_back(message, times=100)

    scene.ended(scene.tasks.succeed.delay().id)  # behind the copies
    assert (scene.run(result.id).state, scene.run(result.id).attempt) == ("running", 1)
    scene.open_gate("go")
    assert scene.ends(result.id) == [(*SUCCEEDED, 1)]
    scene.put_back(message, times=100)
    scene.ended(scene.tasks.succeed.delay().id)
    assert scene.bodies(result.id) == 1
    assert scene.depth() == 0
    worker.stop()
    assert scene.depth() == 0  # nothing was kept unacknowledged


@pytest.mark.parametrize("first_ends", ["before the second", "after the second"])
def test_an_attempt_that_was_taken_for_dead_changes_nothing_when_it_wakes_up(redis_url, postgres_url, fire, first_ends):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    frozen = scene.worker(concurrency=1)
    result = scene.tasks.hold.delay("go-{attempt}", "attempt {attempt}")
    scene.begun(result.id)
    child = scene.pid_of(result.id)
    other = scene.worker(concurrency=1)

    frozen.freeze()

    scene.begun(result.id, times=2)
    scene.becomes(result.id, "running", 2)
    if first_ends == "before the second":
        scene.open_gate("go-1")
        thaw(child)
        eventually(lambda: len(scene.traces("end", result.id)) == 1, within=20)
        eventually(lambda: "attempt 1 was ended by somebody else" in frozen.log(), within=20)
        scene.becomes(result.id, "running", 2)
        scene.open_gate("go-2")
        [run] = scene.ended(result.id)
    else:
        scene.open_gate("go-2")
        [run] = scene.ended(result.id)
        scene.open_gate("go-1")
        thaw(child)
        eventually(lambda: len(scene.traces("end", result.id)) == 2, within=20)
    frozen.thaw()

    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(6)))
    assert (run.state, run.attempt, result.get()) == ("succeeded", 2, "attempt 2")
    assert [attempt.rule for attempt in run.attempts] == ["worker_lost"]
    assert scene.run(result.id) == run
    assert len(scene.traces("begin", result.id)) == len(scene.traces("end", result.id)) == 2
    assert "is gone" not in frozen.log()  # the one that woke up accuses nobody
    assert other.running
