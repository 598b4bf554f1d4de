"""Broker, result backend and the user's own hooks fail; the row is written all the same."""

from __future__ import annotations

from tests.acceptance.scenes import ids
from tests.fire.scenes import SUCCEEDED, USED_UP
from tests.infra.polling import eventually


def test_a_run_settles_while_broker_and_result_backend_are_down(own_redis, postgres_url, fire):
    scene = fire(
        broker_url=own_redis.url,
        result_backend=own_redis.url,
        guard_database_url=postgres_url,
        task_track_started=True,
        redis_socket_connect_timeout=1,
    )
    scene.worker(concurrency=2)
    succeeding, failing = scene.tasks.hold.delay("go", "value"), scene.tasks.hold_and_fail_until.delay("go", 2)
    scene.begun(succeeding.id, failing.id)

    own_redis.kill()
    scene.open_gate("go")

    scene.becomes(succeeding.id, "succeeded", 1)
    scene.becomes(failing.id, "retrying", 1)
    eventually(lambda: scene.rows("id", "next_retry_at < clock_timestamp()") != [])
    own_redis.start()
    scene.worker()  # kombu may have ended the first: it can't restore what it holds to a Redis that is gone
    assert scene.ends(succeeding.id, failing.id, within=60) == [(*SUCCEEDED, 1), (*SUCCEEDED, 2)]
    assert [scene.bodies(result.id) for result in (succeeding, failing)] == [1, 2]
    assert succeeding.get(timeout=10) == "value"
    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(4)), within=60)


def test_a_success_that_the_result_backend_refused_is_told_again(own_redis, redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, result_backend=own_redis.url, guard_database_url=postgres_url)
    worker = scene.worker()

    refused = scene.tasks.fill_the_result_backend.delay("value")

    eventually(lambda: "failed to hear of it: it is told again" in worker.log(), within=30)
    told = scene.app.backend.get_task_meta
    eventually(lambda: told(refused.id)["status"] == "SUCCESS", within=30)
    assert refused.get(timeout=10) == "value"
    assert scene.ends(refused.id) == [(*SUCCEEDED, 1)]
    assert scene.bodies(refused.id) == 1


def test_endings_that_a_result_backend_was_too_long_away_to_hear_of_are_told_once_it_is_back(
    own_redis, redis_url, postgres_url, fire
):
    scene = fire(broker_url=redis_url, result_backend=own_redis.url, guard_database_url=postgres_url)
    scene.worker()
    succeeding = scene.tasks.hold.delay("go", "value")
    failing = scene.tasks.hold_and_fail_until.apply_async(("go", 2), max_attempts=1)
    scene.begun(succeeding.id, failing.id)

    own_redis.kill()
    scene.open_gate("go")
    eventually(lambda: len(scene.rows("id", "owed")) == 2, within=90)
    own_redis.start()

    told = scene.app.backend.get_task_meta
    eventually(lambda: told(succeeding.id)["status"] == "SUCCESS", within=150)
    eventually(lambda: told(failing.id)["status"] == "FAILURE", within=150)
    assert succeeding.get(timeout=10) == "value"
    assert scene.ends(succeeding.id, failing.id) == [(*SUCCEEDED, 1), (*USED_UP, 1)]
    assert [scene.bodies(result.id) for result in (succeeding, failing)] == [1, 1]


def test_hooks_that_raise_change_no_ending(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, result_backend=redis_url, guard_database_url=postgres_url)
    scene.worker()

    succeeding, retrying = scene.tasks.unhappy.delay(1), scene.tasks.unhappy.delay(3)
    dying = scene.tasks.unhappy.apply_async((99,), max_attempts=2)
    never_begun = scene.tasks.unhappy.apply_async(kwargs={"early": True}, max_attempts=2)

    results = [succeeding, retrying, dying, never_begun]
    assert scene.ends(*ids(results)) == [(*SUCCEEDED, 1), (*SUCCEEDED, 3), (*USED_UP, 2), (*USED_UP, 2)]
    assert [scene.bodies(result.id) for result in results] == [1, 3, 2, 0]
    assert [succeeding.get(timeout=10), retrying.get(timeout=10)] == [1, 3]

    def called(result):
        return [trace["what"] for trace in scene.traces(run=result.id) if trace["what"] not in ("begin", "end")]

    once = ["before_start", "on_retry"]
    eventually(lambda: called(succeeding) == ["before_start", "on_success", "after_return"])
    eventually(lambda: called(retrying) == [*once, *once, "before_start", "on_success", "after_return"])
    for result in (dying, never_begun):
        eventually(lambda result=result: called(result) == [*once, "before_start", "on_failure", "after_return"])


def test_a_redis_that_never_answers_holds_neither_a_caller_nor_the_dispatcher(own_redis, postgres_url, fire):
    brief = {"socket_timeout": 1, "socket_connect_timeout": 1}
    scene = fire(broker_url=own_redis.url, guard_database_url=postgres_url, broker_transport_options=brief)
    worker = scene.worker(concurrency=2)
    retried = scene.tasks.fail_until.delay(2, wait=1)
    scene.becomes(retried.id, "retrying", 1)

    own_redis.process.freeze()
    accepted = scene.tasks.succeed.delay("value")  # this returns
    eventually(lambda: "the broker is away" in worker.log(), within=60)
    own_redis.process.thaw()

    if not worker.running:
        scene.worker(concurrency=2)
    assert scene.ends(accepted.id, retried.id, within=90) == [(*SUCCEEDED, 1), (*SUCCEEDED, 2)]
    assert [scene.bodies(result.id) for result in (accepted, retried)] == [1, 2]
