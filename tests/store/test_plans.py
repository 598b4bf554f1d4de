"""Periodic statements read live rows through partial indexes, however many runs have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import select, text

from celery_guard.store import effects, statements as sql, workers
from celery_guard.store.database import Database, Statement
from celery_guard.store.models import task_run
from tests.infra import servers
from tests.store.lives import NAMESPACE

ENDED, LIVE, LIMITED = 50_000, 300, 400

_FILL = f"""
INSERT INTO task_run (
    id, namespace, type, queue, payload, options, state, terminal_reason, attempt, max_attempts, deadline_at,
    next_retry_at, publish_at, publishes, owed, worker_id, fingerprint, created_at, updated_at, finished_at)
SELECT 'ended-' || n, '{NAMESPACE}', 'shop.send', 'celery', '[[], {{}}]', '{{}}', 'succeeded', 'succeeded', 1, 5, at,
    NULL, NULL, 0, false, 'worker-' || n % 50, '1:abc', at, at, at
FROM (SELECT n, clock_timestamp() - n * interval '1 minute' AS at FROM generate_series(1, {ENDED}) AS n) AS moments
UNION ALL
SELECT 'live-' || n, '{NAMESPACE}', 'shop.send', 'celery', '[[], {{}}]', '{{}}',
    (ARRAY['queued', 'retrying', 'running'])[n % 3 + 1], NULL, 1, 5, at + n * interval '1 minute',
    CASE n % 3 WHEN 1 THEN at END, CASE WHEN n % 3 < 2 THEN at END, n % 2, false, 'worker-' || n % 50, '1:abc', at, at,
    NULL
FROM (SELECT n, clock_timestamp() AS at FROM generate_series(1, {LIVE}) AS n) AS moments;

INSERT INTO task_run (
    id, namespace, type, queue, payload, options, state, attempt, max_attempts, deadline_at, next_retry_at, worker_id,
    fingerprint, created_at, updated_at, concurrency_group, permit)
SELECT 'limited-' || n, '{NAMESPACE}', 'shop.pack', 'celery', '[[], {{}}]', '{{}}',
    CASE WHEN n % 2 = 0 THEN 'running' ELSE 'queued' END, 0, 5, at + n * interval '1 minute',
    CASE WHEN n % 2 = 1 THEN at END, CASE WHEN n % 2 = 0 THEN 'worker-' || n % 50 END, '1:abc', at, at,
    'shop.pack:' || n % 20, CASE WHEN n % 2 = 0 THEN 'granted' ELSE 'wanted' END
FROM (SELECT n, clock_timestamp() AS at FROM generate_series(1, {LIMITED}) AS n) AS moments;

