"""Brokers that are down, silent or slow when somebody submits; callers that die between the row and the message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded

from celery_guard import submit_many
from tests.infra.processes import ROOT, free_port

#: The longest that a submission may take when the broker is away, in seconds: far more than it needs.
BOUND = 30


def within_bounds(work):
    """Do it in a thread; fail when it does not come back in time."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(BOUND)
    assert answers, f"still not back after {BOUND} s"
    return answers[0]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no such timer")
def test_a_soft_limit_that_comes_while_a_body_publishes_stops_the_body(open_shop, store_url, silent_port):
    shop = open_shop(url=store_url, broker=f"redis://localhost:{silent_port}/0")

    @shop.app.task
    def ship(order_id):
        return order_id

    def reach(number, frame):
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGALRM, reach)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(SoftTimeLimitExceeded):
            ship.apply_async((7,), task_id="run-1")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert shop.guard.runs.find("run-1").state == "queued"


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_submission_is_accepted_in_bounded_time_when_nobody_listens(open_shop, store_url, scheme):
    shop = open_shop(url=store_url, broker=f"{scheme}://localhost:{free_port()}//")

    @shop.app.task
    def ship(order_id):
        return order_id

    result = within_bounds(lambda: ship.delay(7))

    assert result.run.state == "queued"


@pytest.mark.parametrize(("scheme", "options"), [("redis", {"socket_timeout": 2}), ("amqp", {})])
def test_a_submission_is_accepted_in_bounded_time_when_the_broker_is_silent(
    open_shop, store_url, silent_port, scheme, options
):
    broker = f"{scheme}://localhost:{silent_port}//"
    shop = open_shop(url=store_url, broker=broker, broker_transport_options=options)

    @shop.app.task
    def ship(order_id):
        return order_id

    result = within_bounds(lambda: ship.delay(7))

    assert result.run.state == "queued"


def test_many_submissions_are_accepted_in_bounded_time_when_nobody_listens(open_shop, store_url):
    shop = open_shop(url=store_url, broker=f"redis://localhost:{free_port()}/0")

    @shop.app.task
    def ship(order_id):
        return order_id

    results = within_bounds(lambda: submit_many(ship, [(n,) for n in range(1_000)]))

    assert len(shop.sql("SELECT id FROM task_run WHERE publishes = 0")) == len(results) == 1_000


def test_what_was_accepted_without_a_broker_is_sent_once_it_is_back(open_shop, store_url, own_redis):
    own_redis.kill()
    shop = open_shop(url=store_url, broker=own_redis.url)

    @shop.app.task
    def ship(order_id):
        return order_id

    results = within_bounds(lambda: [ship.delay(n) for n in range(3)])
    own_redis.start()
    shop.clock.advance(2)
    shop.dispatch()

    assert {message.headers["id"] for message in shop.messages()} == {result.id for result in results}


def test_many_messages_that_the_broker_refuses_together_are_all_sent_later(open_shop, store_url, own_redis):
    shop = open_shop(url=store_url, broker=own_redis.url)

    @shop.app.task
    def ship(order_id):
        return order_id

    with redis.Redis.from_url(own_redis.url) as server:
        server.config_set("maxmemory", 1)
        results = submit_many(ship, [(n,) for n in range(30)])
        server.config_set("maxmemory", 0)
    shop.clock.advance(2)

    assert shop.dispatch() == 30
    assert {message.headers["id"] for message in shop.messages()} == {result.id for result in results}


def test_rows_that_the_broker_refuses_together_are_due_again_soon(open_shop, store_url, own_redis):
    shop = open_shop(url=store_url, broker=own_redis.url)

    @shop.app.task
    def ship(order_id):
        return order_id

    results = submit_many(ship, [(n,) for n in range(30)], countdown=10)
    shop.clock.advance(11)
    with redis.Redis.from_url(own_redis.url) as server:
        server.config_set("maxmemory", 1)
        shop.dispatch()
        server.config_set("maxmemory", 0)
    shop.clock.advance(3)
    shop.dispatch()

    assert {message.headers["id"] for message in shop.messages()} == {result.id for result in results}


def test_a_broker_that_went_down_between_two_submissions_loses_none(open_shop, store_url, own_redis):
    shop = open_shop(url=store_url, broker=own_redis.url)

    @shop.app.task
    def ship(order_id):
        return order_id

    ship.delay(1)
    own_redis.kill()
    second = within_bounds(lambda: ship.delay(2))
    own_redis.start()
    third = ship.delay(3)
    shop.clock.advance(2)
    shop.dispatch()

    assert {second.id, third.id} <= {message.headers["id"] for message in shop.messages()}


# On a real worker


@pytest.fixture(scope="module")
def stage(set_stage, redis_database, stage_database):
    stage = set_stage(broker_url=redis_database, result_backend=redis_database, guard_database_url=stage_database)
    stage.at_work = stage.worker(concurrency=2)
    return stage


DIE = """
import os, signal, sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
import tests.intent.apps.shop as shop

shop.app.send_task = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
with Session(create_engine(sys.argv[1])) as session:
    if sys.argv[2] == "before":
        from sqlalchemy import event
        event.listen(session, "before_commit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    print(shop.give.apply_async((7,), session=session, idempotency_key=sys.argv[3]).id, flush=True)
    session.commit()
"""


def _submit_and_die(url, when, key):
    process = subprocess.run(
        [sys.executable, "-c", DIE, url, when, key],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == -9, process.stderr
    return process.stdout.strip()


def test_a_caller_killed_between_commit_and_publishing_has_its_run_run_once(stage, stage_database):
    run_id = _submit_and_die(stage_database, "after", "killed-after")

    assert stage.ends(run_id) == [("succeeded", "succeeded", 1)]
    assert stage.bodies(run_id) == 1
    again = stage.tasks.give.apply_async((7,), idempotency_key="killed-after")
    assert (again.id, again.get(timeout=30)) == (run_id, 7)


def test_a_caller_killed_before_its_commit_leaves_nothing(stage, stage_database):
    run_id = _submit_and_die(stage_database, "before", "killed-before")

    assert stage.rows("id", f"id = '{run_id}'") == []
    assert stage.tasks.give.apply_async((7,), idempotency_key="killed-before").created


def test_three_posts_of_one_key_and_a_redelivered_message_are_one_body(stage):
    posts = [stage.tasks.give.apply_async((7, "posts"), idempotency_key="posts") for _ in range(3)]
    (run_id,) = {post.id for post in posts}
    for _ in range(3):
        header = {"v": 1, "id": run_id, "event": "republish"}
        stage.app.send_task(stage.tasks.give.name, (7, "posts"), task_id=run_id, headers={"guard": header})
    stage.open_gate("posts")

    assert stage.ends(run_id) == [("succeeded", "succeeded", 1)]
    assert stage.bodies(run_id) == 1
