"""Reports read through indexes, however many runs have ended."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_guard.core.states import State
from celery_guard.store import report_statements as sql
from celery_guard.store.database import Statement
from celery_guard.store.report_statements import RunFilter
from tests.store.lives import NAMESPACE
from tests.store.test_plans import full, indexes

__all__ = ["full"]

LATELY = datetime.now(timezone.utc) - timedelta(hours=1)
OURS = {"task_run_ended", "task_run_live"}


def listed(**wanted):
    return Statement(lambda: sql.listed(RunFilter(**wanted), None))


@pytest.mark.parametrize(
    ("statement", "values", "fitting"),
    [
        pytest.param(listed(), {"limit": 51}, OURS, id="runs"),
        pytest.param(listed(states=(State.SUCCEEDED,)), {"limit": 51}, {"task_run_ended"}, id="runs of one state"),
        pytest.param(listed(states=(State.QUEUED,)), {"limit": 51}, {"task_run_live"}, id="live runs"),
        pytest.param(listed(type="shop.send"), {"limit": 51, "type": "shop.send"}, OURS, id="runs of one task"),
        pytest.param(listed(since=LATELY), {"limit": 51, "since_at": LATELY}, OURS, id="runs since"),
        pytest.param(listed(key="k"), {"limit": 51, "key": "k"}, {"task_run_key"}, id="runs by key"),
        pytest.param(sql.LIVE_COUNTS, {}, {"task_run_live"}, id="live_counts"),
        pytest.param(sql.OLDEST, {}, {"task_run_live"}, id="oldest"),
        pytest.param(
            Statement(lambda: sql.ended_counts(True)),
            {"since_at": LATELY},
            {"task_run_ended"},
            id="ended_counts",
        ),
        pytest.param(sql.UNKNOWN, {"since_at": LATELY}, {"task_run_ended"}, id="unknown"),
        pytest.param(sql.ALIVE, {}, {"task_worker_alive"}, id="workers"),
        pytest.param(sql.RUNNING, {"ids": ["worker-1"]}, {"task_run_running"}, id="running"),
        pytest.param(sql.LIFE, {"id": "live-1"}, {"task_run_pkey"}, id="life"),
        pytest.param(sql.PLACES, {"ids": ["worker-1"]}, {"task_worker_pkey"}, id="places"),
    ],
)
def test_a_report_uses_its_index(full, statement, values, fitting):
    used = indexes(full, statement, namespace=NAMESPACE, **values)

    assert used
    assert used <= fitting
