"""In the caller: the row first, then the message."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import JSONEncoder

from celery_guard.core.deadline import CENTURY, Deadline, aware
from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category, Classification, fault_of
from celery_guard.core.idempotency import bound_arguments, checked_key, fingerprint
from celery_guard.core.states import TERMINAL, Reason, State
from celery_guard.errors import (
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidOption,
    RunExists,
    StoreUnavailable,
)
from celery_guard.flow import codec
from celery_guard.flow.context import Ancestor, ancestor_of
from celery_guard.flow.guard import Guard, guard_of, task_settings
from celery_guard.flow.publish import fresh_lease, message_header, publish
from celery_guard.observe.logs import logger
from celery_guard.settings import checked_attempts
from celery_guard.store.records import NewRun, Submitted

__all__ = ["Asked", "Submission", "adopt", "new_run_id", "send", "submit", "submit_stillborn"]

#: What a submission passes to the broker but a row does not keep.
_TRANSIENT = (
    "producer",
    "publisher",
    "connection",
    "retry",
    "retry_policy",
    "router",
    "result_cls",
    "timeout",
    "confirm_timeout",
)

#: What a run that never was still owes to its canvas.
_CANVAS = ("link_error chord group_id group_index chain root_id parent_id queue serializer ignore_result").split()

_FAR = datetime(9999, 12, 31, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Asked:
    """What a caller asked of the guard, in the caller's own words."""

    deadline: timedelta | float | datetime | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    idempotency_scope: str | None = None
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Submission:
    """A row that is written, and what its message needs."""

    run: Submitted
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    transient: dict[str, Any]


def submit(
    task: Any,
    args: Any,
    kwargs: Any,
    *,
    task_id: str | None,
    options: dict[str, Any],
    asked: Asked,
    eager: bool = False,
) -> Submission:
    """Write the row of a new run, in one statement, or find the one that its key or id names.

    Raises:
        InvalidOption: an option is not accepted.
        UnserializableArgument: an argument can't be encoded.
        DeadlineExceeded: the deadline has passed already.
        IdempotencyConflict: the key was used with another payload.
        RunExists: the explicit id belongs to another run.
        StoreUnavailable: the database can't be reached; nothing was stored.
    """
    app, guard, settings = task.app, guard_of(task.app), task_settings(task)
    options, transient = _split(options)
    args, kwargs = list(args or ()), dict(kwargs or {})
    delay_until, delay_for = _delay(app, options.pop("eta", None), options.pop("countdown", None))
    ancestor = ancestor_of(app)
    deadline = _deadline(task, asked, options.pop("expires", None), ancestor)
    if delay_for is not None and deadline.after is not None and delay_for >= deadline.after.total_seconds():
        raise InvalidOption(f"a countdown of {delay_for:g} s starts after the deadline, {deadline.after} from now")
    _note_ancestry(app, options)
    options.setdefault("reply_to", app.thread_oid)
    serializer = options.setdefault("serializer", task.serializer or app.conf.task_serializer)
    payload = codec.encode_arguments(task, args, kwargs, serializer)
    key = _key(asked)
    run = NewRun(
        id=_checked_id(task_id) if task_id is not None else new_run_id(),
        namespace=guard.settings.namespace,
        type=task.name,
        queue=_queue_name(task, args, kwargs, options),
        payload=payload,
        options=codec.encode_options(options),
        fingerprint=_canonical(task, args, kwargs) if key else codec.digest(payload),
        max_attempts=settings.max_attempts if asked.max_attempts is None else checked_attempts(asked.max_attempts),
        deadline_at=deadline.at or _FAR,
        deadline_after=(deadline.after or CENTURY).total_seconds(),
        delay_until=delay_until,
        delay_for=delay_for,
        lease=None if eager else fresh_lease(),
        idempotency_scope=task.name if key else None,
        idempotency_key=key,
        parent_id=options.get("parent_id"),
        root_id=options.get("root_id"),
        meta=_meta(asked, ancestor),
    )
    submitted = _write(guard, run, explicit=task_id is not None, ttl=settings.idempotency_ttl)
    return Submission(submitted, args, kwargs, options, transient)


