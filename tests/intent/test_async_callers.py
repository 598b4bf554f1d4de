"""Submitting from an event loop that must not be blocked."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from celery_guard import IdempotencyConflict, InvalidOption, RunNotFound
from celery_guard.flow import beside
from tests.infra.polling import eventually


@pytest.fixture
def postgres_ship(open_shop, postgres_url):
    shop = open_shop(url=postgres_url)

    @shop.app.task
    def ship(order_id):
        return order_id

    return shop, ship


@pytest.fixture(params=["asyncpg", "psycopg"])
def with_session(request, postgres_url):
    """Run a coroutine function with a session of each driver."""
    pytest.importorskip(request.param)

    def run(work):
        async def main():
            engine = create_async_engine(make_url(postgres_url).set(drivername=f"postgresql+{request.param}"))
            async with AsyncSession(engine) as session:
                try:
                    return await work(session)
                finally:
                    await session.close()
                    await engine.dispose()

        return asyncio.run(main())

    return run


def published(shop):
    """Wait until the thread beside the loop has published the one row, and noted it."""
    eventually(lambda: shop.sql("SELECT publishes FROM task_run") == [(1,)], within=60)


def test_a_submission_from_a_loop_is_a_submission(ship, any_shop):
    result = asyncio.run(ship.submit_async((7,), idempotency_key="order-7"))
    again = asyncio.run(ship.submit_async((7,), idempotency_key="order-7"))

    assert (result.created, again.created, again.id) == (True, False, result.id)
    assert any_shop.message().headers["id"] == result.id


def test_a_conflict_is_raised_to_the_awaiting_caller(ship):
    asyncio.run(ship.submit_async((7,), idempotency_key="order-7"))

    with pytest.raises(IdempotencyConflict):
        asyncio.run(ship.submit_async((8,), idempotency_key="order-7"))


def test_the_loop_goes_on_while_the_store_takes_its_time(ship, any_shop, monkeypatch):
    inner, release = any_shop.guard.runs.submit, threading.Event()

    def slow(run):
        assert release.wait(20)
        return inner(run)

    monkeypatch.setattr(any_shop.guard.runs, "submit", slow)

    async def main():
        pending = asyncio.ensure_future(ship.submit_async((7,)))
        await asyncio.sleep(0)
        loop.call_soon(release.set)  # only a loop that is not blocked gets here
        return await pending

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main()).created
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_the_loop_goes_on_while_the_broker_takes_its_time_after_the_commit(postgres_ship, with_session, monkeypatch):
    shop, ship = postgres_ship
    inner, release, threads = shop.app.send_task, threading.Event(), []

    def slow(*args, **kwargs):
        threads.append(threading.current_thread())
        assert release.wait(20)
        return inner(*args, **kwargs)

    monkeypatch.setattr(shop.app, "send_task", slow)

    async def work(session):
        await ship.submit_async((7,), session=session)
        await session.commit()
        release.set()  # only a loop that is not blocked gets here

    with_session(work)

    published(shop)
    assert threads[0] is not threading.main_thread()
    assert len(shop.messages()) == 1


def test_nothing_is_seen_before_the_commit_of_an_async_session(postgres_ship, with_session):
    shop, ship = postgres_ship

    async def work(session):
        result = await ship.submit_async((7,), session=session)
        with pytest.raises(RunNotFound):
            _ = result.run
        assert shop.messages() == []
        await session.commit()
        return result

    result = with_session(work)

    published(shop)
    assert shop.message().headers["id"] == result.id
    assert result.run.state == "queued"


def test_a_rollback_of_an_async_session_leaves_nothing(postgres_ship, with_session):
    shop, ship = postgres_ship

    async def work(session):
        await ship.submit_async((7,), session=session, idempotency_key="order-7")
        await session.rollback()

    with_session(work)

    assert shop.rows() == shop.messages() == []


def test_a_savepoint_of_an_async_session_rolls_back_alone(postgres_ship, with_session):
    shop, ship = postgres_ship

    async def work(session):
        outer = await ship.submit_async((1,), session=session)
        savepoint = await session.begin_nested()
        await ship.submit_async((2,), session=session)
        await savepoint.rollback()
        await session.commit()
        return outer

    outer = with_session(work)

    assert [run.id for run in shop.rows()] == [outer.id]
    published(shop)
    assert shop.message().headers["id"] == outer.id


def test_keys_countdowns_meta_and_deadlines_work_with_every_driver(postgres_ship, with_session):
    shop, ship = postgres_ship

    async def work(session):
        options = {"idempotency_key": "k", "meta": {"user": "ada"}, "deadline": 3_600, "countdown": 60}
        first = await ship.submit_async((7,), session=session, **options)
        again = await ship.submit_async((7,), session=session, **options)
        with pytest.raises(IdempotencyConflict):
            await ship.submit_async((8,), session=session, idempotency_key="k")
        await session.execute(text("SELECT 1"))
        await session.commit()
        return first, again

    first, again = with_session(work)

    assert (again.id, again.created) == (first.id, False)
    assert (first.run.meta, first.run.next_retry_at is not None) == ({"user": "ada"}, True)
    assert len(shop.rows()) == 1


def test_a_caller_that_does_not_wait_for_the_broker_has_its_run(ship, any_shop):
    result = ship.apply_async((7,), wait_for_broker=False)

    assert result.created
    assert result.run.state == "queued"
    published(any_shop)
    assert any_shop.message().headers["id"] == result.id


def test_a_broker_that_takes_its_time_keeps_no_caller_waiting_and_no_crowd_of_threads(ship, any_shop, monkeypatch):
    release, inner, threads = threading.Event(), any_shop.app.send_task, set()

    def slow(*args, **kwargs):
        threads.add(threading.current_thread())
        assert release.wait(60)
        return inner(*args, **kwargs)

    monkeypatch.setattr(any_shop.app, "send_task", slow)
    monkeypatch.setattr(beside, "_threads", beside._Threads(waiting=8))
    results = [ship.apply_async((n,), wait_for_broker=False) for n in range(20)]
    release.set()  # the callers are back, and none of them was published

    beside._threads.finish(within=60)
    ((left,),) = any_shop.sql("SELECT count(*) FROM task_run WHERE publishes = 0")
    assert 8 <= left <= 12  # four in hand, or not yet, and eight that wait
    assert len(threads) <= 4
    any_shop.clock.advance(60)
    any_shop.dispatch()
    assert {message.headers["id"] for message in any_shop.messages()} == {result.id for result in results}


def test_a_broker_that_has_just_failed_is_left_to_the_dispatcher(ship, any_shop, monkeypatch):
    tries, inner = [], any_shop.app.send_task

    def broken(*args, **kwargs):
        tries.append(kwargs["task_id"])
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(any_shop.app, "send_task", broken)
    first = ship.apply_async((1,))
    assert any_shop.guard.broker_failed_at is not None
    any_shop.guard.broker_failed_at = math.inf  # just now, however long this test takes
    threads = beside._Threads()
    monkeypatch.setattr(beside, "_threads", threads)
    second = ship.apply_async((2,), wait_for_broker=False)
    threads.finish(within=60)

    assert tries == [first.id]
    monkeypatch.setattr(any_shop.app, "send_task", inner)
    any_shop.clock.advance(60)
    any_shop.dispatch()
    assert {message.headers["id"] for message in any_shop.messages()} == {first.id, second.id}


def test_a_broker_that_works_again_is_used_again(ship, any_shop):
    any_shop.guard.broker_failed_at = 0.0

    ship.apply_async((1,))

    assert any_shop.guard.broker_failed_at is None


def test_an_async_session_given_to_a_blocking_call_is_refused_with_the_remedy(postgres_ship, with_session):
    _, ship = postgres_ship

    async def work(session):
        with pytest.raises(InvalidOption, match="await submit_async"):
            ship.apply_async((7,), session=session)

    with_session(work)


def test_a_hundred_submissions_at_once_are_a_hundred_runs(ship, any_shop):
    async def main():
        return await asyncio.gather(*(ship.submit_async((n,)) for n in range(100)))

    results = asyncio.run(main())

    assert len({result.id for result in results}) == len(any_shop.rows()) == 100
