"""A database that is busy, narrow, strict, or reached in a roundabout way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from sqlalchemy import make_url

from celery_guard.flow.many import submit_many
from tests.acceptance.scenes import ids
from tests.fire.scenes import LATE, SUCCEEDED, shape
from tests.infra import servers
from tests.infra.pgbouncer import pgbouncer
from tests.infra.polling import eventually


def test_a_pgbouncer_that_lends_connections_for_one_transaction_is_a_database_like_any_other(
    redis_url, postgres_url, fire
):
    try:
        with pgbouncer(postgres_url, connections=3) as url:
            scene = fire(broker_url=redis_url, guard_database_url=url, guard_unknown_max_attempts=1)
            tasks = scene.tasks
            workers = [scene.worker(concurrency=3) for _ in range(2)]
            lost = tasks.hold.delay("go-{attempt}")
            scene.begun(lost.id)
            owner, other = sorted(workers, key=lambda worker: scene.pid_of(lost.id) not in worker.children())

            results = submit_many(tasks.succeed, [[number] for number in range(60)])
            assert scene.ends(*ids(results)) == [(*SUCCEEDED, 1)] * 60
            owner.kill()
            scene.open_gate("go-2")
            retried = [tasks.fail_until.delay(3), tasks.die_until.delay(2)]
            late = tasks.last.apply_async((60,), deadline=4)

            assert scene.ends(lost.id, *ids(retried)) == [(*SUCCEEDED, 2), (*SUCCEEDED, 3), (*SUCCEEDED, 2)]
            assert shape(scene.ended(late.id)[0])[:2] == LATE
            assert "store is away" not in other.log()
            scene.close()
    except servers.MissingServer as missing:
        pytest.skip(str(missing))


def test_a_database_whose_transactions_are_repeatable_reads_costs_no_run(
    redis_url, postgres_url, postgres_server, fire
):
    name = servers.name_of(postgres_url)
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'repeatable read'")
    keep = dict.fromkeys(("succeeded", "failed", "dead", "cancelled"), 0.5)
    scene = fire(
        broker_url=redis_url, guard_database_url=postgres_url, guard_retention=keep, guard_idempotency_ttl=3600
    )
    tasks = scene.tasks
    workers = [scene.worker(concurrency=3) for _ in range(2)]

    def submit(number):
        return tasks.fail_until.apply_async((2,), idempotency_key=f"key-{number % 20}").id

    with ThreadPoolExecutor(8) as threads:
        ids_ = list(threads.map(submit, range(160)))

    assert len(set(ids_)) == 20
    assert scene.ends(*sorted(set(ids_))) == [(*SUCCEEDED, 2)] * 20
    assert len(scene.traces("begin")) == 40
    assert not any("Traceback" in worker.log() for worker in workers)


def test_more_processes_than_the_database_lets_in_take_turns(redis_url, own_database, private_postgres, fire):
    private_postgres.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 6")
    psql(private_postgres, own_database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO narrow")
    narrow = make_url(own_database).set(username="narrow").render_as_string(hide_password=False)
    scene = fire(broker_url=redis_url, guard_database_url=narrow)
    results = submit_many(scene.tasks.succeed, [[number] for number in range(20)])

    worker = scene.worker(concurrency=8)

    assert scene.ends(*ids(results), within=90) == [(*SUCCEEDED, 1)] * 20
    assert len(scene.traces("begin")) == 20
    assert worker.running


def test_a_row_that_somebody_locks_holds_up_no_other(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    worker = scene.worker(concurrency=4)
    locked = {
        "late": scene.tasks.swallow.apply_async((60,), deadline=3),
        "queued": scene.tasks.succeed.apply_async(queue="nobody's", deadline=3),
        "waiting": scene.tasks.succeed.apply_async(countdown=2),
    }
    scene.begun(locked["late"].id)
    connection = psycopg2.connect(postgres_url.replace("+psycopg2", ""))
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM task_run WHERE id = ANY(%s) FOR UPDATE", (ids(locked.values()),))

    try:
        passed = "SELECT min(deadline_at) < clock_timestamp() - interval '3 seconds' FROM task_run"
        eventually(lambda: psql_in(connection, passed), within=30)
        retried = scene.tasks.fail_until.delay(2)
        doomed = scene.tasks.last.apply_async((60,), deadline=3)
        assert scene.ends(retried.id, doomed.id) == [(*SUCCEEDED, 2), (*LATE, 1)]
    finally:
        connection.rollback()
        connection.close()
    ends = scene.ends(*(result.id for name, result in locked.items() if name != "queued"))
    assert ends == [(*LATE, 1), (*SUCCEEDED, 1)]
    scene.becomes(locked["queued"].id, "dead", 0)
    assert worker.running


def psql_in(connection, query):
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def psql(server, url, statement):
    servers.Postgres(url).execute(statement)
