"""Successes that children leave to the worker, which settles several in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
import pytest

from tests.acceptance.scenes import ids, messages_in
from tests.infra.polling import eventually

SUCCEEDED = ("succeeded", "succeeded", 1)


@pytest.fixture
def settles(scene, redis_url, postgres_url):
    def start(within: float = 0.5, **conf: Any):
        urls = {"broker_url": redis_url, "guard_database_url": postgres_url}
        return scene("together", **urls, guard_settle_within=within, **conf)

    return start


def commits(scene) -> int:
    """How many transactions wrote the rows as they are."""
    return len(set(scene.rows("xmin::text")))


def waiting_messages(scene) -> int:
    return messages_in(scene.app.conf.broker_url, scene.app.conf.task_default_queue)


@contextmanager
def left_and_locked(scene) -> Iterator[tuple[Any, Any]]:
    """A run whose body has returned, and whose row a transaction of the test's holds; give both."""
    result = scene.tasks.hold.delay("go")
    eventually(lambda: bool(scene.traces("begin", result.id)), within=30)
    with closing(psycopg2.connect(scene.app.conf.guard_database_url.replace("+psycopg2", ""))) as other:
        cursor = other.cursor()
        cursor.execute("SELECT id FROM task_run WHERE id = %s FOR UPDATE", (result.id,))
        scene.open_gate("go")
        eventually(lambda: bool(scene.traces("end", result.id)))
        yield result, cursor
        other.commit()


def end_what_waits(cursor, how: str = "terminate") -> int:
    """End the connections, or cancel the statements, that wait for a row of this database; return how many."""
    cursor.execute(
        f"SELECT pg_{how}_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return len(cursor.fetchall())


def test_many_successes_share_commits_and_each_row_has_its_result(settles):
    scene = settles(0.05)
    results = [scene.tasks.succeed.delay(number) for number in range(100)]
    worker = scene.worker()

    assert scene.ends(*ids(results)) == [SUCCEEDED] * 100
    assert [scene.run(result.id).encoded_result for result in results] == [str(number) for number in range(100)]
    assert commits(scene) < 90
    assert len(scene.traces("begin")) == 100
    worker.stop()
    assert waiting_messages(scene) == 0


def test_a_row_that_somebody_holds_holds_up_no_other(settles):
    scene = settles()
    scene.worker()
    with left_and_locked(scene) as (held, _):
        others = [scene.tasks.succeed.delay() for _ in range(10)]
        assert scene.ends(*ids(others)) == [SUCCEEDED] * 10
        assert scene.run(held.id).state.value == "running"

    assert scene.ends(held.id) == [SUCCEEDED]
    assert len(scene.traces("begin", held.id)) == 1


def test_a_success_that_comes_after_a_cancellation_changes_nothing_and_its_message_is_done(settles):
    scene = settles()
    worker = scene.worker()
    with left_and_locked(scene) as (held, cursor):
        cursor.execute(
            "UPDATE task_run SET state = 'cancelled', terminal_reason = 'cancelled', finished_at = now() WHERE id = %s",
            (held.id,),
        )

    eventually(lambda: f"[{held.id}] returned, and its success was not written" in worker.log())
    assert scene.ends(held.id) == [("cancelled", "cancelled", 1)]
    eventually(lambda: waiting_messages(scene) == 0)
    assert "succeeded after attempt" not in worker.log()


def test_a_body_whose_worker_is_killed_before_its_success_is_written_runs_again(settles):
    scene = settles(guard_rescue_after=3)
    worker = scene.worker()
    with left_and_locked(scene) as (held, cursor):
        worker.kill()
        end_what_waits(cursor)  # else the statement of the dead goes on once the row is free
    scene.worker()

    assert scene.ends(held.id) == [("succeeded", "succeeded", 2)]
    assert len(scene.traces("begin", held.id)) == 2


def test_a_worker_that_is_shut_down_writes_what_is_left_and_acknowledges_it(settles):
    scene = settles()
    worker = scene.worker()
    with left_and_locked(scene) as (held, _):
        worker.terminate()
    worker.wait()

    assert (scene.run(held.id).state.value, scene.run(held.id).attempt) == ("succeeded", 1)
    assert waiting_messages(scene) == 0


def test_a_statement_that_is_cancelled_costs_no_success(settles):
    scene = settles()
    scene.worker()
    with left_and_locked(scene) as (held, cursor):
        others = [scene.tasks.succeed.delay() for _ in range(10)]
        for _ in range(3):
            eventually(lambda: end_what_waits(cursor, "cancel") > 0)
        assert scene.ends(*ids(others)) == [SUCCEEDED] * 10
    scene.ended(held.id)

    assert len(scene.traces("begin", others[0].id)) == 1


def test_a_worker_without_its_database_for_a_moment_loses_no_success(settles):
    scene = settles()
    scene.worker()
    with left_and_locked(scene) as (held, cursor):
        eventually(lambda: end_what_waits(cursor) > 0)

    assert scene.ends(held.id) == [SUCCEEDED]
    assert len(scene.traces("begin", held.id)) == 1


def test_a_child_settles_what_somebody_hears_of(settles):
    scene = settles()
    scene.worker()
    heard = scene.tasks.be_heard.delay()
    first = scene.tasks.succeed.apply_async(link=scene.tasks.succeed.si("after"))

    scene.ends(heard.id, first.id)
    eventually(lambda: len(scene.traces("end")) == 3)

    [hook] = scene.traces("heard")
    assert hook["state"] == "succeeded"  # the row said so before anybody was told
    assert scene.run(first.id).state.value == "succeeded"


def test_a_child_settles_what_a_result_backend_keeps(settles, redis_url):
    scene = settles(result_backend=redis_url)
    scene.worker()
    result = scene.tasks.succeed.delay("kept")

    assert result.get(timeout=30) == "kept"
    assert scene.run(result.id).state.value == "succeeded"


def test_a_tracer_that_fails_after_the_body_leaves_a_success_all_the_same(settles):
    scene = settles()
    worker = scene.worker()
    result = scene.tasks.fail_after_the_body.delay()

    assert scene.ends(result.id) == [SUCCEEDED]
    assert "the tracer fails" in worker.log()
    assert len(scene.traces("begin", result.id)) == 1


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_pools_without_children_settle_as_ever(settles, pool):
    scene = settles()
    scene.worker(pool=pool)
    results = [scene.tasks.succeed.delay(number) for number in range(10)]

    assert scene.ends(*ids(results)) == [SUCCEEDED] * 10


def test_sqlite_settles_as_ever(scene, redis_url, sqlite_url):
    scene = scene("together", broker_url=redis_url, guard_database_url=sqlite_url, guard_settle_within=0.5)
    scene.worker()
    results = [scene.tasks.succeed.delay(number) for number in range(10)]

    assert scene.ends(*ids(results)) == [SUCCEEDED] * 10


def test_a_success_is_logged_once_it_is_written(settles):
    scene = settles()
    worker = scene.worker()
    with left_and_locked(scene) as (held, _):
        assert f"[{held.id}] succeeded after" not in worker.log()
    scene.ends(held.id)

    eventually(lambda: f"[{held.id}] succeeded after attempt 1 of 5" in worker.log())
