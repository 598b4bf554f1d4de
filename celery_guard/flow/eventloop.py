"""One event loop per thread, kept from run to run, and one coroutine on it from its start to its end.

What lives as long as the loop, such as a client and its pool of connections, serves later runs too. The tasks that a
coroutine starts end with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_guard.flow import softlimit
from celery_guard.observe.logs import logger

__all__ = ["run_to_its_end", "stop"]


class _Home:
    """A loop, and the process that it belongs to."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.close = weakref.finalize(self, _close, self.loop, self.pid)


def _close(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """Close a loop. A fork's copy is kept as it is: both share the selector, so the parent would hear no more."""
    if os.getpid() == pid:
        loop.close()
    else:
        _inherited.append(loop)


_inherited: list[asyncio.AbstractEventLoop] = []
_here = threading.local()

#: The coroutines that run in this process, by the token of their claim.
_running: dict[str, _Execution] = {}


def run_to_its_end(awaitable: Awaitable[Any], *, name: str, token: str, seconds: float, grace: float) -> Any:
    """Run a coroutine on this thread's loop, and leave nothing behind that it started.

    Args:
        name: what the log calls it.
        token: what :func:`stop` calls it.
        seconds: after how long it is cancelled.
        grace: how long it may go on then, in seconds, where no process is killed; and how long what it leaves behind
            may take to end.

    Raises:
        SoftTimeLimitExceeded: it was cancelled by the limit or by :func:`stop`.
    """
    home: _Home | None = getattr(_here, "home", None)
    if home is None or home.pid != os.getpid():
        home = _here.home = _Home()
    execution = _running[token] = _Execution(home.loop, awaitable, name, grace)
    try:
        with softlimit.calls(execution.stop_soon) as is_killed_in_the_end:
            return execution.run(seconds, gives_up=not is_killed_in_the_end)
    finally:
        del _running[token]
        if not execution.is_over:
            logger.error("%s does not end; its event loop is given up", name)
            _here.home = None
            home.close()


def stop(token: str) -> bool:
    """Cancel a coroutine of this process, from another thread; return whether it had not been asked to stop before."""
    execution = _running.get(token)
    if execution is None or execution.stopped:
        return False
    execution.stop_soon()
    return True


class _Execution:
    """One coroutine on a loop, and how it is stopped: cancelled once, and given up where nobody else ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any], name: str, grace: float) -> None:
        self._loop = loop
        self._name = name
        self._grace = grace
        self._task = asyncio.ensure_future(awaitable, loop=loop)
        self._timers: list[asyncio.TimerHandle] = []
        self._gives_up = self._given_up = False
        self.stopped = False
        #: Whether nothing of it is left on the loop.
        self.is_over = False

    def run(self, seconds: float, *, gives_up: bool) -> Any:
        """Run it; cancel it after so many seconds, and leave it where it is when it outlives its grace, too."""
        self._gives_up = gives_up
        as_before = self._loop.get_exception_handler(), self._loop.get_task_factory()
        self._timers.append(self._loop.call_later(seconds, self._stop))
        try:
            return self._loop.run_until_complete(self._task)
        except (asyncio.CancelledError, RuntimeError) as error:
            if self._given_up or (self.stopped and isinstance(error, asyncio.CancelledError)):
                raise SoftTimeLimitExceeded from error
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
            self._loop.set_exception_handler(as_before[0])
            self._loop.set_task_factory(as_before[1])
            self.is_over = self._end_leftovers()

    def stop_soon(self) -> None:
        """Cancel it, from any thread and from a signal handler."""
        with suppress(RuntimeError):  # the loop is closed: it is over
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self.stopped or self._task.done():
            return
        self.stopped = True
        self._task.cancel()
        if self._gives_up:
            self._timers.append(self._loop.call_later(self._grace, self._give_up))

    def _give_up(self) -> None:
        self._given_up = True
        self._loop.stop()

    def _end_leftovers(self) -> bool:
        """Cancel the tasks that it started and did not wait for; return whether all have ended."""
        left = [task for task in asyncio.all_tasks(self._loop) if not _closes_a_generator(task)]
        if left and not self._given_up:
            logger.warning("%s left %d tasks behind, which are cancelled: %s", self._name, len(left), _names(left))
        for task in left:
            task.cancel()
        return self._loop.run_until_complete(_until_quiet(0.0 if self._given_up else self._grace))


async def _until_quiet(patience: float) -> bool:
    """Wait until no other task is left on this loop, those included that end others; return whether that came about."""
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        if loop.time() >= until:
            return False
        await asyncio.wait(others, timeout=until - loop.time())
    return True


def _closes_a_generator(task: asyncio.Task[Any]) -> bool:
    """Whether the loop itself made this task, to let a generator that was not exhausted clean up."""
    return type(task.get_coro()).__name__ == "async_generator_athrow"


def _names(tasks: Iterable[asyncio.Task[Any]]) -> str:
    names = sorted(f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in tasks)
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
