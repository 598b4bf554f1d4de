"""``GuardedTask``: Celery's face, thin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ClassVar

from celery import Task, states
from celery.exceptions import Reject, Retry as CeleryRetry
from celery.utils.functional import maybe_list

from celery_guard.errors import GuardError, InvalidOption, StoreUnavailable
from celery_guard.flow.attempt import execute
from celery_guard.flow.context import CurrentRun, ancestor_of, entered, running_here, tracing
from celery_guard.flow.deliver import follow_up_is_through
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.publish import HEADER, message_header
from celery_guard.flow.result import EagerRun, GuardedResult
from celery_guard.flow.retry import AskedRetry
from celery_guard.flow.settle import patiently
from celery_guard.flow.submit import Asked, Submission, new_run_id, send, submit, submit_stillborn
from celery_guard.flow.worker import GuardStep
from celery_guard.settings import OnWorkerLost

__all__ = ["GuardedTask"]

#: What a guarded task can't be: each with the reason.
_FIXED = {
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


class GuardedTask(Task):  # type: ignore[misc]
    """A Celery task whose life is a row: claimed once, bounded by a deadline and attempts, ended with a reason.

    Use it as ``Celery(task_cls=GuardedTask)``, as ``base=GuardedTask``, or as the base of a task class. Class
    attributes and decorator arguments of the same names override the ``guard_*`` configuration.
    """

    abstract = True
    Request = "celery_guard.flow.request:GuardedRequest"

    #: How long a run may take from submission to its end: seconds or a ``timedelta``.
    deadline: ClassVar[timedelta | float | None] = None
    #: How often the body may start, the first time included.
    max_attempts: ClassVar[int | None] = None
    #: How many *unknown* faults a run may have.
    unknown_max_attempts: ClassVar[int | None] = None
    backoff_base: ClassVar[timedelta | float | None] = None
    backoff_cap: ClassVar[timedelta | float | None] = None
    backoff_jitter: ClassVar[str | float | None] = None
    #: How long a body may go on after the soft stop at the deadline.
    deadline_grace: ClassVar[timedelta | float | None] = None
    #: ``"retry"``, or ``"fail"`` for a task that must not run twice.
    on_worker_lost: ClassVar[OnWorkerLost | None] = None
    #: Exceptions that a repeat may help against.
    retryable: ClassVar[tuple[type[BaseException], ...]] = ()
    #: Exceptions that a repeat can't help against; asked before ``retryable``.
    non_retryable: ClassVar[tuple[type[BaseException], ...]] = ()

    _guard_tells_started: ClassVar[bool] = False

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Connect the class to an app, and put the guard around its final ``__call__`` and hooks."""
        if not _is_guarded(cls):
            return super().bind(app)
        if "_guard_bound" not in cls.__dict__:
            _refuse_the_opposite(cls)
            cls._guard_tells_started = bool(app.conf.task_track_started)
            cls.retryable = _exception_classes(cls, "retryable")
            cls.non_retryable = _exception_classes(cls, "non_retryable")
            _wrap(cls)
            cls._guard_bound = True
        bound = super().bind(app)
        for name, (value, _) in _FIXED.items():
            setattr(cls, name, value)
        _join(app, cls)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body. Called directly it is a plain call, without a row."""
        request = self.request
        if not request.called_directly and not request._protected and _is_last_call(type(self)):
            request._protected = 1
            return self.run(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        *,
        deadline: timedelta | float | datetime | None = None,
        max_attempts: int | None = None,
        idempotency_key: str | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Submit a run: its row first, then its message. Everything that Celery's ``apply_async`` takes, and:

        Args:
            deadline: when the run must be over: a ``timedelta`` or seconds from now, or an aware ``datetime``.
            max_attempts: how often the body may start, the first time included.
            idempotency_key: a second submission with the same key and arguments returns the first one's run.
            meta: correlation data (request id, user), a small dict of JSON values; children inherit it.

        Returns:
            A :class:`~celery_guard.GuardedResult`: an ``AsyncResult`` with ``run`` and ``created``.

        Raises:
            InvalidOption: an option is not accepted.
            UnserializableArgument: an argument can't be encoded.
            DeadlineExceeded: the deadline has passed already.
            IdempotencyConflict: the key was used with other arguments.
            RunExists: ``task_id`` belongs to another run.
            StoreUnavailable: the database can't be reached; nothing was stored or sent.
        """
        if not _is_guarded(type(self)):
            return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
        asked = Asked(deadline, max_attempts, idempotency_key, None, meta)
        if self.app.conf.task_always_eager:
            return self._apply(args, kwargs, asked, task_id=task_id, link=link, link_error=link_error, **options)
        options.update(link=maybe_list(link), link_error=maybe_list(link_error), producer=producer)
        submit_one = self._follow_up if ancestor_of(self.app).follows_up else self._submit
        return submit_one(args, kwargs, asked, task_id, shadow, options)

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        deadline: Any = None,
        max_attempts: Any = None,
        idempotency_key: Any = None,
        meta: Any = None,
        **options: Any,
    ) -> Any:
        """Run here and now, through the same states as on a worker; waits between attempts are left out.

        Returns:
            A :class:`~celery_guard.EagerRun`: an ``EagerResult`` with ``run`` and ``created``.
        """
        if not _is_guarded(type(self)):
            return super().apply(args, kwargs, *positional, **options)
        return self._apply(args, kwargs, Asked(deadline, max_attempts, idempotency_key, None, meta), **options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Ask for another attempt, as Celery's ``retry`` does, under the run's deadline and attempts.

        Raises:
            celery.exceptions.Retry: always, unless ``throw`` is false; then it is returned to be raised.
        """
        request = self.request
        if request.called_directly or tracing(request) is None:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        when = eta if eta is not None else self.default_retry_delay if countdown is None else countdown
        changes = {
            name: value for name, value in {"args": args, "kwargs": kwargs, **options}.items() if value is not None
        }
        asked = AskedRetry(exc, when, max_retries, changes)
        if throw:
            raise asked
        return asked

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Handler called after the task returned; Celery's, for users to override."""

    def AsyncResult(self, task_id: str, **kwargs: Any) -> Any:
        """Return the result object of a run of this task."""
        if not _is_guarded(type(self)):
            return super().AsyncResult(task_id, **kwargs)
        return GuardedResult(task_id, backend=self.backend, task_name=self.name, app=self._get_app(), **kwargs)

    def _prepared(
        self, args: Any, kwargs: Any, shadow: str | None, options: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Do what Celery's ``apply_async`` does to its arguments before it sends them."""
        if "_guard_bound" not in type(self).__dict__:  # refused before: say why again
            self.bind(self.app)
        if self.soft_time_limit and self.time_limit and self.soft_time_limit > self.time_limit:
            raise ValueError("soft_time_limit must be less than or equal to time_limit")
        header = getattr(self, "__header__", None)
        if self.typing and header is not None:
            header(*(args or ()), **(kwargs or {}))
        options = {**self._get_exec_options(), **options}
        options["shadow"] = shadow or self.shadow_name(args, kwargs, options)
        if self._dump_pydantic_arguments is not None and options.get("serializer") != "pickle":
            args, kwargs = self._dump_pydantic_arguments(args, kwargs)
        options.setdefault("ignore_result", self.ignore_result)
        return args, kwargs, options

    def _submit(
        self, args: Any, kwargs: Any, asked: Asked, task_id: str | None, shadow: str | None, options: dict[str, Any]
    ) -> Any:
        args, kwargs, options = self._prepared(args, kwargs, shadow, options)
        submission = submit(self, args, kwargs, task_id=task_id, options=options, asked=asked)
        if submission.run.created and not submission.run.waits:
            send(self, submission)
        return self._result(submission.run.id, submission.run.created, bool(submission.options.get("ignore_result")))

    def _follow_up(
        self, args: Any, kwargs: Any, asked: Asked, task_id: str | None, shadow: str | None, options: dict[str, Any]
    ) -> Any:
        """Submit for Celery's tracer, where an exception would make a failure of the task that succeeded before."""
        try:
            return patiently(lambda: self._submit(args, kwargs, asked, task_id, shadow, dict(options)))
        except StoreUnavailable as away:
            raise Reject(away, requeue=True) from away  # what the task before owes is told again later
        except (GuardError, TypeError, ValueError) as error:
            run_id = submit_stillborn(self, task_id=task_id, options=options, error=error)
            return self._result(run_id, True, bool(options.get("ignore_result")))

    def _result(self, run_id: str, created: bool, ignored: bool) -> Any:
        result = self.AsyncResult(run_id)
        result.created = created
        result.ignored = ignored
        parent = self.app.current_worker_task
        if parent is not None:
            parent.add_trail(result)
        return result

    def _apply(
        self, args: Any, kwargs: Any, asked: Asked, *, task_id: str | None = None, throw: Any = None, **options: Any
    ) -> Any:
        args, kwargs, kept = self._prepared(args, kwargs, None, {})
        for name in ("countdown", "eta", "expires"):
            if options.get(name) is not None:
                kept[name] = options.pop(name)
        submission = submit(self, args, kwargs, task_id=task_id, options=kept, asked=asked, eager=True)
        run, runs = submission.run, guard_of(self.app).runs
        if not run.created:
            return self._result(run.id, False, False)
        header = message_header(run.id, "created", deadline_at=run.deadline_at, fingerprint=run.fingerprint)
        headers = {**(options.pop("headers", None) or {}), HEADER: header}
        retries = options.pop("retries", None) or 0
        while True:
            runs.requeue(run.id) if retries or run.waits else None
            result = self._applied(submission, run.id, throw=throw, headers=headers, retries=retries, **options)
            if result is not None:
                return EagerRun.of(result, self.app)
            retries += 1

    def _applied(self, submission: Submission, task_id: str, **options: Any) -> Any:
        """Run one eager attempt. None: the run waits for its next one."""
        try:
            result = super().apply(submission.args, submission.kwargs, task_id=task_id, **options)
        except CeleryRetry:
            return None
        return None if result.state == states.RETRY else result


def _is_guarded(cls: type) -> bool:
    """Celery's own tasks are never guarded: some of them poll by retrying."""
    return not str(getattr(cls, "name", None) or "").startswith("celery.")


def _is_last_call(cls: type) -> bool:
    """Whether no other ``__call__`` stands between ours and Celery's."""
    after = cls.__mro__[cls.__mro__.index(GuardedTask) + 1 :]
    return next(base for base in after if "__call__" in base.__dict__) is Task


def _refuse_the_opposite(cls: type) -> None:
    for name, (wanted, why) in _FIXED.items():
        for base in cls.__mro__:
            value = None if "__bound__" in base.__dict__ else base.__dict__.get(name)  # Celery fills in what is bound
            if value is not None and value != wanted:
                raise InvalidOption(
                    f"{getattr(cls, 'name', None) or cls.__name__}: {name}={value!r} can't be guarded: {why}"
                )


def _wrap(cls: Any) -> None:
    """Put the guard around the final class, so that a user's own ``__call__`` can't go past the claim."""
    plain, before_start, after_return = map(_unwrapped, (cls.__call__, cls.before_start, cls.after_return))

    @wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly:
            return _plainly(self, plain, args, kwargs)
        if tracing(request) is not None:
            return plain(self, *args, **kwargs)
        return execute(self, plain, before_start.__get__(self), args, kwargs)

    @wraps(before_start)
    def deferred(self: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Wait for the claim: the attempt calls the user's own, which may call that of a bound parent."""
        if tracing(self.request) is not None:
            before_start(self, task_id, args, kwargs)

    @wraps(after_return)
    def returned(self: Any, status: str, *args: Any, **kwargs: Any) -> None:
        follow_up_is_through(self, status)
        after_return(self, status, *args, **kwargs)

    for outer, inner in ((call, plain), (deferred, before_start), (returned, after_return)):
        setattr(outer, _INNER, inner)
    cls.__call__, cls.before_start, cls.after_return = call, deferred, returned


def _unwrapped(method: Any) -> Any:
    return getattr(method, _INNER, method)


def _plainly(task: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A direct call: no row. Inside a run its body belongs to that run; elsewhere it has all the time in the world."""
    if running_here() is not None:
        return plain(task, *args, **kwargs)
    run_id = new_run_id()
    with entered(CurrentRun(run_id, task.name, idempotency_key=run_id)):
        return plain(task, *args, **kwargs)


def _join(app: Any, cls: Any) -> None:
    """Check what the configuration and the task say, and have workers of the app bring a guard thread."""
    task_settings(cls)
    app.steps["worker"].add(GuardStep)


def _exception_classes(cls: Any, name: str) -> tuple[type[BaseException], ...]:
    value = getattr(cls, name)
    classes = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in classes):
        raise InvalidOption(
            f"{getattr(cls, 'name', None) or cls.__name__}: {name} must be a tuple of exception classes, not {value!r}"
        )
    return tuple(classes)
