"""Steps, looks at the run and its completion, awaited in a coroutine."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from celery_guard import (
    DeadlineExceeded,
    InvalidOption,
    RetryableError,
    RunCancelled,
    State,
    StepReused,
    UnserializableArgument,
    cancel,
    current_run,
)


@pytest.fixture
def make_task(any_shop):
    """Make a task of a coroutine function that gets its run."""

    def make(body, **options):
        @any_shop.app.task(name="work", **options)
        async def work():
            return await body(current_run())

        return work

    return make


@pytest.fixture
def done():
    """What steps did, in order."""
    return []


# Steps


def test_a_step_is_done_once_over_all_attempts(make_task, done):
    async def charge(order_id, cents):
        await asyncio.sleep(0)
        done.append(order_id)
        return {"cents": cents}

    async def body(run):
        found = await run.step_async("charge", charge, 7, cents=129)
        if run.attempt < 3:
            raise RetryableError("the carrier is busy")
        return found

    assert make_task(body).apply().get() == {"cents": 129}
    assert done == [7]


def test_the_work_of_a_step_may_be_a_plain_function(make_task):
    async def body(run):
        return await run.step_async("sum", sum, [1, 2])

    assert make_task(body).apply().get() == 3


def test_steps_may_run_side_by_side(make_task, done):
    async def work(number):
        await asyncio.sleep(0)
        done.append(number)
        return number

    async def body(run):
        found = await asyncio.gather(*(run.step_async(f"step {number}", work, number) for number in range(20)))
        if run.attempt == 1:
            raise RetryableError("again")
        return found

    assert make_task(body).apply().get() == list(range(20))
    assert sorted(done) == list(range(20))


def test_a_name_is_used_once_even_side_by_side(make_task):
    async def body(run):
        work = [run.step_async("same", asyncio.sleep, 0) for _ in range(2)]
        return [type(found) for found in await asyncio.gather(*work, return_exceptions=True)] == [
            type(None),
            StepReused,
        ]

    assert make_task(body).apply().get() is True


def test_a_result_that_is_not_json_is_refused(make_task, any_shop):
    async def body(run):
        await run.step_async("object", object)

    result = make_task(body).apply()

    assert isinstance(result.result, UnserializableArgument)


def test_a_plain_step_does_not_take_a_coroutine_for_a_result(make_task, done):
    async def body(run):
        with pytest.raises(InvalidOption, match=r"'charge' is a coroutine: await step_async\('charge'"):
            run.step("charge", asyncio.sleep, 0)
        done.append("told")

    make_task(body).apply()

    assert done == ["told"]


def test_a_piece_is_cancelled_at_its_own_deadline(make_task, any_shop, done):
    async def work():
        done.append(current_run().timeout() <= 0.2)
        try:
            await asyncio.sleep(600)
        finally:
            done.append("cleaned up")

    async def body(run):
        if run.attempt == 1:
            await run.step_async("slow", work, deadline=0.2)
        return run.timeout() > 60

    assert make_task(body).apply().get() is True
    assert done == [True, "cleaned up"]
    assert any_shop.one().attempts[0].error_type == "TimeoutError"


def test_a_step_past_the_deadline_is_not_begun(make_task, any_shop, done):
    async def body(run):
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            with pytest.raises(DeadlineExceeded):
                await run.step_async("late", done.append, 1)

    make_task(body).apply(deadline=0.3)

    assert done == []


def test_a_run_that_was_cancelled_stores_no_more_steps(make_task, any_shop, done):
    async def body(run):
        await asyncio.to_thread(cancel, run.id, app=any_shop.app)
        with pytest.raises(RunCancelled):
            await run.check_async()
        with pytest.raises(RunCancelled, match="was not stored"):
            await run.step_async("late", done.append, 1)
        done.append("told")

    make_task(body).apply()

    assert done == [1, "told"]
    assert any_shop.one().state is State.CANCELLED


def test_the_loop_goes_on_while_the_store_takes_its_time(make_task, any_shop, monkeypatch):
    inner, release = any_shop.guard.effects.find, threading.Event()

    def slow(*args):
        assert release.wait(60)
        return inner(*args)

    monkeypatch.setattr(any_shop.guard.effects, "find", slow)

    async def body(run):
        asyncio.get_running_loop().call_soon(release.set)  # only a loop that is not blocked gets here
        return await run.step_async("slow", sum, [1, 2])

    assert make_task(body).apply().get() == 3


# In a transaction of the body's


@pytest.fixture(params=["asyncpg", "psycopg"])
def ledger(request, open_shop, postgres_url):
    """An app, and an asynchronous engine on its database, where a table of the application's is."""
    pytest.importorskip(request.param)
    shop = open_shop(url=postgres_url)
    shop.guard.runs.clock()
    shop.sql("CREATE TABLE IF NOT EXISTS booking (run text)")
    engine = create_async_engine(make_url(postgres_url).set(drivername=f"postgresql+{request.param}"))
    yield shop, engine
    shop.sql("DROP TABLE booking")


