"""Deadlines and time limits, whatever the body does, and whatever happened to the run before."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec

import pytest

from celery_guard import DeadlineExceeded
from tests.acceptance.scenes import ids
from tests.fire.scenes import LATE, SUCCEEDED, USED_UP, shape
from tests.infra.polling import eventually

#: How long after its deadline a run may end, in seconds, on a machine that has too much to do; bodies last longer.
SOON = 25


def _skip_without(pool):
    """Import nothing: greenlets patch what they find."""
    if pool in ("gevent", "eventlet") and find_spec(pool) is None:
        pytest.skip(f"needs {pool}")


def _over(run):
    """Return by how many seconds a run outlived its deadline."""
    return (run.finished_at - run.deadline_at).total_seconds()


def test_each_of_many_bodies_that_exceed_a_limit_at_once_ends_its_own_run(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    tasks = scene.tasks
    worker = scene.worker(concurrency=7)

    limited = [tasks.exceed_its_time_limit.delay(2), tasks.exceed_its_time_limit.apply_async((99,), max_attempts=2)]
    late = {
        "plain Python": tasks.last.apply_async((60,), deadline=4),
        "another at the same moment": tasks.last.apply_async((60,), deadline=4),
        "swallows the soft limit": tasks.swallow.apply_async((60,), deadline=4),
        "swallows it and returns late": tasks.swallow.apply_async((4.5,), deadline=4),
        "inside a driver written in C": tasks.sleep_in_the_database.apply_async((postgres_url, 60), deadline=4),
    }

    runs = scene.ended(*ids(limited), *ids(late.values()))
    assert shape(runs[0]) == (*SUCCEEDED, 2, ["time_limit"])
    assert shape(runs[1]) == (*USED_UP, 2, ["time_limit"] * 2)
    assert {name: shape(run)[:3] for name, run in zip(late, runs[2:], strict=True)} == dict.fromkeys(late, (*LATE, 1))
    assert {name: _over(run) for name, run in zip(late, runs[2:], strict=True) if _over(run) > SOON} == {}
    assert {result.id: scene.bodies(result.id) for result in late.values()} == dict.fromkeys(ids(late.values()), 1)
    scene.ended(*(tasks.succeed.delay().id for _ in range(7)))
    assert worker.running


def test_a_frozen_child_of_a_living_worker_is_ended_at_its_deadline(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    for _ in range(2):
        scene.worker(concurrency=1)

    result = scene.tasks.stop_oneself.apply_async(("never",), deadline=5)

    [run] = scene.ended(result.id)
    assert shape(run)[:3] == (*LATE, 1)
    assert scene.bodies(result.id) == 1
    assert _over(run) <= SOON
    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(4)))


def test_hard_limits_that_meet_a_frozen_database_do_not_hold_the_worker_up(
    redis_url, own_database, private_postgres, fire
):
    scene = fire(broker_url=redis_url, guard_database_url=own_database)
    worker = scene.worker(concurrency=4)
    late = [scene.tasks.swallow.apply_async((60,), deadline=3) for _ in range(2)]
    killed = scene.tasks.hold.delay("never")
    scene.begun(*ids(late), killed.id)

    private_postgres.freeze()

    os.kill(scene.pid_of(killed.id), signal.SIGKILL)
    eventually(lambda: worker.log().count("hard time limit") == 2, within=20)
    for number in range(5):
        scene.tasks.unguarded.delay(number)
    eventually(lambda: len(scene.traces("unguarded")) == 5, within=20)
    private_postgres.thaw()
    assert {shape(run)[:3] for run in scene.ended(*ids(late))} == {(*LATE, 1)}
    scene.becomes(killed.id, "running", 2)
    scene.open_gate("never")
    assert scene.ends(killed.id) == [(*SUCCEEDED, 2)]


def test_a_long_body_is_left_alone_beside_one_that_exceeds_its_own_limit(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    for _ in range(2):
        scene.worker(concurrency=1)

    lasting = scene.tasks.last.delay(9)  # longer than rescue_after, and without a limit of its own
    brief = scene.tasks.exceed_its_time_limit.apply_async((99,), max_attempts=1)

    runs = scene.ended(lasting.id, brief.id)
    assert [shape(run) for run in runs] == [(*SUCCEEDED, 1, []), (*USED_UP, 1, ["time_limit"])]
    assert scene.bodies(lasting.id) == 1


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo"])
def test_a_pool_without_limits_ends_the_run_and_refuses_what_comes_late(redis_url, postgres_url, fire, pool):
    _skip_without(pool)
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    scene.worker(pool=pool, concurrency=3)

    late = scene.tasks.swallow.apply_async((7,), deadline=2)
    [run] = scene.ended(late.id)

    assert shape(run)[:3] == (*LATE, 1)
    assert _over(run) <= SOON
    eventually(lambda: scene.traces("end", late.id) != [], within=20)
    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(3)))
    assert scene.run(late.id) == run
    assert scene.bodies(late.id) == 1


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_greenlet_that_never_yields_is_ended_by_another_worker(redis_url, postgres_url, fire, pool):
    _skip_without(pool)
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, guard_rescue_after=60)
    scene.worker(pool=pool, concurrency=3)
    other = scene.worker(queues=["another"], concurrency=1)

    late = scene.tasks.keep_the_interpreter.apply_async((15,), deadline=5)  # its whole worker stands still

    eventually(lambda: f"keep_the_interpreter[{late.id}] dead" in other.log(), within=60)
    run = scene.run(late.id)
    assert shape(run)[:3] == (*LATE, 1)
    scene.ended(*(scene.tasks.succeed.delay().id for _ in range(3)))
    assert scene.run(late.id).finished_at == run.finished_at
    assert scene.bodies(late.id) == 1


def test_a_thread_in_plain_python_is_stopped_at_its_deadline(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    scene.worker(pool="threads", concurrency=2)

    late = scene.tasks.last.apply_async((60,), deadline=2)

    [run] = scene.ended(late.id)
    assert shape(run)[:3] == (*LATE, 1)
    assert [trace["error"] for trace in scene.traces("end", late.id)] == ["SoftTimeLimitExceeded"]


def test_neither_retries_nor_a_rescue_move_the_deadline(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, guard_backoff_base=1, guard_backoff_cap=1)
    doomed = scene.worker()
    result = scene.tasks.fail_until.apply_async((99,), deadline=25, max_attempts=99)
    hung = scene.tasks.last.apply_async((60,), deadline=25, max_attempts=99)
    deadlines = [scene.run(run_id).deadline_at for run_id in (result.id, hung.id)]
    scene.begun(result.id, times=2)
    scene.begun(hung.id)

    scene.worker()
    doomed.kill()

    runs = scene.ended(result.id, hung.id)
    assert [shape(run)[:2] for run in runs] == [LATE, LATE]
    assert all(run.attempt >= 2 for run in runs)
    assert [run.deadline_at for run in runs] == deadlines
    assert all(_over(run) <= SOON for run in runs)


def test_the_time_in_the_queue_counts_and_a_backoff_past_the_deadline_is_not_waited_for(redis_url, postgres_url, fire):
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url)
    queued = [scene.tasks.succeed.apply_async(deadline=1.5) for _ in range(3)]
    eventually(lambda: scene.rows("id", "deadline_at < clock_timestamp()") != [] and len(queued) == 3)

    scene.worker()

    assert scene.ends(*ids(queued)) == [(*LATE, 0)] * 3
    assert scene.traces("begin") == []
    assert all(_over(run) < 30 for run in scene.ended(*ids(queued)))
    assert scene.depth() == 0
    hopeless = scene.tasks.fail_until.apply_async((99, 60), deadline=30)
    [run] = scene.ended(hopeless.id)
    assert shape(run)[:3] == (*LATE, 1)
    assert (run.finished_at - run.created_at).total_seconds() < 15


EXPIRES = {
    "whole seconds": lambda now: 60,
    "a fraction": lambda now: 60.5,
    "aware": lambda now: now + timedelta(seconds=60),
    "aware, elsewhere": lambda now: (now + timedelta(seconds=60)).astimezone(timezone(timedelta(hours=5, minutes=45))),
    "naive, in the app's zone": lambda now: (now + timedelta(seconds=60)).replace(tzinfo=None),
    "text": lambda now: (now + timedelta(seconds=60)).isoformat(),
    "naive text": lambda now: (now + timedelta(seconds=60)).replace(tzinfo=None).isoformat(),
}


def test_every_kind_of_expires_survives_a_retry_and_narrows_the_deadline(broker_url, postgres_url, fire):
    scene = fire(broker_url=broker_url, guard_database_url=postgres_url)
    scene.worker()
    now = datetime.now(timezone.utc)

    results = [scene.tasks.fail_until.apply_async((2,), expires=make(now)) for make in EXPIRES.values()]
    brief = scene.tasks.fail_until.apply_async((2, 60), expires=20)

    runs = scene.ended(*ids(results))
    assert [shape(run)[:3] for run in runs] == [(*SUCCEEDED, 2)] * len(EXPIRES)
    assert all(abs((run.deadline_at - now).total_seconds() - 60) < 10 for run in runs)
    assert scene.ends(brief.id) == [(*LATE, 1)]
    for past in (now - timedelta(seconds=60), (now - timedelta(seconds=60)).isoformat()):
        with pytest.raises(DeadlineExceeded):
            scene.tasks.succeed.apply_async(expires=past)


def test_time_zones_of_server_worker_and_app_do_not_move_a_moment(redis_url, postgres_url, postgres_server, fire):
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET timezone TO 'Asia/Tokyo'")
    scene = fire(broker_url=redis_url, guard_database_url=postgres_url, enable_utc=False, timezone="America/Phoenix")
    scene.worker(env={"TZ": "America/St_Johns"})
    moment = datetime.now(timezone.utc) + timedelta(seconds=40)
    given = [40, timedelta(seconds=40), moment, moment.astimezone(timezone(timedelta(hours=2)))]

    results = [scene.tasks.fail_until.apply_async((2, 1), deadline=deadline) for deadline in given]
    delayed = scene.tasks.succeed.apply_async(eta=datetime.now(timezone.utc) + timedelta(seconds=2))

    runs = scene.ended(*ids(results), delayed.id)
    assert [shape(run)[:3] for run in runs] == [(*SUCCEEDED, 2)] * 4 + [(*SUCCEEDED, 1)]
    assert all(abs((run.deadline_at - moment).total_seconds()) < 5 for run in runs[:4])
    waits = [(run.started_at - run.attempts[0].finished_at).total_seconds() for run in runs[:4]]
    assert all(0.9 < wait < 8 for wait in waits)
    assert 1.5 < (runs[4].started_at - runs[4].created_at).total_seconds() < 8
