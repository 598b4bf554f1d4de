"""How a task class is put under guard: what it must be, and what is wrapped around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import getattr_static, isawaitable
from typing import Any

from celery import Task
from celery.utils.objects import mro_lookup

from celery_guard.core.states import State
from celery_guard.errors import InvalidOption, RunEnded
from celery_guard.flow.attempt import execute
from celery_guard.flow.context import CurrentRun, entered, running_here
from celery_guard.flow.coroutine import refuse_what_nobody_awaits
from celery_guard.flow.deliver import follow_up_is_through, is_told_otherwise, told_otherwise
from celery_guard.flow.submit import new_run_id
from celery_guard.flow.tracer import tracing
from celery_guard.observe.logs import logger

__all__ = ["FIXED", "ask_for_answers", "is_guarded", "is_last_call", "put_under_guard"]

#: A RabbitMQ that confirms has the message; a Redis that accepts and never answers would hold its caller for ever.
_CONFIRMS, _IN_TIME = {"confirm_publish": True}, {"socket_timeout": 10.0, "socket_connect_timeout": 5.0}
_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), _CONFIRMS),
    **dict.fromkeys(("redis", "rediss", "sentinel"), _IN_TIME),
}

#: What a guarded task can't be: each with the reason.
FIXED = {
    "acks_late": (True, "a message acknowledged early is lost with its worker"),
    "reject_on_worker_lost": (False, "the row counts attempts and is dispatched again; a requeued message would loop"),
    "retry_on_worker_lost": (False, "the row is the only retry authority"),
    "track_started": (False, "STARTED is told after the claim: set task_track_started in the configuration"),
    "acks_on_failure": (True, "the row decides about a repeat, so the message is done"),
    "acks_on_timeout": (True, "the row decides about a repeat, so the message is done"),
    "acks_on_failure_or_timeout": (True, "the row decides about a repeat, so the message is done"),
}


#: Where a wrapped method keeps the user's own.
_INNER = "_guard_inner"


def put_under_guard(cls: Any, app: Any) -> None:
    """Check what a final task class says about itself, and wrap its entry points.

    Raises:
        InvalidOption: an attribute is not accepted; the text names task, attribute, value and what is accepted.
    """
    _refuse_the_opposite(cls)
    refuse_what_nobody_awaits(cls)
    cls._guard_hears_success = any(_has(cls, hook) for hook in ("on_success", "on_failure", "after_return"))
    cls._guard_tells_started = bool(app.conf.task_track_started)
    cls.retryable = _exception_classes(cls, "retryable")
    cls.non_retryable = _exception_classes(cls, "non_retryable")
    cls.idempotency_rerun_after = _endings(cls)
    cls.throws = (*cls.throws, RunEnded)  # an ending that the guard wrote is logged by the guard
    _wrap(cls)
    cls._guard_bound = True


def ask_for_answers(app: Any) -> None:
    """Have a broker answer for what is published, and within a time, unless the configuration speaks of it."""
    broker = app.conf.broker_write_url or app.conf.broker_url or "amqp://"
    options = app.conf.broker_transport_options or {}
    first = broker[0] if isinstance(broker, (list, tuple)) else broker
    wanted = _ANSWERS.get(str(first).partition(":")[0], {})
    if wanted.keys() - options.keys():
        app.conf.broker_transport_options = {**wanted, **options}


def is_guarded(cls: type) -> bool:
    """Celery's own tasks are never guarded: some of them poll by retrying."""
    return not str(getattr(cls, "name", None) or "").startswith("celery.")


def is_last_call(cls: type, ours: type) -> bool:
    """Whether no other ``__call__`` stands between ours and Celery's."""
    after = cls.__mro__[cls.__mro__.index(ours) + 1 :]
    return next(base for base in after if "__call__" in base.__dict__) is Task


def _refuse_the_opposite(cls: type) -> None:
    for name, (wanted, why) in FIXED.items():
        for base in cls.__mro__:
            value = None if "__bound__" in base.__dict__ else base.__dict__.get(name)  # Celery fills in what is bound
            if value is not None and value != wanted:
                raise InvalidOption(
                    f"{getattr(cls, 'name', None) or cls.__name__}: {name}={value!r} can't be guarded: {why}"
                )


