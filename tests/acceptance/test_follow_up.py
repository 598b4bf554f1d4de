"""A child that dies after its run is settled, and before Celery has followed that up."""

from __future__ import annotations

import pytest
from celery import chain


@pytest.fixture
def life(redis_url, postgres_url, scene):
    return scene(broker_url=redis_url, result_backend=redis_url, guard_database_url=postgres_url)


def test_a_chain_goes_on_exactly_once_whenever_the_child_of_its_head_died(life):
    tasks = life.tasks
    life.worker()

    tails = {
        "before the tail's row": chain(tasks.succeed.s(1), tasks.tail_not_submitted.s()).delay(),
        "before the tail's message": chain(tasks.succeed.s(10), tasks.tail_not_published.s()).delay(),
        "after the tail's message": chain(tasks.head_dies_in_on_success.s(100), tasks.add.s(1)).delay(),
    }

    assert {name: tail.get(timeout=120) for name, tail in tails.items()} == {
        "before the tail's row": 2,
        "before the tail's message": 11,
        "after the tail's message": 101,
    }
    life.ended(*(result.id for tail in tails.values() for result in (tail, tail.parent)), within=120)
    assert [tail.parent.get(timeout=30) for tail in tails.values()] == [1, 10, 100]
    assert sorted(path.name for path in life.folder.glob("died-*")) == [
        "died-before-the-message",
        "died-before-the-tail",
        "died-on-success",
    ]
    assert len(life.traces("begin")) == len(life.traces("end")) == len(life.rows("id")) == 6
    assert {attempt for (attempt,) in life.rows("attempt")} == {1}
