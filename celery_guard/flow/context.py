"""Inside a body: which run this is, and how much time it has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, overload

from celery_guard.core.deadline import Deadline
from celery_guard.errors import DeadlineExceeded, RunCancelled
from celery_guard.flow.steps import run_step, run_step_async
from celery_guard.flow.tracer import tracing
from celery_guard.store.joined import in_async_session

if TYPE_CHECKING:
    from celery_guard.flow.held import Held

__all__ = [
    "Ancestor",
    "CurrentRun",
    "ancestor_of",
    "current_run",
    "entered",
    "running_here",
]

_current: ContextVar[CurrentRun | None] = ContextVar("celery_guard_current_run", default=None)

#: What a run without a deadline has: only a plain direct call is one.
_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class CurrentRun:
    """The run whose body is executing here. Moments are aware and in UTC, by the database's clock."""

    id: str
    type: str
    attempt: int = 1
    max_attempts: int = 1
    deadline_at: datetime = _NEVER
    #: Where the key is unique; None where the key is the run's id.
    idempotency_scope: str | None = None
    idempotency_key: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    parent_id: str | None = None
    root_id: str | None = None
    #: The hold on the row; None in a plain direct call.
    held: Held | None = field(default=None, repr=False)

    @property
    def is_last_attempt(self) -> bool:
        """Whether no attempt follows if this one fails."""
        return self.attempt >= self.max_attempts

    def now(self) -> datetime:
        """Return the moment by the database's clock."""
        return self.held.now() if self.held is not None else datetime.now(timezone.utc)

    def remaining(self) -> timedelta:
        """Return how long the run has left; never negative, ``timedelta.max`` in a plain direct call."""
        if self.deadline_at == _NEVER:
            return timedelta.max
        return max(self.deadline_at - self.now(), timedelta(0))

    @overload
    def timeout(self, at_most: float | timedelta) -> float: ...
    @overload
    def timeout(self, at_most: None = None) -> float | None: ...
    def timeout(self, at_most: float | timedelta | None = None) -> float | None:
        """Return a timeout in seconds for a call to somebody else: never longer than what is left.

        Args:
            at_most: the longest that the call may take by itself, in seconds or as a ``timedelta``.

        Raises:
            DeadlineExceeded: nothing is left.
        """
        wanted = at_most.total_seconds() if isinstance(at_most, timedelta) else at_most
        if self.deadline_at == _NEVER:
            return wanted
        left = self.remaining().total_seconds()
        if left <= 0:
            raise self._late()
        return left if wanted is None else min(left, wanted)

    def check(self) -> None:
        """Raise when there is no point in going on; costs one statement.

        Raises:
            DeadlineExceeded: the deadline has passed.
            RunCancelled: the run was cancelled, or is no longer this attempt's.
        """
        self._refuse_when_late()
        if self.held is not None and not self.held.still_holds():
            raise RunCancelled("cancelled", f"the run {self.id} was cancelled, or is no longer this attempt's")

    async def check_async(self) -> None:
        """Do what :meth:`check` does without blocking the event loop."""
        await asyncio.to_thread(self.check)

    def key_for(self, step: str) -> str:
        """Return a key for one step, the same in every attempt, for a provider that takes one."""
        whose = (self.idempotency_scope, self.idempotency_key, step)
        return ":".join(part for part in whose if part is not None)

    def step(
        self,
        name: str,
        work: Callable[..., Any],
        /,
        *args: Any,
        session: Any = None,
        deadline: float | timedelta | None = None,
        **kwargs: Any,
    ) -> Any:
        """Do a named piece of the run's work once: a later attempt gets its stored result without doing it again.

        Args:
            name: what the piece is called, once per attempt.
            work: what does it, called with the arguments; it returns JSON.
            session: a SQLAlchemy ``Session`` or ``Connection``: the record is written in its transaction, so that it
                commits together with what ``work`` wrote there.
            deadline: how long this piece may take, in seconds or as a ``timedelta``; ``current_run().timeout()`` inside
                of it is no longer than that.

        Raises:
            StepReused: this attempt has used the name before.
            UnserializableArgument: the result is not JSON.
            RunCancelled: the run is no longer this attempt's; nothing was stored.
            DeadlineExceeded: nothing is left of the run's time.
        """
        if self.held is None:  # a plain direct call: nothing is kept
            return work(*args, **kwargs)
        self._refuse_when_late()
        effects = self.held.effects_in(session) if session is not None else None
        with entered(self._narrowed_to(deadline)):
            return run_step(self.held.steps, name, work, args, kwargs, effects)

    async def step_async(
        self,
        name: str,
        work: Callable[..., Any],
        /,
        *args: Any,
        session: Any = None,
        deadline: float | timedelta | None = None,
        **kwargs: Any,
    ) -> Any:
        """Do what :meth:`step` does for an ``async def`` body.

        Args:
            work: a coroutine function, or a plain one that does not block.
            session: a SQLAlchemy ``AsyncSession`` or ``AsyncConnection``.
            deadline: after how long this piece is cancelled, too.

        Raises:
            asyncio.TimeoutError: the piece took longer than its deadline; and what :meth:`step` raises.
        """
        if self.held is None:
            return await _awaited(work, args, kwargs)
        self._refuse_when_late()
        run = self._narrowed_to(deadline)

        async def bounded() -> Any:
            with entered(run):
                doing = _awaited(work, args, kwargs)
                return await asyncio.wait_for(doing, None if deadline is None else run.remaining().total_seconds())

        return await run_step_async(self.held.steps, name, bounded, partial(self.held.keep_async, name, session))

    def complete_in(self, session: Any, result: Any = None) -> None:
        """Write "succeeded" in the caller's transaction: it commits together with the business's rows, or not at all.

        Args:
            session: a SQLAlchemy ``Session`` or ``Connection``.
            result: the result of the run; return the same from the body.

        Raises:
            RunCancelled: the run is no longer this attempt's; roll back.
            DeadlineExceeded: the deadline has passed; roll back.
        """
        if self.held is None:
            return
        self._refuse_when_late()
        self.held.complete_in(session, result)

    async def complete_in_async(self, session: Any, result: Any = None) -> None:
        """Do what :meth:`complete_in` does with a SQLAlchemy ``AsyncSession`` or ``AsyncConnection``."""
        if self.held is not None:
            await in_async_session(session, lambda joined: self.complete_in(joined, result))

    def _narrowed_to(self, time_limit: float | timedelta | None) -> CurrentRun:
        """Return the same run with less time: no more than that from now."""
        if time_limit is None:
            return self
        deadline = Deadline.of(time_limit)
        assert deadline.after is not None, "a piece of work has a duration"
        return replace(self, deadline_at=min(self.deadline_at, self.now() + deadline.after))

    def _refuse_when_late(self) -> None:
        if self.now() >= self.deadline_at:
            raise self._late()

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded("failed_due_deadline", f"the deadline of the run {self.id} was {self.deadline_at}")


