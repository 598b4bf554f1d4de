"""Many submit one key at once: one run, and everybody holds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_guard import IdempotencyConflict, NonRetryableError
from celery_guard.flow.sweep import Sweeper
from tests.infra.polling import eventually
from tests.infra.processes import ROOT

MANY = 50


def at_once(work, count=MANY):
    """Call work(number) in so many threads at the same moment; return the answers or the errors."""
    barrier = threading.Barrier(count)

    def one(number):
        barrier.wait(30)
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_fifty_threads_with_one_key_make_one_run(ship, any_shop):
    results = at_once(lambda _: ship.apply_async((7,), idempotency_key="order-7"))

    assert len({result.id for result in results}) == 1
    assert [result.created for result in results].count(True) == 1
    assert len(any_shop.rows()) == len(any_shop.messages()) == 1


def test_fifty_threads_with_one_key_and_other_requests_have_one_winner(ship, any_shop):
    results = at_once(lambda number: ship.apply_async((number,), idempotency_key="order-7"))

    conflicts = [result for result in results if isinstance(result, IdempotencyConflict)]
    assert len(conflicts) == MANY - 1
    assert len(any_shop.rows()) == len(any_shop.messages()) == 1


SUBMIT = """
import json, sys
from celery import Celery
from celery_guard import GuardedTask
app = Celery("shop", broker="memory://", task_cls=GuardedTask)
app.conf.guard_database_url = sys.argv[1]

@app.task(name="ship")
def ship(order_id, tags=None):
    return order_id

ship.app.finalize()
print("ready", flush=True)
sys.stdin.readline()
found = [ship.apply_async((7,), {"tags": {"x": 1, "y": [2]}}, idempotency_key=f"order-{n}") for n in range(10)]
print(json.dumps([(run.id, run.created) for run in found]))
"""


def test_five_processes_with_ten_keys_make_ten_runs_whatever_their_hash_seed(any_shop):
    any_shop.guard.runs.clock()
    url = any_shop.guard.settings.database_url
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SUBMIT, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            text=True,
        )
        for seed in range(5)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    assert len({json.dumps([run_id for run_id, _ in answer]) for answer in answers}) == 1
    assert sum(created for answer in answers for _, created in answer) == 10


@pytest.fixture
def second_once(open_shop, postgres_url):
    """Submit in a transaction, and meanwhile a second time; end the transaction; return both results and the shop."""

    def race(end):
        shop = open_shop(url=postgres_url)

        @shop.app.task
        def ship(order_id):
            return order_id

        engine = create_engine(postgres_url)
        with Session(engine) as session, ThreadPoolExecutor(1) as pool:
            winner = ship.apply_async((7,), idempotency_key="order-7", session=session)
            waiting = pool.submit(ship.apply_async, (7,), idempotency_key="order-7")
            _until_one_waits(shop)
            end(session)
            second = waiting.result(30)
        engine.dispose()
        return winner, second, shop

    return race


def test_a_submitter_whose_winner_rolls_back_gets_a_run_of_its_own(second_once):
    winner, own, shop = second_once(Session.rollback)

    assert own.created
    assert own.id != winner.id
    assert [run.id for run in shop.rows()] == [own.id]


def test_a_submitter_whose_winner_commits_gets_the_winners_run(second_once):
    winner, found, _ = second_once(Session.commit)

    assert (found.id, found.created) == (winner.id, False)


def _until_one_waits(shop):
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    eventually(lambda: shop.sql(waiting) == [(1,)])


def test_many_that_start_a_key_anew_make_one_new_run(any_shop):
    plan = {"fails": True}

    @any_shop.app.task(idempotency_rerun_after={"failed"})
    def ship(order_id):
        if plan["fails"]:
            raise NonRetryableError("no")

    first = ship.apply_async((7,), idempotency_key="order-7")
    any_shop.work()
    plan["fails"] = False

    results = at_once(lambda _: ship.apply_async((7,), idempotency_key="order-7"), 20)

    (new,) = {result.id for result in results}
    assert any_shop.run(new).redrive_of == first.id
    assert len(any_shop.rows()) == 2


def test_many_that_find_a_key_which_has_outlived_its_run_make_one_new_run(ship, any_shop):
    first = ship.apply_async((7,), idempotency_key="order-7")
    any_shop.work()
    any_shop.clock.advance(90_000)

    results = at_once(lambda _: ship.apply_async((8,), idempotency_key="order-7"), 20)

    (new,) = {result.id for result in results}
    assert new != first.id
    assert len(any_shop.rows()) == 2


def test_submitting_a_key_while_its_old_run_is_pruned_makes_one_run(ship, any_shop):
    ship.apply_async((7,), idempotency_key="order-7")
    any_shop.work()
    any_shop.clock.advance(31 * 86_400)

    def both(number):
        if number % 4:
            return ship.apply_async((7,), idempotency_key="order-7")
        sweeper = Sweeper(any_shop.guard)
        return [sweeper.prune() for _ in range(4)] and None

    results = [result for result in at_once(both, 20) if result is not None]

    (new,) = {result.id for result in results}
    assert [run.id for run in any_shop.rows() if run.state == "queued"] == [new]
