"""A chord whose result backend is a database, which asks for its members instead of counting them."""

from __future__ import annotations

import pytest
from celery import chord


@pytest.fixture(scope="module")
def stage(set_stage, redis_database, stage_database):
    backend = f"db+{stage_database}"
    stage = set_stage(broker_url=redis_database, result_backend=backend, guard_database_url=stage_database)
    stage.at_work = stage.worker(concurrency=2)
    return stage


def test_a_member_whose_key_was_used_is_one_of_the_members(stage):
    first = stage.tasks.give.apply_async((20,), idempotency_key="done")
    stage.ended(first.id)

    members = [stage.tasks.give.s(20).set(idempotency_key="done"), stage.tasks.give.s(1)]
    result = chord(members, stage.tasks.total.s()).delay()

    assert result.get(timeout=30) == 21
    assert stage.bodies(first.id) == 1


def test_a_replaced_member_is_one_of_the_members(stage):
    members = [stage.tasks.replaced.s("chain", 5), stage.tasks.replaced.s("unguarded", 1)]

    result = chord(members, stage.tasks.total.s()).delay()

    assert result.get(timeout=30) == 8
    assert stage.bodies(result.id) == 1
