"""Coroutines that end in every way there is, and say what they found when they began."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from celery_guard import RetryableError, Snooze, current_run
from tests.acceptance.apps.stage import FOLDER, new_app, note, noted

app = new_app("bodies")

#: What a run leaves in its context; the next one must not find it.
crumb: ContextVar[str | None] = ContextVar("crumb", default=None)


class Refused(Exception):
    """Permanent: a repeat can't help."""


@contextmanager
def coroutine():
    """Note that a coroutine begins, what it finds here that is not its own, and that and how it ends."""
    with noted() as run:
        loop = asyncio.get_running_loop()
        others = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        note(
            "found",
            run.id,
            loop=f"{os.getpid()}-{threading.get_ident()}-{id(loop)}",
            others=others,
            crumb=crumb.get(),
            handler=loop.get_exception_handler() is not None,
        )
        crumb.set(run.id)
        loop.set_exception_handler(lambda loop, context: None)
        yield run


@app.task
async def succeed(value=None):
    with coroutine() as run:
        seen = await asyncio.gather(_seen_by_a_child(), asyncio.to_thread(lambda: current_run().id))
        assert set(seen) == {run.id}
        return value


async def _seen_by_a_child():
    await asyncio.sleep(0)
    return current_run().id


@app.task
async def succeed_at(attempt):
    with coroutine() as run:
        await asyncio.sleep(0)
        if run.attempt < attempt:
            raise RetryableError(f"attempt {run.attempt}")
        return run.attempt


@app.task(non_retryable=(Refused,))
async def refuse():
    with coroutine():
        await asyncio.sleep(0.01)
        raise Refused("no")


@app.task
async def snooze_once():
    """Ask to be run later, the first time."""
    with coroutine() as run:
        slept = Path(os.environ[FOLDER], f"slept-{run.id}")
        if not slept.exists():
            slept.touch()
            raise Snooze(0.1)
        return "awake"


@app.task
async def leave_children():
    """Return while children run: one that lets itself be cancelled, one that takes a moment to end."""
    with coroutine() as run:
        _children = [asyncio.create_task(_child(run.id, to_end)) for to_end in (0, 0.05)]
        await asyncio.sleep(0.01)
        return len(_children)


async def _child(run_id, to_end):
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(to_end)
        note("child ended", run_id, of=current_run().id)


@app.task
async def cancel_oneself():
    with coroutine():
        asyncio.current_task().cancel()
        await asyncio.sleep(600)


@app.task(soft_time_limit=0.3)
async def exceed_the_soft_limit():
    with coroutine():
        await asyncio.sleep(600)


@app.task
async def oversleep(seconds=600):
    """Sleep past the deadline, and clean up."""
    with coroutine() as run:
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(0.05)
            note("cleaned up", run.id)


@app.task
async def swallow(seconds):
    """Go on for some time after each request to stop."""
    with coroutine():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return "late"


@app.task
async def block(seconds=600):
    """Keep the event loop from running."""
    with coroutine():
        time.sleep(seconds)


@app.task
async def hold(gate):
    """Wait for the test, looking at the run now and then."""
    with coroutine() as run:
        while not Path(os.environ[FOLDER], f"gate-{gate}").exists():
            await run.check_async()
            await asyncio.sleep(0.05)
        return "through"


@app.task
async def wait_for_ever():
    with coroutine():
        await asyncio.Event().wait()