def submit_stillborn(task: Any, *, task_id: str | None, options: dict[str, Any], error: Exception) -> str:
    """Write a follow-up that can't be submitted as a run that is over, so that Celery hears of it like of any other.

    An exception inside Celery's tracer would make a failure of the task that succeeded before.
    """
    guard = guard_of(task.app)
    options, _ = _split({name: options.get(name) for name in _CANVAS})
    _note_ancestry(task.app, options)
    serializer = options.setdefault("serializer", task.serializer or task.app.conf.task_serializer)
    payload = codec.encode([[], {}], serializer)
    run = NewRun(
        id=task_id or new_run_id(),
        namespace=guard.settings.namespace,
        type=task.name,
        queue=_queue_name(task, [], {}, options),
        payload=payload,
        options=codec.encode_options(options),
        fingerprint=codec.digest(payload),
        max_attempts=1,
        deadline_at=_FAR,
        deadline_after=task_settings(task).deadline.total_seconds(),
        parent_id=options.get("parent_id"),
        root_id=options.get("root_id"),
    )
    fault = fault_of(error, Classification(Category.NON_RETRYABLE, "not_submittable"), limit=2_000)
    if isinstance(error, DeadlineExceeded):
        finish = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE, fault)
    else:
        finish = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault)
    guard.runs.submit_finished(run, finish)
    logger.error("%s[%s] could not be submitted as a follow-up and is %s: %s", task.name, run.id, finish.state, error)
    return run.id


def adopt(task: Any, request: Any) -> None:
    """Write the row of a message that other code sent, as it arrives."""
    options = request.as_execution_options()
    options.pop("task_id", None)
    options["retries"] = None
    submit(task, request.args, request.kwargs, task_id=request.id, options=options, asked=Asked(), eager=True)


def send(task: Any, submission: Submission) -> None:
    """Publish a row just written. A broker that is down costs nothing but time: the dispatcher publishes later."""
    run = submission.run
    header = message_header(run.id, "created", deadline_at=run.deadline_at, fingerprint=run.fingerprint)
    transient = {name: value for name, value in submission.transient.items() if value is not None}
    try:
        publish(
            task.app,
            run.id,
            task.name,
            submission.args,
            submission.kwargs,
            submission.options,
            header,
            task_type=task,
            add_to_parent=False,
            **transient,
        )
    except Exception as error:  # whatever the transport raises, the run is accepted
        logger.warning("%s[%s] is accepted but could not be published yet: %r", task.name, run.id, error)
        guard_of(task.app).runs.publish_soon([run.id], delay=1.0)


def new_run_id() -> str:
    """Return a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then chance, so that ids sort by time."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def _write(guard: Guard, run: NewRun, *, explicit: bool, ttl: timedelta) -> Submitted:
    for _ in range(10):
        submitted = guard.runs.submit(run)
        if submitted is not None:
            return submitted
        taken = guard.runs.taken_by(run)
        if taken is None:
            _refuse_late_start(guard, run)
            if run.deadline_after < 1 or guard.runs.clock() >= run.deadline_at:
                raise DeadlineExceeded(
                    "failed_due_deadline", f"the deadline {run.deadline_at} has passed already; nothing was submitted"
                )
        elif taken.id == run.id:
            return _same_id(run, taken, explicit=explicit)
        elif not (taken.state in TERMINAL and guard.runs.free_key(taken.id, ttl)):
            return _same_key(run, taken)
    raise StoreUnavailable(f"{run.type}: other submissions with the key {run.idempotency_key!r} kept coming and going")


def _refuse_late_start(guard: Guard, run: NewRun) -> None:
    if run.delay_until is not None:
        deadline_at = min(run.deadline_at, guard.runs.clock() + timedelta(seconds=run.deadline_after))
        if run.delay_until >= deadline_at:
            raise InvalidOption(f"an eta of {run.delay_until} is not before the deadline, {deadline_at}")


def _same_id(run: NewRun, taken: Submitted, *, explicit: bool) -> Submitted:
    if not explicit:  # our own row: the reply to the first try was lost
        return replace(taken, created=True)
    if taken.type == run.type and taken.fingerprint == run.fingerprint and taken.state not in TERMINAL:
        return taken
    raise RunExists(
        f"the id {run.id!r} belongs to a run of {taken.type} that is {taken.state}; leave task_id out to get a new one"
    )


def _same_key(run: NewRun, taken: Submitted) -> Submitted:
    if taken.fingerprint == run.fingerprint:
        return taken
    raise IdempotencyConflict(
        f"{run.type}: the idempotency key {run.idempotency_key!r} was used by the run {taken.id} with other arguments"
    )


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    transient = {name: options.pop(name) for name in _TRANSIENT if name in options}
    options.pop("add_to_parent", None)
    for name in ("queue", "exchange"):
        options[name] = getattr(options.get(name), "name", options.get(name))
    return {name: value for name, value in options.items() if value is not None}, transient


def _deadline(task: Any, asked: Asked, expires: Any, ancestor: Ancestor) -> Deadline:
    try:
        if asked.deadline is not None:
            deadline = Deadline.of(asked.deadline)
        else:
            deadline = Deadline(after=task_settings(task).deadline)
        if expires is not None:
            deadline = deadline.narrowed_to(_expires(task.app, expires))
    except ValueError as error:
        raise InvalidOption(str(error)) from None
    return deadline.narrowed_to(Deadline(at=ancestor.deadline_at))


def _expires(app: Any, value: Any) -> Deadline:
    """Read Celery's ``expires``: seconds, a moment (a naive one in the app's time zone), or ISO text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Deadline.of(value, "expires")
    return Deadline(at=_celery_moment(app, value, "expires"))


