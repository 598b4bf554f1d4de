"""One loop per thread from run to run, and nothing on it of the run before."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from contextvars import ContextVar

import pytest
from billiard.pool import soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded

from celery_guard import DeadlineExceeded, RetryableError, Snooze, State, current_run
from celery_guard.flow import eventloop, softlimit
from tests.infra.tracer import in_hand


@pytest.fixture
def loops(shop):
    """A task that says which loop it runs on."""

    @shop.app.task
    async def loops():
        return id(asyncio.get_running_loop())

    return loops


@pytest.fixture
def impatient(open_shop):
    """An app whose coroutines get little time to end."""
    return open_shop(guard_deadline_grace=0.2)


# The loop


def test_runs_in_one_thread_share_a_loop(loops):
    assert loops.apply().get() == loops.apply().get()


def test_an_unused_client_made_in_one_run_serves_the_next(shop):
    client = []

    @shop.app.task
    async def use():
        if not client:
            client.append(await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(*client[0].sockets[0].getsockname())
        try:
            return (await reader.read()).decode()
        finally:
            writer.close()
            await writer.wait_closed()

    @shop.app.task
    async def close():
        client.pop().close()

    assert [use.apply().get(), use.apply().get()] == ["", ""]
    close.apply()


def test_each_thread_has_a_loop_of_its_own_which_is_closed_with_it(shop, loops):
    seen = []

    @shop.app.task
    async def keep():
        seen.append(asyncio.get_running_loop())

    def work():
        keep.apply()
        keep.apply()
        assert not seen[-1].is_closed()

    thread = threading.Thread(target=work)
    keep.apply()
    thread.start()
    thread.join()

    here, there, again = seen
    assert there is again is not here
    assert (here.is_closed(), there.is_closed()) == (False, True)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_gets_a_loop_of_its_own_and_leaves_the_parents_alone(shop):
    async def answer(value):
        await asyncio.sleep(0)
        return value, id(asyncio.get_running_loop())

    def run(value):
        return eventloop.run_to_its_end(answer(value), name="test", token="t", seconds=60, grace=1)

    before = run(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            value, loop = run(2)
            os.write(write, b"own" if value == 2 and loop != before[1] else b"shared")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)

    assert os.read(read, 10) == b"own"
    os.close(read)

    async def woken():
        return await asyncio.to_thread(lambda: 3)  # its end wakes the selector up

    assert eventloop.run_to_its_end(woken(), name="test", token="t", seconds=60, grace=1) == 3
    assert run(1) == before


# What a run leaves


crumb: ContextVar[str] = ContextVar("crumb", default="")


def test_context_handlers_and_factories_are_those_before_the_run(shop):
    found = []

    @shop.app.task
    async def litter():
        loop = asyncio.get_running_loop()
        found.append((crumb.get(), loop.get_exception_handler(), loop.get_task_factory()))
        crumb.set("left")
        loop.set_exception_handler(lambda loop, context: None)
        loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))

    litter.apply()
    litter.apply()

    assert found == [("", None, None)] * 2
    assert crumb.get() == ""


def test_tasks_left_behind_are_cancelled_and_named(shop, caplog):
    ended = []

    async def tick():
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append(current_run().id)

    @shop.app.task
    async def leave():
        ticking = [asyncio.create_task(tick(), name=f"tick {number}") for number in range(2)]
        await asyncio.sleep(0)
        return len(ticking)

    result = leave.apply()

    assert result.get() == 2
    assert ended == [result.id] * 2
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert f"{leave.name}[{result.id}] left 2 tasks behind, which are cancelled: tick 0 (" in said[0]


@pytest.mark.parametrize("error", [ValueError("no"), RetryableError("busy"), Snooze(1), SystemExit(3)], ids=type)
def test_tasks_left_behind_by_a_failure_are_cancelled_too(shop, error):
    ended = []

    async def tick():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    @shop.app.task(raising=[error])
    async def leave():
        leave.ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        if leave.raising:
            raise leave.raising.pop()

    leave.apply(max_attempts=2)

    assert len(ended) == (1 if isinstance(error, ValueError) else 2)


def test_an_asynchronous_generator_that_was_not_exhausted_is_closed_within_the_run(shop):
    closed = []

    async def rows():
        try:
            for number in range(9):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(current_run().id)

    @shop.app.task
    async def first():
        async for number in rows():
            return number

    result = first.apply()

    assert closed == [result.id]


def test_a_task_left_behind_that_does_not_end_costs_the_loop_and_not_the_run(impatient, caplog):
    async def cling():
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                continue

    @impatient.app.task
    async def work(leave):
        if leave:
            work.clinging = asyncio.create_task(cling())
            await asyncio.sleep(0)
        return id(asyncio.get_running_loop()), len(asyncio.all_tasks())

    before, during, after = (work.apply((leave,)).get() for leave in (False, True, False))

    assert during == (before[0], 2)
    assert after[1] == 1
    assert "does not end; its event loop is given up" in caplog.text


# Being stopped


def test_the_deadline_cancels_and_what_comes_after_it_is_late(shop):
    seen = []

    @shop.app.task
    async def work():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0.01)
            seen.append("cleaned up")

    result = work.apply(deadline=0.3)

    assert isinstance(result.result, DeadlineExceeded)
    assert seen == ["cancelled", "cleaned up"]
    assert shop.one().last_error == "SoftTimeLimitExceeded: stopped at the deadline"


def test_a_swallowed_cancellation_is_a_late_success_which_is_none(shop):
    @shop.app.task
    async def work():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "done"

    result = work.apply(deadline=0.3)

    assert isinstance(result.result, DeadlineExceeded)
    assert (shop.one().state, shop.one().last_error) == (State.DEAD, None)


def test_a_coroutine_that_never_gives_in_is_left_where_it_is(impatient):
    asked = []

    @impatient.app.task
    async def cling():
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                asked.append(True)

    @impatient.app.task
    async def work():
        return len(asyncio.all_tasks())

    result = cling.apply(deadline=0.3)

    assert isinstance(result.result, DeadlineExceeded)
    assert asked
    assert work.apply().get() == 1


@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
def test_celerys_limits_cancel_where_nobody_else_watches_them(shop, limit):
    @shop.app.task(**{limit: 0.1}, max_attempts=1)
    async def work():
        await asyncio.sleep(600)

    work.apply()

    assert shop.one().attempts[0].error == "stopped at the soft time limit"


def test_a_soft_limit_may_be_answered(shop):
    @shop.app.task(soft_time_limit=0.1)
    async def work():
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "what there is"

    assert work.apply().get() == "what there is"


def test_autoretry_sees_a_limit_as_the_exception_that_a_plain_body_gets(shop):
    @shop.app.task(soft_time_limit=0.1, autoretry_for=(SoftTimeLimitExceeded,), retry_kwargs={"countdown": 0})
    async def work():
        if current_run().attempt == 1:
            await asyncio.sleep(600)
        return "done"

    assert work.apply().get() == "done"
    assert [attempt.rule for attempt in shop.one().attempts] == ["celery_retry"]


def test_a_body_that_cancels_itself_was_not_stopped(shop):
    @shop.app.task
    async def work():
        raise asyncio.CancelledError

    work.apply(max_attempts=1)

    assert shop.one().attempts[0].error_type == "CancelledError"


def test_a_body_that_stops_the_loop_has_failed_and_the_next_one_runs(shop, loops):
    before = loops.apply().get()

    @shop.app.task
    async def work():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(600)

    work.apply(max_attempts=1)

    assert shop.rows()[1].attempts[0].error_type == "RuntimeError"
    assert loops.apply().get() == before


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal")
@pytest.mark.parametrize("times", [1, 20])
def test_a_soft_limit_that_hits_the_loop_anywhere_cancels_once_and_breaks_nothing(times, monkeypatch):
    caught = []

    async def work():
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            caught.append(True)
            raise

    async def answer():
        return "next"

    def run(coroutine):
        with in_hand() as traced:
            return softlimit.let_through(
                traced, lambda: eventloop.run_to_its_end(coroutine, name="test", token="t", seconds=60, grace=1)
            )

    monkeypatch.setattr(softlimit, "_pid", 0)
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    softlimit.answer()
    try:
        with pytest.raises(SoftTimeLimitExceeded):
            run(work())
        assert run(answer()) == "next"
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert caught == [True]
