"""The deadline holds while a body runs."""

from __future__ import annotations

import pytest

from celery_guard import DeadlineExceeded
from tests.acceptance.scenes import ending

GRACE = 1.5


@pytest.fixture
def life(redis_url, postgres_url, scene):
    return scene(
        broker_url=redis_url,
        result_backend=redis_url,
        guard_database_url=postgres_url,
        guard_deadline_grace=GRACE,
    )


def test_a_body_in_plain_python_is_stopped_at_its_deadline(life):
    life.worker()

    result = life.tasks.oversleep.apply_async(deadline=3)

    [run] = life.ended(result.id)
    assert ending(run) == ("dead", "failed_due_deadline", 1)
    assert 2 <= (run.finished_at - run.created_at).total_seconds() < 3 + GRACE
    assert [(trace["what"], trace.get("error")) for trace in life.traces(run=run.id)] == [
        ("begin", None),
        ("end", "SoftTimeLimitExceeded"),
    ]
    with pytest.raises(DeadlineExceeded, match="failed_due_deadline"):
        result.get(timeout=30)


def test_a_body_that_will_not_stop_is_killed_after_the_grace(life):
    life.worker()

    result = life.tasks.oversleep_stubbornly.apply_async(deadline=3)

    [run] = life.ended(result.id)
    assert ending(run) == ("dead", "failed_due_deadline", 1)
    assert 2 + GRACE <= (run.finished_at - run.created_at).total_seconds() <= 5 + GRACE
    assert [trace["what"] for trace in life.traces(run=run.id)][:2] == ["begin", "stopped softly"]
    assert all(trace["error"] for trace in life.traces("end"))  # a dying child may still run a ``finally``
    with pytest.raises(DeadlineExceeded, match="failed_due_deadline"):
        result.get(timeout=20)
    assert life.tasks.succeed.delay("the worker goes on").get(timeout=20) == "the worker goes on"
