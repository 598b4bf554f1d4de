"""Named pieces of a run, done once; a run that succeeds in the caller's transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from celery_guard import (
    DeadlineExceeded,
    InvalidOption,
    NonRetryableError,
    RetryableError,
    RunCancelled,
    StepReused,
    UnserializableArgument,
    cancel,
    current_run,
)
from celery_guard.core.decide import Lost
from celery_guard.flow.guard import task_settings
from celery_guard.flow.settle import lost_fault, settle


@pytest.fixture
def perform(any_shop):
    """Run a body, given the run and the session factory, to its end; return the result object."""

    def run(body, **options):
        @any_shop.app.task(name="perform", **{"max_attempts": 3, **options})
        def perform():
            return body(current_run())

        result = perform.apply_async(idempotency_key="order-7")
        any_shop.work()
        return result

    return run


@pytest.fixture
def table(engine):
    """A table of the application."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE charges (run TEXT)"))
    yield lambda: [row[0] for row in _read(engine)]
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE charges"))


def _read(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT run FROM charges")).fetchall()


@pytest.fixture
def taken_over(any_shop):
    """Let somebody else end the attempt that is running here, as a rescue does."""

    def take_over(run):
        task = any_shop.app.tasks[run.type]
        lost = Lost(lost_fault("worker_lost", "gone"))
        how = {"now": run.now(), "meta": {}, "made_by": "worker", "successor": "another"}
        assert settle(any_shop.guard, run.type, task_settings(task), run.held.claim, lost, **how)

    return take_over


def test_a_step_is_done_once_over_all_attempts(perform, noted):
    def body(run):
        found = run.step("charge", lambda: noted.append(1) or "charge-7")
        if run.attempt < 3:
            raise RetryableError("busy")
        return found

    assert perform(body).get() == "charge-7"
    assert noted == [1]


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_a_falsy_result_is_a_result(perform, noted, value):
    def body(run):
        found = run.step("look", lambda: noted.append(1) or value)
        if run.attempt < 2:
            raise RetryableError("busy")
        return found

    assert perform(body).get() == value
    assert noted == [1]


def test_a_step_that_raised_is_done_again(perform, noted):
    def fail_first():
        noted.append(1)
        if len(noted) == 1:
            raise RetryableError("busy")
        return "done"

    assert perform(lambda run: run.step("charge", fail_first)).get() == "done"
    assert noted == [1, 1]


def test_a_step_gets_its_arguments(perform):
    assert perform(lambda run: run.step("add", lambda a, b=0: a + b, 1, b=2)).get() == 3


@pytest.mark.parametrize("value", ["text\x00with NUL", "\ud800", {"1": [None, True, 1.5, "ü"]}, 2**70])
def test_any_json_comes_back_as_it_was(perform, noted, value):
    def body(run):
        noted.append(run.step("look", lambda: value))
        if run.attempt < 2:
            raise RetryableError("busy")

    perform(body)

    assert noted == [value, value]


def test_what_json_changes_is_the_same_in_the_first_attempt_as_in_the_next(perform, noted):
    def body(run):
        noted.append(run.step("look", lambda: {1: (2, 3)}))
        if run.attempt < 2:
            raise RetryableError("busy")

    perform(body)

    assert noted == [{"1": [2, 3]}] * 2


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"bytes"])
def test_a_result_that_is_not_json_fails_the_run_with_the_name_of_the_step(perform, value):
    run = perform(lambda run: run.step("look", lambda: value)).run

    assert run.terminal_reason == "failed_non_retryable"
    assert "'look' must be JSON" in run.last_error
    assert run.error_type.endswith(UnserializableArgument.__name__)


def test_a_name_used_twice_in_one_attempt_fails_the_run(perform, noted):
    def body(run):
        run.step("charge", lambda: noted.append(1))
        run.step("charge", lambda: noted.append(2))

    run = perform(body).run

    assert run.terminal_reason == "failed_non_retryable"
    assert run.error_type.endswith(StepReused.__name__)
    assert noted == [1]


@pytest.mark.parametrize("name", ["", "x" * 256, None, 5, "a\x00b"])
def test_a_name_that_is_none_fails_the_run(perform, name):
    run = perform(lambda run: run.step(name, lambda: 1)).run

    assert run.terminal_reason == "failed_non_retryable"
    assert run.error_type.endswith(InvalidOption.__name__)


