"""Chains, groups and chords hear of the ending, and of nothing before it."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_guard import AttemptsExhausted


@pytest.fixture(params=["redis", "database"])
def backend_url(request):
    """A result backend of each kind: one counts a chord's members, one asks for them."""
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return "db+" + request.getfixturevalue("postgres_url")


@pytest.fixture
def life(redis_url, postgres_url, backend_url, scene):
    return scene(broker_url=redis_url, result_backend=backend_url, guard_database_url=postgres_url)


def _members(tasks):
    """Members that fail first, lose their child first, and succeed at once."""
    return [tasks.succeed_at.s(2, 1), tasks.die_once.s(20), tasks.succeed_at.s(3, 300), tasks.succeed.s(4000)]


def _bodies(life):
    return sorted(trace["task"].rpartition(".")[2] for trace in life.traces("begin"))


BODIES_OF_MEMBERS = ["die_once"] * 2 + ["succeed"] + ["succeed_at"] * 5


def test_a_chain_goes_on_after_links_that_failed_first(life):
    tasks = life.tasks
    life.worker()

    result = chain(tasks.succeed_at.s(2, 1), tasks.add.s(1), tasks.die_once.si(5), tasks.add.s(10)).delay()

    assert result.get(timeout=45) == 15
    assert _bodies(life) == ["add", "add", "die_once", "die_once", "succeed_at", "succeed_at"]
    life.ended(result.id, result.parent.id, result.parent.parent.id, result.parent.parent.parent.id)


def test_a_group_gives_all_results_of_members_that_failed_first(life):
    life.worker()

    result = group(_members(life.tasks)).delay()

    assert result.get(timeout=45) == [1, 20, 300, 4000]
    assert _bodies(life) == BODIES_OF_MEMBERS


def test_the_body_of_a_chord_runs_once_with_all_results_of_members_that_failed_first(life):
    life.worker()

    result = chord(_members(life.tasks), life.tasks.total.s()).delay()

    assert result.get(timeout=45) == 4321
    life.ended(*(child.id for child in result.parent.results), result.id)
    assert _bodies(life) == [*BODIES_OF_MEMBERS, "total"]


@pytest.mark.parametrize("member", ["dead", "failed"])
def test_a_chord_with_a_member_that_fails_for_good_has_one_error_and_no_body(life, member):
    tasks = life.tasks
    bad = tasks.succeed_at.s(99).set(max_attempts=2) if member == "dead" else tasks.refuse.s()
    members = [tasks.succeed.s(1), bad, tasks.succeed_at.s(2, 3)]
    body = tasks.total.s().on_error(tasks.regret.s()).on_error(tasks.regret_in_detail.s())
    life.worker()

    result = chord(members, body).delay()

    with pytest.raises(ChordError, match="max_attempts" if member == "dead" else "Refused"):
        result.get(timeout=45, follow_parents=False)
    life.ended(*(child.id for child in result.parent.results))
    [errback] = life.rows("id", "type LIKE '%%regret'")
    life.ended(*errback)
    regrets = life.traces("regret")
    assert [regret["of"] for regret in regrets] == [result.id, result.id]
    assert [regret["error"] for regret in regrets if "error" in regret] == ["ChordError"]
    assert "total" not in _bodies(life)


def test_a_dead_link_of_a_chain_runs_its_errbacks_once_and_no_further_link(life):
    tasks = life.tasks
    life.worker()

    result = chain(tasks.succeed_at.s(99).set(max_attempts=2), tasks.add.s(1)).on_error(tasks.regret_in_detail.s())
    result = result.on_error(tasks.regret.s()).delay()

    with pytest.raises(AttemptsExhausted):
        result.parent.get(timeout=45)
    life.ended(result.parent.id)
    [errback] = life.rows("id", "type LIKE '%%regret'")
    life.ended(*errback)
    assert [regret["of"] for regret in life.traces("regret")] == [result.parent.id, result.parent.id]
    assert _bodies(life) == ["regret", "succeed_at", "succeed_at"]