def _wrap(cls: Any) -> None:
    """Put the guard around the final class, so that a user's own ``__call__`` can't go past the claim."""
    plain, before_start, after_return = (_own(cls, name) for name in ("__call__", "before_start", "after_return"))
    hears_return = _has(cls, "after_return")
    has_hook = mro_lookup(cls, "before_start", {Task, object}, ["celery.app.task"]) is not None  # as the tracer asks

    @wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly:
            return _plainly(self, plain, args, kwargs)
        if tracing(request) is not None:
            return plain(self, *args, **kwargs)
        return execute(self, request, plain, _bound(before_start, self) if has_hook else None, args, kwargs)

    @wraps(before_start)
    def deferred(self: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Wait for the claim: the attempt calls the user's own, which may call that of a bound parent."""
        if tracing(self.request) is not None:
            _bound(before_start, self)(task_id, args, kwargs)

    @wraps(after_return)
    def returned(self: Any, status: str, *args: Any, **kwargs: Any) -> None:
        follow_up_is_through(self, status)
        if hears_return and not is_told_otherwise(self, status):
            _bound(after_return, self)(status, *args, **kwargs)

    for outer, inner in ((call, plain), (deferred, before_start), (returned, after_return)):
        setattr(outer, _INNER, inner)
    cls.__call__, cls.after_return = call, returned
    if has_hook:
        cls.before_start = deferred
    cls.on_failure, cls.on_retry = _harmless(cls, "on_failure"), _harmless(cls, "on_retry")


def _harmless(cls: Any, name: str) -> Any:
    """Log what a user's hook raises: the tracer would tell a second ending. An eager caller sees it, as in Celery."""
    hook = _own(cls, name)

    @wraps(hook)
    def call(self: Any, exc: Any, task_id: str, *args: Any) -> None:
        if name == "on_failure" and told_otherwise(self, task_id):
            return
        try:
            _bound(hook, self)(exc, task_id, *args)
        except Exception:
            if self.request.is_eager:
                raise
            logger.exception("%s[%s] %s raised", self.name, task_id, name)

    setattr(call, _INNER, hook)
    return call


def _own(cls: Any, name: str) -> Any:
    """Return the user's own method as the class holds it: a function, a staticmethod, any callable."""
    found = getattr_static(cls, name)
    return getattr(found, _INNER, found)


def _has(cls: Any, hook: str) -> bool:
    """Whether a task has a hook of its own in the place of Celery's, which does nothing."""
    return _own(cls, hook) is not getattr(Task, hook)


def _bound(method: Any, task: Any) -> Any:
    return method.__get__(task, type(task)) if hasattr(method, "__get__") else method


def _plainly(task: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A direct call: no row. Inside a run its body belongs to that run; elsewhere it has all the time in the world."""
    if running_here() is not None:
        return plain(task, *args, **kwargs)
    run_id = new_run_id()
    run = CurrentRun(run_id, task.name, idempotency_key=run_id)
    with entered(run):
        result = plain(task, *args, **kwargs)
    return _awaited_in(run, result) if isawaitable(result) else result


async def _awaited_in(run: CurrentRun, awaitable: Awaitable[Any]) -> Any:
    with entered(run):
        return await awaitable


def _exception_classes(cls: Any, name: str) -> tuple[type[BaseException], ...]:
    value = getattr(cls, name)
    classes = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in classes):
        raise InvalidOption(
            f"{getattr(cls, 'name', None) or cls.__name__}: {name} must be a tuple of exception classes, not {value!r}"
        )
    return tuple(classes)


def _endings(cls: Any) -> frozenset[str]:
    value = cls.idempotency_rerun_after
    found = frozenset(str(state) for state in ((value,) if isinstance(value, str) else value))
    allowed = {State.FAILED.value, State.DEAD.value, State.CANCELLED.value}
    if not found <= allowed:
        raise InvalidOption(
            f"{getattr(cls, 'name', None) or cls.__name__}: idempotency_rerun_after must be some of"
            f" {sorted(allowed)}, not {value!r}"
        )
    return found
