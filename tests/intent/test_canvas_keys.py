"""Keys and replacements inside chains, groups and chords, on a real worker: nobody waits for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import chord, group
from celery.exceptions import ChordError

from celery_guard import NonRetryableError, RunExists
from celery_guard.flow.guard import guard_of
from tests.infra.polling import eventually


@pytest.fixture(scope="module")
def stage(set_stage, redis_database, stage_database):
    stage = set_stage(broker_url=redis_database, result_backend=redis_database, guard_database_url=stage_database)
    stage.at_work = stage.worker(concurrency=3)
    return stage


def _keyed(task, key, *args, **kwargs):
    return task.s(*args, **kwargs).set(idempotency_key=key)


def test_a_member_whose_key_has_succeeded_brings_that_result_to_the_chord(stage):
    first = stage.tasks.give.apply_async((20,), idempotency_key="done")
    stage.ended(first.id)

    result = chord([_keyed(stage.tasks.give, "done", 20), stage.tasks.give.s(1)], stage.tasks.total.s()).delay()

    assert result.get(timeout=30) == 21
    assert stage.bodies(first.id) == 1
    followers = stage.rows("same_as, state", f"same_as = '{first.id}'")
    assert followers == [(first.id, "succeeded")]


def test_a_member_whose_key_is_running_waits_for_that_run_and_no_longer(stage):
    first = stage.tasks.give.apply_async((20, "slow"), idempotency_key="slow")
    eventually(lambda: stage.bodies(first.id) == 1, 20)

    result = chord([_keyed(stage.tasks.give, "slow", 20, "slow"), stage.tasks.give.s(1)], stage.tasks.total.s()).delay()
    stage.open_gate("slow")

    assert result.get(timeout=30) == 21
    assert stage.bodies(first.id) == 1


@pytest.mark.parametrize("ending", ["failed", "dead"])
def test_a_member_whose_key_ends_badly_fails_the_chord_once(stage, ending):
    task = stage.tasks.refuse if ending == "failed" else stage.tasks.give_up
    first = task.apply_async(idempotency_key=ending, max_attempts=2)
    body = stage.tasks.total.s().on_error(stage.tasks.regret.s())

    result = chord([_keyed(task, ending), stage.tasks.give.s(1)], body).delay()

    with pytest.raises(ChordError):
        result.get(timeout=30, follow_parents=False)
    assert stage.run(first.id).state == ending
    assert len(stage.traces("regret")) >= 1


def test_a_member_whose_first_run_is_gone_does_not_wait_for_ever(stage):
    result = chord(
        [_keyed(stage.tasks.give, "gone", 20, "gone").set(deadline=8), stage.tasks.give.s(1)],
        stage.tasks.total.s().set(inherit_deadline=False),
    )
    first = stage.tasks.give.apply_async((20, "gone"), idempotency_key="gone")
    eventually(lambda: stage.bodies(first.id) == 1, 20)
    waiting = result.delay()
    eventually(lambda: len(stage.rows("id", f"same_as = '{first.id}'")) == 1)
    _delete(stage, first.id)
    stage.open_gate("gone")

    with pytest.raises(ChordError, match="deadline"):
        waiting.get(timeout=30, follow_parents=False)


def _delete(stage, run_id):
    with guard_of(stage.app).database.connection() as connection:
        connection.exec_driver_sql(f"DELETE FROM task_run WHERE id = '{run_id}'")


def test_a_link_of_a_chain_whose_key_was_used_hands_the_first_result_on(stage):
    first = stage.tasks.add.apply_async((1, 2), idempotency_key="link")
    stage.ended(first.id)

    result = (stage.tasks.give.s(1) | _keyed(stage.tasks.add, "link", 2) | stage.tasks.add.s(10)).delay()

    assert result.get(timeout=30) == 13
    assert stage.bodies(first.id) == 1
    assert stage.bodies(result.parent.id) == 0


def test_a_link_of_a_chain_whose_key_was_used_for_another_request_fails_the_chain_and_not_its_head(stage):
    stage.ended(stage.tasks.add.apply_async((5, 5), idempotency_key="conflict").id)

    result = (stage.tasks.give.s(1) | _keyed(stage.tasks.add, "conflict", 2)).delay()

    with pytest.raises(Exception, match="idempotency key"):
        result.get(timeout=30)
    assert stage.run(result.parent.id).state == "succeeded"
    assert result.parent.state == "SUCCESS"


def test_two_members_of_a_group_with_one_key_run_once_and_both_have_the_result(stage):
    result = group(_keyed(stage.tasks.give, "twins", 7), _keyed(stage.tasks.give, "twins", 7))()

    assert result.get(timeout=30) == [7, 7]
    assert sum(stage.bodies(child.id) for child in result.results) == 1


def test_an_explicit_id_that_was_used_is_refused(stage):
    stage.tasks.give.apply_async((1,), task_id="mine")
    stage.ended("mine")

    with pytest.raises(RunExists, match="mine"):
        stage.tasks.give.apply_async((1,), task_id="mine")


# Replacements


@pytest.mark.parametrize(
    ("kind", "value", "bodies"), [("guarded", 5, 1), ("chain", 7, 3), ("group", [5, 5], 3), ("unguarded", 5, 0)]
)
def test_a_replaced_task_has_the_result_of_what_took_its_place(stage, kind, value, bodies):
    result = stage.tasks.replaced.delay(kind, 5)

    assert result.get(timeout=30) == value
    (run,) = stage.ended(result.id)
    assert run.state == "succeeded"


def test_a_replaced_task_that_fails_in_its_new_form_fails_once(stage):
    result = stage.tasks.replaced.apply_async(("failing", 5), link_error=stage.tasks.regret.s())

    with pytest.raises(NonRetryableError, match="no"):
        result.get(timeout=30)
    stage.ended(result.id)
    regrets = eventually(lambda: [t for t in stage.traces("regret") if t["of"] == result.id] or False, 20)
    assert len(regrets) == 1


@pytest.mark.parametrize("kind", ["guarded", "chain", "unguarded"])
def test_a_replaced_member_still_counts_once_for_its_chord(stage, kind):
    result = chord([stage.tasks.replaced.s(kind, 5), stage.tasks.give.s(1)], stage.tasks.total.s()).delay()

    assert result.get(timeout=30) == {"guarded": 6, "chain": 8, "unguarded": 6}[kind]
    assert stage.bodies(result.id) == 1
    (body,) = stage.ended(result.id)
    assert body.state == "succeeded"


def test_the_result_of_an_unguarded_replacement_is_waited_for(stage):
    result = stage.tasks.replaced.delay("slow", 5)
    eventually(lambda: stage.run(result.id).state == "succeeded", 20)
    assert not result.ready()
    stage.open_gate("replacement")

    assert result.get(timeout=30) == 5


# What a chord hands down


def test_the_body_of_a_chord_ends_no_later_than_its_members(stage):
    members = [stage.tasks.give.s(1).set(deadline=600), stage.tasks.give.s(2).set(deadline=600)]

    result = chord(members, stage.tasks.total.s()).delay()

    assert result.get(timeout=30) == 3
    (body,) = stage.ended(result.id)
    (member,) = stage.ended(result.parent.results[0].id)
    assert body.deadline_at - member.deadline_at < timedelta(seconds=30)
