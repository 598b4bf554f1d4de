"""A million runs that have ended cost the living nothing, and are forgotten in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from celery_guard.flow.guard import guard_of
from celery_guard.flow.worker import Keeper
from celery_guard.store.database import Database
from tests.infra import servers
from tests.infra.polling import eventually
from tests.store.test_plans import indexes

ENDED, EXPIRED = 1_000_000, 80_000

#: Some of the runs ended longer ago than any is kept; every tenth of all has an effect.
_FILL = f"""
INSERT INTO task_run (
    id, namespace, type, queue, payload, options, state, terminal_reason, attempt, max_attempts, deadline_at,
    publishes, owed, worker_id, fingerprint, created_at, updated_at, finished_at)
SELECT 'ended-' || n, 'fire', 'shop.send', 'celery', '[[], {{}}]', '{{}}',
    (ARRAY['succeeded', 'failed', 'dead', 'cancelled'])[n % 4 + 1],
    (ARRAY['succeeded', 'failed_non_retryable', 'failed_due_deadline', 'cancelled'])[n % 4 + 1],
    1, 5, at, 0, false, 'worker-' || n % 50, '1:abc', at, at, at
FROM (
    SELECT n, now() - CASE WHEN n <= {EXPIRED} THEN interval '40 days' ELSE interval '1 day' END
        - n * interval '10 milliseconds' AS at
    FROM generate_series(1, {ENDED}) AS n
) AS moments;

INSERT INTO task_effect (run_id, name, result, created_at)
SELECT 'ended-' || n, 'step', '1', now() FROM generate_series(1, {ENDED}, 10) AS n;
ANALYZE task_run;
"""


@pytest.fixture(scope="module")
def full_url(postgres_server: servers.Postgres, postgres_template: str) -> Iterator[str]:
    """The URL of a database with a million ended runs."""
    with postgres_server.database(postgres_template) as url:
        database = Database(url)
        with database.connection() as connection:
            connection.execute(text(_FILL))
        database.close()
        yield url


def test_a_tick_of_an_idle_worker_is_three_statements_at_most_and_each_is_served_by_an_index(
    redis_url, full_url, fire, monkeypatch
):
    forever = dict.fromkeys(("succeeded", "failed", "dead", "cancelled"), 10**8)
    scene = fire(broker_url=redis_url, guard_database_url=full_url, guard_retention=forever)
    guard = guard_of(scene.app)
    keeper, guard.worker_id = Keeper(guard), "a worker"
    guard.workers.beat("a worker", host="here", pid=1, reserved=[])
    seen: list[tuple[Any, dict[str, Any]]] = []
    execute = Database.execute

    def noting(self: Database, statement: Any, **values: Any) -> Any:
        seen.append((statement, values))
        return execute(self, statement, **values)

    monkeypatch.setattr(Database, "execute", noting)
    counts = []
    for _ in range(40):
        before = len(seen)
        keeper._tick()
        counts.append(len(seen) - before)
        for duty in keeper._rota.duties:
            duty.due -= 1  # as if a second had passed
    monkeypatch.undo()

    assert max(counts) <= 3
    used = {
        statement.compiled(guard.database.engine)[0]: indexes(guard.database, statement, **values)
        for statement, values in dict(seen).items()
    }
    assert sum("task_run" in query for query in used) >= 7
    assert {query: names for query, names in used.items() if "task_run" in query and "Seq Scan" in names} == {}


def test_what_is_no_longer_kept_is_deleted_although_the_worker_is_killed_in_the_middle(redis_url, full_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=full_url)

    def left() -> int:
        with guard_of(scene.app).database.connection() as connection:
            query = (
                "SELECT count(*) FROM task_run WHERE namespace = 'fire' AND finished_at < now() - interval '35 days'"
                " AND state IN ('succeeded', 'failed', 'dead', 'cancelled')"
            )
            return int(connection.exec_driver_sql(query).scalar())

    assert left() == EXPIRED
    first = scene.worker(concurrency=1)
    eventually(lambda: left() < EXPIRED - 5_000, within=60)
    first.kill()
    assert left() > 0, "there was no middle"

    scene.worker(concurrency=1)

    result = scene.tasks.succeed.delay()  # work goes on beside it
    scene.ended(result.id, within=30)
    eventually(lambda: left() == 0, within=120)
    with guard_of(scene.app).database.connection() as connection:
        kept = connection.exec_driver_sql("SELECT count(*) FROM task_run WHERE id LIKE 'ended-%%'").scalar()
        orphans = connection.exec_driver_sql(
            "SELECT count(*) FROM task_effect WHERE NOT EXISTS (SELECT FROM task_run WHERE id = run_id)"
        ).scalar()
    assert (kept, orphans) == (ENDED - EXPIRED, 0)