def _celery_moment(app: Any, value: Any, name: str) -> datetime:
    try:
        moment = maybe_make_aware(maybe_iso8601(value), app.timezone)
        return aware(moment, name)
    except (AttributeError, TypeError, ValueError):
        raise InvalidOption(f"{name} must be a datetime, ISO text or seconds, not {value!r}") from None


def _delay(app: Any, eta: Any, countdown: Any) -> tuple[datetime | None, float | None]:
    if eta is not None:
        return _celery_moment(app, eta, "eta"), None
    if isinstance(countdown, timedelta):
        countdown = countdown.total_seconds()
    if countdown is None or countdown == 0:
        return None, None
    if isinstance(countdown, bool) or not isinstance(countdown, (int, float)) or not 0 < countdown < 3.2e9:
        raise InvalidOption(f"countdown must be a number of seconds of at least 0, not {countdown!r}")
    return None, float(countdown)


def _key(asked: Asked) -> str | None:
    if asked.idempotency_key is None:
        return None
    try:
        return checked_key(asked.idempotency_key)
    except ValueError as error:
        raise InvalidOption(str(error)) from None


def _note_ancestry(app: Any, options: dict[str, Any]) -> None:
    """Write down whose child this is, as Celery's ``send_task`` would, for the messages that come later."""
    parent = app.current_worker_task
    if parent is not None:
        request = parent.request
        options["root_id"] = options.get("root_id") or request.root_id or request.id
        options["parent_id"] = options.get("parent_id") or request.id


def _queue_name(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> str:
    routed = task.app.amqp.router.route(dict(options), task.name, args, kwargs, task)
    queue = routed.get("queue")
    name = str(getattr(queue, "name", queue) or routed.get("routing_key") or task.app.conf.task_default_queue)
    if "\x00" in name or len(name) > 255:
        raise InvalidOption(f"queue must be a name of at most 255 characters, not {name!r}")
    return name


def _canonical(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    arguments = bound_arguments(codec.signature_of(task), args, kwargs)
    return fingerprint(arguments, _stable)


def _stable(value: Any) -> Any:
    try:
        return JSONEncoder().default(value)
    except TypeError:
        return codec.encode(value, "pickle")


def _meta(asked: Asked, ancestor: Ancestor) -> str | None:
    own = {} if asked.meta is None else codec.checked_meta(asked.meta)
    merged = {**ancestor.meta, **own}
    return codec.encode(codec.checked_meta(merged), "json") if merged else None


def _checked_id(task_id: Any) -> str:
    if not isinstance(task_id, str) or not 0 < len(task_id) <= 255 or "\x00" in task_id:
        raise InvalidOption(f"task_id must be text of 1 to 255 characters, not {task_id!r}")
    return task_id
