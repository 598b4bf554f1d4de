"""What a run costs its database: one statement to submit, one to claim, one to settle."""

from __future__ import annotations

import re

import pytest
from celery.result import AsyncResult

from tests.infra import servers
from tests.infra.polling import eventually

MARK = "SELECT 'the run to count'"


@pytest.fixture
def postgres(private_postgres):
    """A server that logs every statement, each with the connection that sent it."""
    private_postgres.execute("ALTER SYSTEM SET log_line_prefix = '<%p>'")
    private_postgres.execute("ALTER SYSTEM SET log_statement = 'all'")
    private_postgres.execute("SELECT pg_reload_conf()")
    return private_postgres


@pytest.fixture
def life(redis_url, postgres, scene):
    from celery_guard.store.database import Database
    from celery_guard.store.migrations import migrate

    with postgres.database() as url:
        database = Database(url)
        migrate(database)
        database.close()
        yield scene(broker_url=redis_url, result_backend=redis_url, guard_database_url=url)


def _statements(postgres: servers.PrivatePostgres, run_id: str) -> list[str]:
    """Return what was sent since the mark by every connection that ever named the run, by first words."""
    before, _, log = postgres.process.log().rpartition(MARK)
    plans = dict(re.findall(r"PREPARE (\w+) \(.*?\) AS (\w+ \w+)", before + log, re.DOTALL))
    entries = re.findall(
        r"^<(\d+)>LOG:  (?:statement|execute [^:]*): (.*?)(?=^<\d+>|\Z)", log, re.DOTALL | re.MULTILINE
    )
    senders = {sender for sender, statement in entries if run_id in statement}
    sent = [statement.split() for sender, statement in entries if sender in senders]
    return [plans[words[1]] if words[0] == "EXECUTE" else " ".join(words[:2]) for words in sent]


def test_a_run_takes_exactly_three_statements_and_no_transaction(life, postgres):
    life.worker(concurrency=1)
    life.ends(*(life.tasks.succeed.delay(number).id for number in range(3)))  # connections, schema checks
    postgres.execute(MARK)

    result = life.tasks.succeed.delay("counted")

    assert AsyncResult(result.id, app=life.app).get(timeout=30) == "counted"  # which doesn't read the row
    assert _statements(postgres, result.id) == ["INSERT INTO", "UPDATE task_run", "UPDATE task_run"]


def test_a_run_with_a_concurrency_limit_takes_one_round_trip_more(life, postgres):
    life.worker(concurrency=1)
    life.ends(*(life.tasks.succeed_alone.delay(number).id for number in range(3)))
    postgres.execute(MARK)

    result = life.tasks.succeed_alone.delay("counted")

    assert AsyncResult(result.id, app=life.app).get(timeout=30) == "counted"
    submitted, claimed, settled, granted = _statements(postgres, result.id)  # the lock is part of two of them
    assert (submitted, settled) == ("INSERT INTO", "UPDATE task_run")
    assert claimed.startswith("SELECT pg_advisory_xact_lock(")
    assert granted.startswith("SELECT pg_advisory_xact_lock(")


def test_a_run_with_a_link_takes_one_statement_more(life, postgres):
    life.worker(concurrency=1)
    life.ends(*(life.tasks.succeed.delay(number).id for number in range(3)))
    postgres.execute(MARK)

    result = life.tasks.succeed.apply_async(("counted",), link=life.tasks.unguarded.s())

    assert AsyncResult(result.id, app=life.app).get(timeout=30) == "counted"  # which doesn't read the row
    eventually(lambda: life.traces("unguarded") != [])  # by the same child, so the head's follow-up is through
    assert _statements(postgres, result.id) == ["INSERT INTO", *["UPDATE task_run"] * 3]
    assert not life.run(result.id).owed