def _task(shop, engine, body):
    @shop.app.task(name="work")
    async def work():
        try:
            async with AsyncSession(engine) as session:
                return await body(current_run(), session)
        finally:
            await engine.dispose()

    return work


async def _book(session):
    await session.execute(text("INSERT INTO booking VALUES (:run)"), {"run": current_run().id})
    return "booked"


def test_a_step_commits_together_with_what_its_work_wrote(ledger):
    shop, engine = ledger

    async def body(run, session):
        found = await run.step_async("book", _book, session, session=session)
        if run.attempt == 1:
            await session.rollback()
            raise RetryableError("again")
        await session.commit()
        if run.attempt == 2:
            raise RetryableError("and again")
        return found

    result = _task(shop, engine, body).apply()

    assert result.get() == "booked"
    assert shop.sql("SELECT run FROM booking") == [(result.id,)]


def test_a_run_is_completed_in_the_transaction_of_an_asynchronous_session(ledger):
    shop, engine = ledger

    async def body(run, session):
        await _book(session)
        await run.complete_in_async(session, "done")
        await session.commit()
        raise RuntimeError("after the commit")

    result = _task(shop, engine, body).apply()

    assert result.get() == "done"
    assert (shop.one().state, shop.one().attempt) == (State.SUCCEEDED, 1)
    assert shop.sql("SELECT run FROM booking") == [(result.id,)]


def test_a_completion_that_is_rolled_back_is_none(ledger):
    shop, engine = ledger

    async def body(run, session):
        await _book(session)
        if run.attempt == 1:
            await run.complete_in_async(session, "done")
            await session.rollback()
            raise RetryableError("again")
        await session.commit()
        return "second"

    result = _task(shop, engine, body).apply()

    assert result.get() == "second"
    assert len(shop.sql("SELECT run FROM booking")) == 1


def test_each_kind_of_session_is_refused_where_the_other_belongs(ledger, postgres_url):
    shop, engine = ledger
    plain = create_engine(postgres_url)

    async def body(run, session):
        with pytest.raises(InvalidOption, match="await submit_async, step_async or complete_in_async"):
            run.complete_in(session)
        with Session(plain) as other:
            with pytest.raises(InvalidOption, match="AsyncSession or AsyncConnection here, not Session"):
                await run.complete_in_async(other)
            with pytest.raises(InvalidOption, match="not Session"):
                await run.step_async("sum", sum, [1], session=other)

    _task(shop, engine, body).apply(throw=True)
    plain.dispose()


def test_what_a_coroutine_submits_is_its_child(make_task, any_shop):
    @any_shop.app.task(name="child")
    def child():
        """Be submitted."""

    async def body(run):
        return [child.delay().id, (await child.submit_async()).id, (await asyncio.to_thread(child.delay)).id]

    result = make_task(body).apply(deadline=600, meta={"user": "ada"})

    children = [any_shop.run(run_id) for run_id in result.get()]
    parent = any_shop.run(result.id)
    assert [(run.parent_id, run.root_id, run.meta) for run in children] == [(result.id, result.id, {"user": "ada"})] * 3
    assert {run.deadline_at for run in children} == {parent.deadline_at}