INSERT INTO task_worker (id, namespace, host, pid, started_at, beat, beat_at, reserved, stopped_at)
SELECT 'worker-' || n, '{NAMESPACE}', 'here', 1, now(), 1, now(), '[]', CASE WHEN n > 5 THEN now() END
FROM generate_series(1, 5000) AS n;
"""


@pytest.fixture(scope="module")
def full(postgres_server: servers.Postgres, postgres_template: str) -> Iterator[Database]:
    """A database in which nearly all runs have ended and nearly all workers have stopped."""
    with postgres_server.database(postgres_template) as url:
        database = Database(url)
        with database.connection() as connection:
            connection.execute(text(_FILL))
            connection.exec_driver_sql("ANALYZE")
        yield database
        database.close()


@pytest.fixture(scope="module")
def surprised(postgres_server: servers.Postgres, postgres_template: str) -> Iterator[Database]:
    """A database in a burst after a quiet hour, in which its statistics were taken: all runs had ended."""
    with postgres_server.database(postgres_template) as url:
        database = Database(url)
        ended, _, live = _FILL.split(";")[0].partition("UNION ALL")
        columns = ended.partition("SELECT")[0]
        with database.connection() as connection:
            connection.exec_driver_sql("ALTER TABLE task_run SET (autovacuum_enabled = off)")
            connection.execute(text(ended))
            connection.exec_driver_sql("ANALYZE")
            connection.execute(text(f"{columns} {live.replace(f'(1, {LIVE})', '(1, 5000)')}"))
        yield database
        database.close()


def indexes(database: Database, statement: Statement, **values: object) -> set[str]:
    """The indexes that PostgreSQL plans to use; a scan of the whole table counts as ``Seq Scan``."""
    query, constants = statement.compiled(database.engine)
    query = query.rpartition("; ")[2]  # without the patience with locks in front of it
    with database.connection() as connection:
        found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", {**constants, **values}).scalar()
    plan = found if isinstance(found, list) else json.loads(found)
    return set(_indexes(plan[0]["Plan"]))


def _indexes(node: dict[str, object]) -> Iterator[str]:
    if "Index Name" in node:
        yield str(node["Index Name"])
    elif node["Node Type"] == "Seq Scan":
        yield "Seq Scan"
    for child in node.get("Plans", ()):  # type: ignore[attr-defined]
        yield from _indexes(child)


_PERIODIC = [
    pytest.param(sql.TAKE_DUE, {"lease": 20, "limit": 200}, {"task_run_to_publish"}, id="take_due"),
    pytest.param(
        sql.FINISH_EXPIRED,
        {"state": "dead", "terminal_reason": "failed_due_deadline", "final": True, "unknown": 0, "limit": 200},
        {"task_run_live"},
        id="finish_expired",
    ),
    pytest.param(sql.OVERDUE, {"ago": -5, "limit": 200}, {"task_run_live"}, id="overdue"),
    pytest.param(sql.FOLLOW, {"limit": 200}, {"task_run_follows"}, id="follow"),
    pytest.param(sql.RUNNING_ON, {"worker_id": "worker-1"}, {"task_run_running"}, id="running_on"),
    pytest.param(
        sql.TAKE_LOST,
        {"queue": "celery", "lease": 20, "ago": -20, "limit": 200, "reserved": ["live-1"]},
        {"task_run_to_publish"},
        id="take_lost",
    ),
    pytest.param(
        sql.EXTEND_LEASES, {"queue": "celery", "lease": 20, "limit": 200}, {"task_run_to_publish"}, id="extend_leases"
    ),
    pytest.param(sql.WAITING, {"ago": -2, "reserved": ["live-1"]}, {"task_run_to_publish"}, id="waiting"),
    pytest.param(
        sql.PRUNABLE,
        {"state": "succeeded", "ago": -2_900_000, "key_ago": 0, "limit": 200},
        {"task_run_ended"},
        id="prunable",
    ),
    pytest.param(sql.GROUPS_THAT_WAIT, {"kept": -15.0}, {"task_run_permits"}, id="groups_that_wait"),
    pytest.param(workers._ALIVE, {}, {"task_worker_alive"}, id="alive"),
]


@pytest.mark.parametrize(("statement", "values", "fitting"), _PERIODIC)
def test_a_periodic_statement_uses_its_index(full, statement, values, fitting):
    used = indexes(full, statement, namespace=NAMESPACE, **values)

    assert used & fitting
    assert used <= fitting | {"task_run_pkey"}


@pytest.mark.parametrize(
    ("statement", "values", "fitting"), [each for each in _PERIODIC if each.id not in ("running_on", "alive")]
)
def test_a_periodic_statement_uses_its_index_in_a_burst_too(surprised, statement, values, fitting):
    used = indexes(surprised, statement, namespace=NAMESPACE, **values)

    assert used <= fitting | {"task_run_pkey"}


def test_what_a_worker_runs_is_found_among_the_running_rows_in_a_burst(surprised):
    """Not among the live ones, most of which wait, however small their index looks to the statistics."""
    assert indexes(surprised, sql.RUNNING_ON, worker_id="worker-1") == {"task_run_running"}


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        pytest.param(
            sql.CLAIM, {"namespace": NAMESPACE, "token": "t", "worker_id": "w", "fingerprint": None}, id="claim"
        ),
        pytest.param(sql.SUCCEED, {"token": "t", "successor": "t", "owed": False}, id="succeed"),
        pytest.param(sql.FIND, {"namespace": NAMESPACE}, id="find"),
    ],
)
def test_a_statement_of_the_hot_path_uses_the_primary_key_alone(full, statement, values):
    assert indexes(full, statement, id="live-1", **values) == {"task_run_pkey"}


_SETTLED = {"final": True, "unknown": 0, "owed": False, "state": "failed", "terminal_reason": "failed_non_retryable"}

_OF_ONE_RUN = {
    "CLAIM": {"namespace": NAMESPACE, "token": "t", "worker_id": "w", "fingerprint": None},
    "HELD": {"token": "t"},
    "SUCCEED": {"token": "t", "successor": "t", "owed": False},
    "SETTLE": {"token": "t", "rule": "r", **_SETTLED},
    "SNOOZE": {"token": "t", "at": None},
    "VACATE": {"token": "t"},
    "REWRITE": {"token": "t", "payload": "p", "options": "{}", "fingerprint": "f"},
    "REQUEUE": {},
    "FINISH_WAITING": _SETTLED,
    "TAKE_ENDING": {"ticket": 1, "lease": 9.0},
    "TELL_SOON": {"token": "t"},
    "TOLD": {},
    "OWE": {"token": "t"},
    "MOVE_IN": {"lease": 9.0},
    "FREE_KEY": {"ago": -9.0},
    "PUBLISHED": {"ids": ["live-1", "live-2"], "lease": 9.0},
    "PUBLISH_SOON": {"ids": ["live-1", "live-2"], "delay": 9.0},
    "RUNNING": {"namespace": NAMESPACE},
    "FIND": {"namespace": NAMESPACE},
    "PAYLOAD": {},
    "STATE_AND_TOKEN": {},
}


def test_a_step_finds_its_run_by_its_id_though_statistics_say_that_hardly_any_live(surprised):
    assert indexes(surprised, effects._KEEP, id="live-1", token="t", name="n", result="{}") == {"task_run_pkey"}


@pytest.mark.parametrize(("name", "values"), _OF_ONE_RUN.items(), ids=_OF_ONE_RUN)
def test_a_run_is_found_by_its_id_though_statistics_say_that_hardly_any_live(surprised, name, values):
    assert indexes(surprised, getattr(sql, name), **{"id": "live-1", **values}) == {"task_run_pkey"}


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        pytest.param(
            sql.CLAIM_WITH_PERMIT,
            {"token": "t", "worker_id": "w", "fingerprint": None, "type": None, "concurrency_group": "shop.pack"},
            id="claim",
        ),
        pytest.param(sql.GRANT, {"lease": 20.0}, id="grant"),
    ],
)
def test_permits_are_counted_through_their_index(full, statement, values):
    used = indexes(full, statement, id="limited-1000", namespace=NAMESPACE, limit=5, kept=-15.0, **values)

    assert used == {"task_run_pkey", "task_run_permits"}


def test_a_key_is_looked_up_through_its_index(full):
    used = indexes(full, sql.TAKEN_BY, id="x", namespace=NAMESPACE, idempotency_scope="s", idempotency_key="k")

    assert "Seq Scan" not in used


def test_a_statement_without_an_index_would_be_noticed(full):
    statement = Statement(lambda: select(task_run.c.id).where(task_run.c.type == "shop.other"))

    assert indexes(full, statement) == {"Seq Scan"}
