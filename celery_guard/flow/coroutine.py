"""A body that returns a coroutine: where it can run, and what Celery's own wrappers would have done with its end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, get_type_hints

from celery import _state
from celery.app.autoretry import add_autoretry_behaviour
from celery.utils.annotations import annotation_is_class, get_optional_arg
from kombu.utils.compat import detect_environment
from pydantic import BaseModel

from celery_guard.errors import InvalidOption
from celery_guard.flow import softlimit
from celery_guard.flow.context import CurrentRun
from celery_guard.flow.eventloop import run_to_its_end

__all__ = ["finish", "refuse_what_nobody_awaits"]

#: What Celery calls without awaiting it.
_HOOKS = ("before_start", "on_success", "on_retry", "on_failure", "after_return")


def refuse_what_nobody_awaits(cls: Any) -> None:
    """Check that a task class has no async generator for a body, and no coroutine for a hook.

    Raises:
        InvalidOption: it has.
    """
    name = getattr(cls, "name", None) or cls.__name__
    if inspect.isasyncgenfunction(inspect.unwrap(cls.run)):
        raise InvalidOption(
            f"{name}: the body is an async generator, which has no result; collect what it yields and return that"
        )
    for hook in _HOOKS:
        if inspect.iscoroutinefunction(getattr(cls, hook)):
            raise InvalidOption(f"{name}: {hook} can't be async def: Celery calls it and awaits nothing")


def finish(task: Any, request: Any, run: CurrentRun, awaitable: Awaitable[Any], grace: float) -> Any:
    """Run the coroutine that a body returned to its end, and return its result.

    Args:
        grace: how long it may go on after it was cancelled, in seconds.

    Raises:
        SoftTimeLimitExceeded: the deadline or a time limit of Celery's cancelled it.
        InvalidOption: no event loop can run in this worker's pool.
    """
    _refuse_green_pools(task, awaitable)
    assert run.held is not None, "a coroutine is finished by the attempt that holds its run"
    work: Callable[[], Any] = partial(
        run_to_its_end,
        awaitable,
        name=f"{task.name}[{run.id}]",
        token=run.held.claim.token,
        seconds=_seconds(task, request, run),
        grace=grace,
    )
    if asyncio._get_running_loop() is not None:
        work = partial(_in_another_thread, task, request, work)
    return _dumped(task, _retried(task, work))


def _refuse_green_pools(task: Any, awaitable: Awaitable[Any]) -> None:
    environment = detect_environment()
    if environment != "default":
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise InvalidOption(
            f"{task.name}: an async def body needs the prefork, threads or solo pool; this process runs {environment},"
            " whose greenlets share one thread, and a thread has one event loop at a time"
        )


def _seconds(task: Any, request: Any, run: CurrentRun) -> float:
    """Return how long a coroutine may take: in a prefork child the worker's main process watches Celery's limits."""
    left = run.remaining().total_seconds()
    if softlimit.reaches_here():
        return left
    hard, soft = request.timelimit or (None, None)
    limits: list[float] = [limit for limit in (hard or task.time_limit, soft or task.soft_time_limit) if limit]
    return min([left, *limits])


def _in_another_thread(task: Any, request: Any, work: Callable[[], Any]) -> Any:
    """Work while this thread, whose event loop is busy with our caller, waits."""

    def there() -> Any:
        _state._set_current_app(task.app)
        _state.push_current_task(task)
        task.request_stack.push(request)
        try:
            return work()
        finally:
            task.request_stack.pop()
            _state.pop_current_task()

    with ThreadPoolExecutor(1, thread_name_prefix="celery-guard-coroutine") as thread:
        return thread.submit(copy_context().run, there).result()


def _retried(task: Any, work: Callable[[], Any]) -> Any:
    """Do what is left of a body under the task's ``autoretry_for``, which saw the body return without an error."""
    if not hasattr(task, "_orig_run"):
        return work()
    rest = _Rest(task, work)
    add_autoretry_behaviour(rest)
    return rest.run()


class _Rest:
    """Stands in for a task, so that Celery wraps the rest of its body as it wrapped the body."""

    def __init__(self, task: Any, work: Callable[[], Any]) -> None:
        self._task = task
        self.run = work

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_run":  # not wrapped yet
            raise AttributeError(name)
        return getattr(self._task, name)


def _dumped(task: Any, result: Any) -> Any:
    """Return a model as Celery's ``pydantic=True`` returns that of a plain body: as plain data."""
    if task._dump_pydantic_arguments is None or not isinstance(result, BaseModel):
        return result
    annotation = _return_annotation(task._decorated_fun)
    kind = get_optional_arg(annotation) or annotation
    if not annotation_is_class(kind) or not isinstance(result, kind):
        return result
    wrapper = inspect.getattr_static(type(task), "run")
    how = inspect.getclosurevars(getattr(wrapper, "__func__", wrapper)).nonlocals.get("dump_kwargs", {"mode": "json"})
    return result.model_dump(**how)


def _return_annotation(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return")
    except (NameError, AttributeError, TypeError):  # a name that can't be resolved here
        return inspect.signature(function).return_annotation
