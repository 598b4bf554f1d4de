"""A scrape reads through indexes, however many runs have ended."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import text

from celery_guard.store import tally_statements as sql
from tests.store.lives import NAMESPACE
from tests.store.test_plans import full, indexes

__all__ = ["full"]

_NOW = datetime.now(timezone.utc)
LATELY = {"since_at": _NOW - timedelta(seconds=30), "until_at": _NOW}

_FAULTS = """
INSERT INTO task_attempt (run_id, attempt, finished_at, category, rule)
SELECT id, 1, finished_at, 'retryable', 'os_error' FROM task_run WHERE finished_at IS NOT NULL
"""


@pytest.fixture(scope="module")
def full_of_faults(full):
    """Every run has failed once."""
    with full.connection() as connection:
        connection.execute(text(_FAULTS))
        connection.exec_driver_sql("ANALYZE")
    return full


@pytest.mark.parametrize(
    ("statement", "values", "fitting"),
    [
        pytest.param(sql.ENDED, LATELY, {"task_run_ended", "task_attempt_pkey"}, id="ended"),
        pytest.param(sql.FAULTS, LATELY, {"task_attempt_recent", "task_run_pkey"}, id="faults"),
        pytest.param(sql.LIVE, {}, {"task_run_live"}, id="live"),
        pytest.param(sql.DUE_SINCE, LATELY, {"task_run_to_publish"}, id="due_since"),
    ],
)
def test_a_scrape_uses_its_index(full_of_faults, statement, values, fitting):
    used = indexes(full_of_faults, statement, namespace=NAMESPACE, **values)

    assert used == fitting
