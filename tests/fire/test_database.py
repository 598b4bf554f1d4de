"""The database stops, freezes and comes back; connections are few, and never in the way."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg2
import pytest

from celery_guard.flow.many import submit_many
from tests.acceptance.scenes import ids
from tests.fire.scenes import LATE, SUCCEEDED, shape
from tests.infra.polling import eventually

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def _for(seconds):
    """Wait until something has lasted so long."""
    begin = time.monotonic()
    eventually(lambda: time.monotonic() - begin >= seconds, within=seconds + 5)


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
def test_an_outage_longer_than_rescue_after_ends_no_attempt_and_loses_no_result(
    redis_url, own_database, private_postgres, fire, outage
):
    scene = fire(broker_url=redis_url, guard_database_url=own_database, worker_prefetch_multiplier=1)
    workers = [scene.worker(concurrency=3) for _ in range(2)]
    during = [scene.tasks.hold.delay("during", number) for number in range(3)]
    after = [scene.tasks.hold.delay("after", number) for number in range(3)]
    scene.begun(*ids(during), *ids(after))

    if outage == "stopped":
        private_postgres.stop()
    else:
        private_postgres.freeze()
    scene.open_gate("during")
    _for(6)
    if outage == "stopped":
        private_postgres.start()
    else:
        private_postgres.thaw()

    assert scene.ends(*ids(during)) == [(*SUCCEEDED, 1)] * 3
    _for(4)  # rescuers look again
    assert {result.run.state for result in after} == {"running"}
    scene.open_gate("after")
    assert scene.ends(*ids(after)) == [(*SUCCEEDED, 1)] * 3
    assert len(scene.traces("begin")) == len(scene.traces("end")) == 6
    assert not any("is gone" in worker.log() for worker in workers)


def test_an_outage_longer_than_the_patience_with_a_settlement_is_repaired_by_the_audit(
    redis_url, own_database, private_postgres, fire
):
    scene = fire(broker_url=redis_url, guard_database_url=own_database, fire_patience=1.5)
    worker = scene.worker(concurrency=2)
    result, failing = scene.tasks.hold.delay("go", "value"), scene.tasks.hold.delay("never")
    scene.begun(result.id, failing.id)
    claimed_in_vain = scene.tasks.succeed.delay()
    scene.reserves(1)

    private_postgres.stop()
    scene.open_gate("go")
    eventually(lambda: len(scene.traces("end")) == 1, within=20)
    _for(4)
    private_postgres.start()

    [run] = scene.ended(result.id)
    assert shape(run) == (*SUCCEEDED, 2, ["worker_lost"])
    assert scene.bodies(result.id) == 2
    assert scene.ends(claimed_in_vain.id) == [(*SUCCEEDED, 1)]
    assert worker.log().count(f"succeed[{claimed_in_vain.id}] received") < 10  # it was put back, without spinning
    assert (failing.run.state, failing.run.attempt) == ("running", 1)
    private_postgres.stop()
    scene.open_gate("never")
    worker.terminate()  # a worker can be stopped while its database is away
    assert worker.wait(45) == 0


def test_no_connection_is_held_while_bodies_run_and_none_is_left_in_a_transaction(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    worker = scene.worker(concurrency=4)
    results = [scene.tasks.hold.delay("go") for _ in range(4)]
    scene.begun(*ids(results))

    seen = set()
    begin = time.monotonic()
    while time.monotonic() - begin < 3:
        seen |= {state for _, state, _ in _sessions(postgres_url)}
    now = _sessions(postgres_url)
    scene.open_gate("go")
    scene.ended(*ids(results))
    assert "idle in transaction" not in seen
    assert seen <= {"idle", "active"}
    assert {name for _, _, name in now} == {"celery_guard"}
    assert len(now) <= 2 * (len(worker.children()) + 1) + 2


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_connections_that_the_app_opened_before_the_fork_are_never_shared(redis_url, postgres_url, fire, start_method):
    scene = fire(
        broker_url=redis_url,
        guard_database_url=postgres_url,
        fire_opens_early=True,
        worker_pool_start_method=start_method,
    )
    worker = scene.worker(concurrency=4)

    results = submit_many(scene.tasks.succeed, [[number] for number in range(200)])

    assert set(scene.ends(*ids(results))) == {(*SUCCEEDED, 1)}
    assert len(scene.traces("begin")) == 200
    assert "store is away" not in worker.log()
    assert "a beat failed" not in worker.log()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_encrypted_connections_opened_before_the_fork_are_never_shared(
    redis_url, own_database_over_tls, fire, start_method
):
    scene = fire(
        broker_url=redis_url,
        guard_database_url=own_database_over_tls,
        fire_opens_early=True,
        worker_pool_start_method=start_method,
    )
    worker = scene.worker(concurrency=8)

    results = submit_many(scene.tasks.succeed, [[number] for number in range(500)])

    assert set(scene.ends(*ids(results), within=120)) == {(*SUCCEEDED, 1)}
    assert len(scene.traces("begin")) == 500
    assert "store is away" not in worker.log()
    assert "bad record mac" not in worker.log()


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime (apt-get install faketime)")
def test_workers_whose_clocks_are_two_minutes_off_keep_every_appointment(redis_url, postgres_url, fire):
    scene = fire(
        broker_url=redis_url, guard_database_url=postgres_url, guard_rescue_after=20, worker_prefetch_multiplier=1
    )
    wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    workers = [scene.worker(env={**wrong, "FAKETIME": offset}) for offset in ("+120s", "-120s")]
    tasks = scene.tasks

    late = [tasks.swallow.apply_async((90,), deadline=15) for _ in range(2)]
    late += [tasks.last.apply_async((90,), deadline=15) for _ in range(2)]
    scene.begun(*ids(late))
    waiting = [tasks.fail_until.apply_async((2, 2), deadline=300) for _ in range(4)]
    delayed = [tasks.succeed.apply_async(countdown=2, deadline=300) for _ in range(4)]

    runs = scene.ended(*ids(late))
    assert [shape(run)[:3] for run in runs] == [(*LATE, 1)] * 4
    assert all(-0.2 < (run.finished_at - run.deadline_at).total_seconds() < 30 for run in runs)
    assert scene.ends(*ids(waiting)) == [(*SUCCEEDED, 2)] * 4
    runs = scene.ended(*ids(delayed))
    assert all(1.9 < (run.started_at - run.created_at).total_seconds() < 60 for run in runs)
    assert not any("is gone" in worker.log() for worker in workers)


def _sessions(url):
    connection = psycopg2.connect(url.replace("+psycopg2", ""), application_name="observer")
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid, state, application_name FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name <> 'observer' AND state IS NOT NULL"
            )
            return cursor.fetchall()
    finally:
        connection.close()
