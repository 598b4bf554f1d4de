"""``GuardedTask``: Celery's face, thin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, states
from celery.exceptions import Reject, Retry as CeleryRetry
from celery.utils.functional import maybe_list

from celery_guard.core.faults import Classifier
from celery_guard.errors import StoreUnavailable
from celery_guard.flow.binding import FIXED, ask_for_answers, is_guarded, is_last_call, put_under_guard
from celery_guard.flow.context import ancestor_of
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.permits import check_concurrency_key
from celery_guard.flow.publish import HEADER, message_header
from celery_guard.flow.replace import hand_over_row
from celery_guard.flow.result import EagerRun, GuardedResult
from celery_guard.flow.retry import asked_retry
from celery_guard.flow.settle import patiently
from celery_guard.flow.submit import (
    Draft,
    Publishing,
    announce_new,
    draft,
    send,
    send_after_commit,
    send_beside,
    submit,
    submit_stillborn,
)
from celery_guard.flow.tracer import tracing
from celery_guard.flow.wishes import Asked
from celery_guard.flow.worker import GuardStep
from celery_guard.settings import OnWorkerLost
from celery_guard.store.aftercommit import after_commit
from celery_guard.store.joined import Joined, in_async_session, unscoped
from celery_guard.store.runs import RunStore

__all__ = ["GuardedTask"]


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
    #: One intent, one run: a template over the arguments, such as ``"receipt-{order_id}"``, or a callable.
    idempotency_key: ClassVar[str | Callable[..., str | None] | None] = None
    #: Where the key is unique, likewise: a tenant, a client; the task's name by default.
    idempotency_scope: ClassVar[str | Callable[..., str | None] | None] = None
    #: After which endings a key starts a new run: any of ``failed``, ``dead``, ``cancelled``.
    idempotency_rerun_after: ClassVar[frozenset[str]] = frozenset()
    #: How many runs of this task may be running at once, over all workers; the others wait in their rows.
    concurrency: ClassVar[int | None] = None
    #: Of which runs ``concurrency`` is the limit: those with the same key, made like an idempotency key.
    concurrency_key: ClassVar[str | Callable[..., str] | None] = None
    #: Whether the work must not be done twice; ``celery guard check`` then asks for an idempotency key.
    critical: ClassVar[bool] = False
    #: Exceptions that a repeat may help against.
    retryable: ClassVar[tuple[type[BaseException], ...]] = ()
    #: Exceptions that a repeat can't help against; asked before ``retryable``.
    non_retryable: ClassVar[tuple[type[BaseException], ...]] = ()

    #: How long a success that nobody waits for may wait to be settled together with others, in one commit.
    settle_within: ClassVar[timedelta | float | None] = None

    #: What the task makes of an error: a callable that returns a category, a fault, or None for "ask the next rule".
    classify: ClassVar[Classifier | None] = None

    _guard_tells_started: ClassVar[bool] = False
    _guard_calls_last: ClassVar[bool] = False
    _guard_hears_success: ClassVar[bool] = False

    if TYPE_CHECKING:  # Celery's own, which says no types

        def delay(self, *args: Any, **kwargs: Any) -> Any:
            """Submit a run with these arguments and no options."""

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Connect the class to an app, and put the guard around its final ``__call__`` and hooks."""
        if not is_guarded(cls):
            return super().bind(app)
        if "_guard_bound" not in cls.__dict__:
            put_under_guard(cls, app)
            cls._guard_calls_last = is_last_call(cls, GuardedTask)
        bound = super().bind(app)
        for name, (value, _) in FIXED.items():
            setattr(cls, name, value)
        task_settings(cls)
        check_concurrency_key(cls)
        ask_for_answers(app)
        app.steps["worker"].add(GuardStep)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body. Called directly it is a plain call, without a row."""
        request = self.request
        if self._guard_calls_last and not (request.called_directly or request._protected):
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
        idempotency_scope: str | None = None,
        meta: Mapping[str, Any] | None = None,
        inherit_deadline: bool = True,
        session: Any = None,
        wait_for_broker: bool = True,
        **options: Any,
    ) -> Any:
        """Submit a run: its row first, then its message. Everything that Celery's ``apply_async`` takes, and:

        Args:
            deadline: when the run must be over: a ``timedelta`` or seconds from now, or an aware ``datetime``.
            max_attempts: how often the body may start, the first time included.
            idempotency_key: a second submission with the same key and arguments returns the first one's run.
            idempotency_scope: where the key is unique; the task's name by default.
            meta: correlation data (request id, user), a small dict of JSON values; children inherit it.
            inherit_deadline: whether a run submitted from a body ends no later than its parent.
            session: a SQLAlchemy ``Session`` or ``Connection`` on the same database: the row is written in its
                transaction, and the message goes out after the outermost commit.
            wait_for_broker: False returns as soon as the row is written; a thread beside the caller sends the message,
                and a worker's dispatcher does where that does not succeed within a few seconds.

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
        if not is_guarded(type(self)):
            return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
        asked = Asked(deadline, max_attempts, idempotency_key, idempotency_scope, meta, inherit_deadline)
        if self.app.conf.task_always_eager:
            return self._apply(args, kwargs, asked, task_id=task_id, link=link, link_error=link_error, **options)
        options.update(link=maybe_list(link), link_error=maybe_list(link_error), producer=producer)
        if session is not None:
            return self._submit_in(session, args, kwargs, asked, task_id, shadow, options)
        if ancestor_of(self.app).follows_up:
            return self._follow_up(args, kwargs, asked, task_id, shadow, options)
        publishing = Publishing.HERE if wait_for_broker else Publishing.SOON
        return self._submit(args, kwargs, asked, task_id, shadow, options, publishing)

    async def submit_async(self, *args: Any, session: Any = None, **kwargs: Any) -> Any:
        """Do what :meth:`apply_async` does without blocking the event loop.

        Args:
            session: a SQLAlchemy ``AsyncSession`` or ``AsyncConnection`` on the same database, or nothing.
        """
        if session is None:
            return await asyncio.to_thread(self.apply_async, *args, **kwargs)
        return await in_async_session(session, lambda joined: self.apply_async(*args, session=joined, **kwargs))

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        retries: int | None = None,
        throw: bool | None = None,
        *positional: Any,
        deadline: Any = None,
        max_attempts: Any = None,
        idempotency_key: Any = None,
        idempotency_scope: Any = None,
        meta: Any = None,
        inherit_deadline: bool = True,
        **options: Any,
    ) -> Any:
        """Run here and now, through the same states as on a worker; waits between attempts are left out.

        Returns:
            A :class:`~celery_guard.EagerRun`: an ``EagerResult`` with ``run`` and ``created``.
        """
        if not is_guarded(type(self)):
            return super().apply(args, kwargs, link, link_error, task_id, retries, throw, *positional, **options)
        asked = Asked(deadline, max_attempts, idempotency_key, idempotency_scope, meta, inherit_deadline)
        options.update(link=link, link_error=link_error, task_id=task_id, retries=retries, throw=throw)
        return self._apply(args, kwargs, asked, **options)

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
        asked = asked_retry(
            self, args, kwargs, exc=exc, eta=eta, countdown=countdown, max_retries=max_retries, options=options
        )
        if throw:
            raise asked
        return asked

    def on_replace(self, sig: Any) -> Any:
        """Handler called when the task is replaced: the row goes to the replacement."""
        if is_guarded(type(self)) and not self.request.is_eager:
            hand_over_row(self, sig)
        return super().on_replace(sig)

    def AsyncResult(self, task_id: str, **kwargs: Any) -> Any:
        """Return the result object of a run of this task."""
        if not is_guarded(type(self)):
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
        self,
        args: Any,
        kwargs: Any,
        asked: Asked,
        task_id: str | None,
        shadow: str | None,
        options: dict[str, Any],
        publishing: Publishing = Publishing.HERE,
    ) -> Any:
        args, kwargs, options = self._prepared(args, kwargs, shadow, options)
        made = draft(self, args, kwargs, task_id=task_id, options=options, asked=asked, publishing=publishing)
        guard = guard_of(self.app)
        run = submit(made, guard.runs)
        announce_new(guard, made.run, run)
        if run.created and not run.waits:
            (send if publishing is Publishing.HERE else send_beside)(made, run)
        return self._result(run.id, run.created, bool(made.options.get("ignore_result")))

    def _submit_in(
        self,
        session: Any,
        args: Any,
        kwargs: Any,
        asked: Asked,
        task_id: str | None,
        shadow: str | None,
        options: dict[str, Any],
    ) -> Any:
        """Submit in the caller's transaction; publish once it has committed, as far as that can be known."""
        guard, session = guard_of(self.app), unscoped(session)
        args, kwargs, options = self._prepared(args, kwargs, shadow, options)
        made = draft(self, args, kwargs, task_id=task_id, options=options, asked=asked, publishing=Publishing.SOON)
        run = submit(made, RunStore(Joined(guard.database, session), guard.settings.namespace))
        after_commit(session, lambda: announce_new(guard, made.run, run))
        if run.created and not run.waits:
            after_commit(session, lambda: send_after_commit(made, run))
        return self._result(run.id, run.created, bool(made.options.get("ignore_result")))

    def _follow_up(
        self, args: Any, kwargs: Any, asked: Asked, task_id: str | None, shadow: str | None, options: dict[str, Any]
    ) -> Any:
        """Submit for Celery's tracer, where an exception would make a failure of the task that succeeded before."""
        try:
            return patiently(lambda: self._submit(args, kwargs, asked, task_id, shadow, dict(options)))
        except StoreUnavailable as away:
            raise Reject(away, requeue=True) from away  # what the task before owes is told again later
        except Exception as error:  # a task's own key or serializer may raise anything
            run_id = submit_stillborn(self, args, kwargs, task_id=task_id, options=options, error=error)
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
        made = draft(self, args, kwargs, task_id=task_id, options=kept, asked=asked, publishing=Publishing.NOBODY)
        guard = guard_of(self.app)
        runs, run = guard.runs, submit(made, guard.runs)
        announce_new(guard, made.run, run)
        if not run.created:
            return self._result(run.id, False, False)
        header = message_header(run.id, "created", deadline_at=run.deadline_at, fingerprint=run.fingerprint)
        headers = {**(options.pop("headers", None) or {}), HEADER: header}
        retries = options.pop("retries", None) or 0
        try:
            while True:
                runs.requeue(run.id) if retries or run.waits else None
                result = self._applied(made, run.id, throw=throw, headers=headers, retries=retries, **options)
                if result is not None:
                    return EagerRun.of(result, self.app)
                retries += 1
        finally:
            if options.get("link") or options.get("link_error"):  # whoever called has heard the ending
                runs.told(run.id)

    def _applied(self, made: Draft, task_id: str, **options: Any) -> Any:
        """Run one eager attempt. None: the run waits for its next one."""
        try:
            result = super().apply(made.args, made.kwargs, task_id=task_id, **options)
        except CeleryRetry:
            return None
        return None if result.state == states.RETRY else result