async def _awaited(work: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = work(*args, **kwargs)
    return await result if isawaitable(result) else result


def current_run() -> CurrentRun:
    """Return the run whose body is executing here.

    Raises:
        RuntimeError: this is not the body of a guarded task.
    """
    run = _current.get()
    if run is None:
        raise RuntimeError("current_run() works inside the body of a guarded task only")
    return run


def running_here() -> CurrentRun | None:
    """Return the run whose body is executing here, or None."""
    return _current.get()


@dataclass(frozen=True)
class Ancestor:
    """What a run hands down to those that it submits."""

    deadline_at: datetime | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    #: Whether Celery's tracer submits, after the body: then nobody is there to catch an error.
    follows_up: bool = False


def ancestor_of(app: Any) -> Ancestor:
    """Return what the submitter hands down: a running body, or a tracer that follows a success up.

    What follows a failure up gets no deadline: an errback has something to say after it.
    """
    run = _current.get()
    if run is not None:
        return Ancestor(None if run.deadline_at == _NEVER else run.deadline_at, run.meta)
    parent = app.current_worker_task
    found = tracing(parent.request) if parent is not None else None
    if found is None:
        return Ancestor()
    if found.run is None:
        return Ancestor(follows_up=True)
    return Ancestor(found.run.deadline_at if found.ending == "SUCCESS" else None, found.run.meta, follows_up=True)


class entered:
    """Make a run the current one for the length of a ``with`` block."""

    def __init__(self, run: CurrentRun | None) -> None:
        self._run = run

    def __enter__(self) -> CurrentRun | None:
        self._reset = _current.set(self._run)
        return self._run

    def __exit__(self, *exc_info: object) -> None:
        _current.reset(self._reset)