def test_steps_of_two_runs_do_not_meet(any_shop, noted):
    @any_shop.app.task
    def charge(order_id):
        return current_run().step("charge", lambda: noted.append(order_id) or order_id)

    results = [charge.delay(1), charge.delay(2)]
    any_shop.work()

    assert [result.get() for result in results] == [1, 2]


def test_a_step_inside_a_step_is_a_step(perform, noted):
    def outer(run):
        run.step("inner", lambda: noted.append("inner"))
        noted.append("outer")
        if run.attempt == 1:
            raise RetryableError("busy")

    perform(lambda run: run.step("outer", outer, run))

    assert noted == ["inner", "outer", "outer"]


def test_an_attempt_that_was_taken_over_can_not_store_its_step(perform, taken_over, noted, any_shop):
    def body(run):
        if run.attempt > 1:
            return run.step("charge", lambda: "new")
        try:
            run.step("charge", lambda: taken_over(run) or "old")
        except RunCancelled:
            noted.append("refused")
            raise

    assert perform(body).get() == "new"
    assert noted == ["refused"]


def test_a_cancelled_run_can_not_store_its_step(perform, any_shop, noted):
    def body(run):
        cancel(run.id, app=any_shop.app)
        any_shop.sql("UPDATE task_run SET state = 'cancelled', terminal_reason = 'cancelled', finished_at = created_at")
        try:
            run.step("charge", lambda: "charged")
        except RunCancelled:
            noted.append("refused")
            raise

    assert perform(body).run.state == "cancelled"
    assert noted == ["refused"]
    assert any_shop.sql("SELECT count(*) FROM task_effect") == [(0,)]


def test_no_step_begins_past_the_deadline(perform, any_shop, noted):
    def body(run):
        any_shop.clock.advance(7_200)
        run.step("charge", lambda: noted.append(1))

    run = perform(body, deadline=3_600).run

    assert (run.state, run.terminal_reason, noted) == ("dead", "failed_due_deadline", [])


def test_the_deadline_of_a_step_bounds_the_timeouts_inside_of_it(perform, noted):
    def body(run):
        noted.append(run.step("call", lambda: current_run().timeout(at_most=60), deadline=5))
        noted.append(current_run().timeout(at_most=60))

    perform(body)

    assert noted[0] <= 5
    assert noted[1] == 60


def test_the_deadline_of_a_step_never_extends_that_of_the_run(perform, noted):
    perform(lambda run: run.step("call", lambda: noted.append(current_run().remaining().total_seconds()), deadline=9e6))

    assert noted[0] <= 86_400


def test_a_step_whose_own_time_is_over_may_be_tried_again(perform, any_shop, noted):
    def call(run):
        noted.append(run.attempt)
        if run.attempt == 1:
            any_shop.clock.advance(10)
            current_run().timeout()
        return "answer"

    assert perform(lambda run: run.step("call", call, run, deadline=5)).get() == "answer"
    assert noted == [1, 2]


def test_a_key_for_a_step_is_the_same_in_every_attempt_and_another_for_every_run_and_step(any_shop, noted):
    @any_shop.app.task
    def charge():
        run = current_run()
        noted.append((run.id, run.key_for("charge"), run.key_for("refund")))
        if run.attempt < 3:
            raise RetryableError("busy")

    charge.delay()
    charge.delay()
    any_shop.work()

    assert len(noted) == 6
    assert len(set(noted)) == 2
    assert len({key for _, *keys in noted for key in keys}) == 4


def test_keys_for_steps_of_two_scopes_differ_though_their_runs_have_equal_keys(any_shop, noted):
    @any_shop.app.task(idempotency_scope="{tenant}")
    def charge(tenant):
        noted.append(current_run().key_for("charge"))

    charge.apply_async(("one",), idempotency_key="order-7")
    charge.apply_async(("two",), idempotency_key="order-7")
    any_shop.work()

    assert len(set(noted)) == 2


