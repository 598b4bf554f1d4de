"""Errors decide, on a real worker that outlives them all."""

from __future__ import annotations

import pytest

from celery_guard import AttemptsExhausted
from tests.acceptance.scenes import ending
from tests.infra.polling import eventually


@pytest.fixture(scope="module")
def stage(set_stage, redis_database, stage_database):
    stage = set_stage(broker_url=redis_database, result_backend=redis_database, guard_database_url=stage_database)
    stage.at_work = stage.worker(concurrency=2)
    return stage


@pytest.fixture
def tasks(stage):
    return stage.tasks


@pytest.fixture(autouse=True)
def _the_worker_stays_alive(stage):
    """Whatever a body raises, the main process is the same one afterwards."""
    before = stage.at_work.pid
    yield
    assert stage.at_work.running
    assert stage.at_work.pid == before


def test_broad_autoretry_with_an_explicit_retry_runs_exactly_max_attempts_bodies(stage, tasks):
    result = tasks.retry_twice_over.delay()

    assert stage.ends(result.id) == [("dead", "failed_due_max_attempts", 4)]
    assert stage.bodies(result.id) == 4


def test_max_retries_of_one_message_do_not_leak_to_another_of_the_same_process(stage, tasks):
    first = [tasks.leak.delay("a") for _ in range(4)]
    stage.ended(*(result.id for result in first))

    other = [tasks.leak.delay("b") for _ in range(4)]

    assert stage.ends(*(result.id for result in other)) == [("dead", "failed_due_max_attempts", 2)] * 4
    assert [stage.bodies(result.id) for result in other] == [2] * 4


def test_five_snoozes_then_one_retry_then_success_with_two_attempts(stage, tasks):
    result = tasks.put_off.apply_async((5,), max_attempts=2)

    (run,) = stage.ended(result.id)
    assert (ending(run), run.snoozes) == (("succeeded", "succeeded", 2), 5)
    assert stage.bodies(result.id) == 7


NON_RETRYABLE, EXHAUSTED = ("failed", "failed_non_retryable"), ("dead", "failed_due_max_attempts")


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ("unpicklable", EXHAUSTED),
        ("unspeakable", EXHAUSTED),
        ("odd", EXHAUSTED),
        ("large", NON_RETRYABLE),
        ("nul", NON_RETRYABLE),
        ("surrogate", NON_RETRYABLE),
        ("group", NON_RETRYABLE),
        ("deep", NON_RETRYABLE),
        ("reject", NON_RETRYABLE),
        ("ignore", ("succeeded", "succeeded")),
    ],
)
def test_an_error_that_is_hard_to_carry_ends_its_run_as_it_should(stage, tasks, what, state):
    result = tasks.raise_it.delay(what)

    (run,) = stage.ended(result.id)
    assert ending(run)[:2] == state
    assert stage.bodies(result.id) == run.attempt
    assert run.last_error is None or len(run.last_error) <= 2_100


@pytest.mark.parametrize("what", ["memory", "exit", "interrupt", "base"])
def test_an_error_that_ends_processes_ends_its_run_only(stage, tasks, what):
    result = tasks.raise_it.delay(what)

    (run,) = stage.ended(result.id)
    assert run.state in ("dead", "failed")
    assert run.error_type
    assert tasks.give.delay(1).get(timeout=30) == 1


def test_a_text_with_what_databases_do_not_take_is_stored_without_it(stage, tasks):
    result = tasks.raise_it.delay("nul")

    (run,) = stage.ended(result.id)
    assert "\x00" not in run.last_error
    assert run.last_error


def test_a_caller_of_an_exhausted_run_hears_why(tasks):
    with pytest.raises(AttemptsExhausted, match="busy"):
        tasks.give_up.apply_async(max_attempts=2).get(timeout=30)


def test_nobody_knows_an_error_and_its_class_is_said_once_per_process(stage, tasks):
    results = [tasks.raise_it.delay("odd") for _ in range(6)]
    stage.ended(*(result.id for result in results))

    log = stage.at_work.log()
    warned = log.count("no rule knows tests.intent.apps.shop.Odd")
    assert 1 <= warned <= len({trace["pid"] for trace in stage.traces("begin")})


def test_retries_at_a_limited_rate_are_spread_over_all_workers(stage, tasks):
    other = stage.worker(concurrency=2)
    try:
        results = [tasks.limited.delay() for _ in range(12)]
        runs = stage.ended(*(result.id for result in results))
    finally:
        other.stop()

    assert {ending(run) for run in runs} == {("succeeded", "succeeded", 2)}
    first = min(run.attempts[0].started_at for run in runs)  # no slot is earlier
    assert (max(run.started_at for run in runs) - first).total_seconds() >= 11 / 4


# An existing task, guarded by changing its base only


@pytest.mark.parametrize(
    ("name", "state", "bodies"),
    [
        ("by_hand", EXHAUSTED, 3),
        ("by_itself", EXHAUSTED, 2),
        ("second_time_lucky", ("succeeded", "succeeded"), 2),
        ("expected", NON_RETRYABLE, 1),
    ],
)
def test_an_existing_task_behaves_guarded_as_it_did(stage, tasks, name, state, bodies):
    before, after = tasks.plainly[name].delay(), tasks.guarded[name].delay()

    assert ending(stage.ended(after.id)[0])[:2] == state
    eventually(before.ready, 30)
    assert stage.bodies(before.id) == stage.bodies(after.id) == bodies
    assert before.state == after.state
    for hook in ("on_retry", "on_failure"):
        assert len(stage.traces(hook, before.id)) == len(stage.traces(hook, after.id))


def test_a_step_is_done_once_though_the_child_was_killed_after_it(stage, tasks):
    result = tasks.die_between.delay("charge")

    assert stage.ends(result.id) == [("succeeded", "succeeded", 2)]
    assert len(stage.traces("charge", result.id)) == 1
