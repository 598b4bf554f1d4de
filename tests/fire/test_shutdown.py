"""Every way to end a worker while it works."""

from __future__ import annotations

import signal

from tests.acceptance.scenes import ids, messages_in
from tests.fire.scenes import SUCCEEDED, shape
from tests.infra.polling import eventually

#: What is sent, one after the other; the soft shutdown lasts a second. Each frees its runs at once, but the last one.
WAYS = {
    "cold": [signal.SIGQUIT, signal.SIGQUIT],
    "soft": [signal.SIGQUIT],
    "warm, then cold": [signal.SIGTERM, signal.SIGQUIT, signal.SIGQUIT],
    "interrupted twice": [signal.SIGINT, signal.SIGINT],
    "warm, then killed": [signal.SIGTERM, signal.SIGKILL],
}


def _send(worker, number):
    """Send a signal and wait until it is heard: two that come together are one."""
    before = worker.log()
    worker.signal(number)
    if number != signal.SIGKILL:
        eventually(lambda: not worker.running or _said(worker.log()) > _said(before), within=20)


def _said(log):
    return sum(log.count(words) for words in ("Hitting Ctrl+C", "Warm shutdown", "Soft Shutdown", "Cold shutdown"))


def _queue(way):
    return f"queue-{list(WAYS).index(way)}"


def test_a_worker_that_is_told_to_stop_finishes_what_it_runs_and_leaves_no_copy(broker_url, postgres_url, fire):
    scene = fire(broker_url=broker_url, guard_database_url=postgres_url)
    worker = scene.worker(concurrency=1)
    running = scene.tasks.hold.delay("go", "value")
    scene.begun(running.id)
    behind = scene.tasks.succeed.delay()
    scene.reserves(1)

    _send(worker, signal.SIGTERM)
    scene.open_gate("go")

    assert worker.wait(60) == 0
    assert scene.ends(running.id) == [(*SUCCEEDED, 1)]
    assert scene.workers("id") == []
    scene.worker()
    assert scene.ends(behind.id, scene.tasks.succeed.delay().id) == [(*SUCCEEDED, 1)] * 2
    eventually(lambda: messages_in(broker_url, scene.queue) == 0, within=60)
    assert [scene.bodies(result.id) for result in (running, behind)] == [1, 1]


def test_interrupted_runs_go_on_at_the_next_worker_without_waiting_for_a_heartbeat(redis_url, postgres_url, fire):
    scene = fire(
        broker_url=redis_url,
        guard_database_url=postgres_url,
        guard_rescue_after=12,
        worker_soft_shutdown_timeout=1,
    )
    workers = {way: scene.worker(queues=[_queue(way)], concurrency=1, wait=False) for way in WAYS}
    for worker in workers.values():
        worker.wait_until_ready(within=60)
    running = {way: scene.tasks.hold.apply_async(("go-{attempt}",), queue=_queue(way)) for way in WAYS}
    scene.begun(*ids(running.values()))
    behind = {way: scene.tasks.succeed.apply_async(queue=_queue(way)) for way in WAYS}
    scene.reserves(len(WAYS))

    for way, signals in WAYS.items():
        for number in signals:
            _send(workers[way], number)
    for worker in workers.values():
        worker.wait(40)

    freed = [way for way in WAYS if way != "warm, then killed"]
    assert {way: running[way].run.state.value for way in freed if running[way].run.state == "running"} == {}
    assert len(scene.workers("id")) == 1  # the one that could not say goodbye
    scene.worker(queues=[_queue(way) for way in WAYS], concurrency=8)
    scene.begun(*(running[way].id for way in freed), times=2)
    scene.open_gate("go-2")
    ended = scene.ended(*ids(running.values()))
    assert [shape(run) for run in ended] == [(*SUCCEEDED, 2, ["worker_lost"])] * len(WAYS)
    assert scene.ends(*ids(behind.values())) == [(*SUCCEEDED, 1)] * len(WAYS)
    assert [scene.bodies(result.id) for result in running.values()] == [2] * len(WAYS)
    assert [scene.bodies(result.id) for result in behind.values()] == [1] * len(WAYS)