def test_keys_for_steps_of_two_tasks_differ_though_their_runs_have_equal_keys(any_shop, noted):
    for name in ("charge", "refund"):

        @any_shop.app.task(name=name)
        def act():
            noted.append(current_run().key_for("call"))

        act.apply_async(idempotency_key="order-7")
    any_shop.work()

    assert len(set(noted)) == 2


def test_a_direct_call_runs_its_steps_and_keeps_nothing(any_shop):
    @any_shop.app.task
    def charge():
        run = current_run()
        run.complete_in(None, "x")
        return run.step("charge", lambda: 5), run.key_for("charge")

    result, key = charge()

    assert result == 5
    assert key.endswith("charge")
    assert any_shop.rows() == []


# In the caller's transaction


def _charge(session, run, fail=None):
    session.execute(text("INSERT INTO charges VALUES (:run)"), {"run": run.id})
    if fail is not None:
        raise fail
    return "charged"


def test_a_step_in_a_session_commits_with_the_write(perform, engine, table, noted):
    def body(run):
        with Session(engine) as session:
            found = run.step("charge", _charge, session, run, session=session)
            session.commit()
        if run.attempt < 2:
            raise RetryableError("busy")
        return found

    result = perform(body)

    assert result.get() == "charged"
    assert table() == [result.id]


def test_a_step_in_a_session_that_is_rolled_back_is_done_again(perform, engine, table):
    def body(run):
        with Session(engine) as session:
            run.step("charge", _charge, session, run, session=session)
            if run.attempt < 2:
                raise RetryableError("busy")
            session.commit()

    result = perform(body)

    assert table() == [result.id]


def test_a_stale_attempt_can_not_commit_its_step(perform, engine, table, taken_over):
    def body(run):
        if run.attempt > 1:
            return
        with Session(engine) as session:
            taken_over(run)
            run.step("charge", _charge, session, run, session=session)
            session.commit()

    result = perform(body)

    assert (result.run.state, table()) == ("succeeded", [])


def test_success_commits_with_the_business_write(perform, engine, table):
    def body(run):
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, {"charge": 7})
            session.commit()
        return {"charge": 7}

    result = perform(body)

    assert (result.run.state, result.get(), table()) == ("succeeded", {"charge": 7}, [result.id])


def test_a_rollback_takes_the_success_back_and_the_run_is_retried(perform, engine, table):
    def body(run):
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, run.attempt)
            if run.attempt == 1:
                raise RetryableError("busy")
            session.commit()
        return run.attempt

    result = perform(body)

    assert (result.run.state, result.run.attempt, result.get()) == ("succeeded", 2, 2)
    assert table() == [result.id]


def test_what_a_body_raises_after_its_success_was_committed_changes_nothing(perform, engine, table):
    def body(run):
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, "done")
            session.commit()
        raise NonRetryableError("too late to fail")

    result = perform(body)

    assert (result.run.state, result.run.attempt, result.get()) == ("succeeded", 1, "done")


def test_a_stale_attempt_can_not_complete(perform, engine, table, taken_over):
    def body(run):
        if run.attempt > 1:
            return "new"
        taken_over(run)
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, "old")
            session.commit()

    result = perform(body)

    assert (result.get(), table()) == ("new", [])


def test_an_attempt_past_the_deadline_can_not_complete(perform, any_shop, engine, table):
    def body(run):
        any_shop.clock.advance(7_200)
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, "late")
            session.commit()

    result = perform(body, deadline=3_600)

    assert (result.run.terminal_reason, table()) == ("failed_due_deadline", [])
    with pytest.raises(DeadlineExceeded):
        result.get()


def test_a_result_that_can_not_be_encoded_is_refused_before_the_commit(perform, engine, table):
    def body(run):
        with Session(engine) as session:
            _charge(session, run)
            run.complete_in(session, object())
            session.commit()

    result = perform(body)

    assert (result.run.state, table()) == ("failed", [])


def test_a_completed_run_goes_on_along_its_chain(any_shop, engine, noted):
    @any_shop.app.task
    def head():
        with Session(engine) as session:
            current_run().complete_in(session, 20)
            session.commit()
        return 20

    @any_shop.app.task
    def tail(value):
        noted.append(value)

    (head.s() | tail.s()).delay()
    any_shop.work()

    assert noted == [20]
    assert [run.owed for run in any_shop.rows()] == [False, False]
