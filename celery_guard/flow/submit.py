"""In the caller: the row first, then the message."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from celery.exceptions import SoftTimeLimitExceeded

from celery_guard.core.deadline import CENTURY, FAR
from celery_guard.core.decide import Finish
from celery_guard.core.faults import Category, Classification, fault_of
from celery_guard.core.idempotency import checked_key
from celery_guard.core.states import TERMINAL, Reason, State
from celery_guard.errors import (
    DeadlineExceeded,
    GuardError,
    IdempotencyConflict,
    InvalidOption,
    RunExists,
    StoreUnavailable,
)
from celery_guard.flow import codec
from celery_guard.flow.beside import beside
from celery_guard.flow.context import ancestor_of, running_here
from celery_guard.flow.guard import Guard, guard_of, task_settings
from celery_guard.flow.publish import BY_REFERENCE, fresh_lease, message_header, publish
from celery_guard.flow.traces import TRACE, current_trace
from celery_guard.flow.wishes import (
    Asked,
    canonical_fingerprint,
    concurrency_group_of,
    deadline_of,
    delay_of,
    key_of,
    meta_of,
    queue_of,
    split_options,
)
from celery_guard.observe.logs import logger
from celery_guard.observe.transitions import Transition
from celery_guard.settings import checked_attempts
from celery_guard.store.records import NewRun, Submitted
from celery_guard.store.runs import RunStore

__all__ = [
    "Draft",
    "Publishing",
    "adopt",
    "announce_new",
    "draft",
    "new_run_id",
    "send",
    "send_after_commit",
    "send_beside",
    "submit",
    "submit_stillborn",
]

#: What a run that never was still owes to its canvas.
_CANVAS = ("link_error chord group_id group_index chain root_id parent_id queue serializer ignore_result").split()

#: Seconds until the dispatcher publishes a row whose transaction has committed, if its submitter has not.
_SOON = 3.0


class Publishing(Enum):
    """Who publishes a new row."""

    HERE = "this process, at once"
    SOON = "this process once the row is committed, else the dispatcher"
    NOBODY = "nobody: it runs eagerly, or its message is here already"


@dataclass(frozen=True)
class Draft:
    """A submission that is checked and encoded, and not written yet."""

    task: Any
    run: NewRun
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    transient: dict[str, Any]
    has_own_id: bool


def draft(
    task: Any,
    args: Any,
    kwargs: Any,
    *,
    task_id: str | None,
    options: Mapping[str, Any],
    asked: Asked,
    publishing: Publishing = Publishing.HERE,
) -> Draft:
    """Check and encode a submission.

    Raises:
        InvalidOption: an option is not accepted.
        UnserializableArgument: an argument can't be encoded.
    """
    app, settings, ancestor = task.app, task_settings(task), ancestor_of(task.app)
    kept, transient = split_options(options)
    args, kwargs = _as_celery_takes(args, kwargs)
    delay = delay_of(app, kept.pop("eta", None), kept.pop("countdown", None))
    deadline = deadline_of(task, asked, kept.pop("expires", None), ancestor)
    if delay.seconds and deadline.after and delay.seconds >= deadline.after.total_seconds():
        raise InvalidOption(f"a countdown of {delay.seconds:g} s starts after the deadline, {deadline.after} from now")
    _note_ancestry(app, kept)
    kept.setdefault("reply_to", app.thread_oid)
    if settings.message == "reference":
        kept[BY_REFERENCE] = True
    if trace := current_trace(task.name):
        kept[TRACE] = trace
    serializer = kept.setdefault("serializer", task.serializer or app.conf.task_serializer)
    payload = codec.encode_arguments(task, args, kwargs, serializer)
    scope, key = key_of(task, asked, args, kwargs) if asked is not _NOTHING else (None, None)
    group = concurrency_group_of(task, args, kwargs) if asked is not _NOTHING else None
    run = NewRun(
        id=_checked_id(task_id) if task_id is not None else new_run_id(),
        namespace=guard_of(app).settings.namespace,
        type=task.name,
        queue=queue_of(task, args, kwargs, kept),
        payload=payload,
        options=codec.encode_options(kept),
        fingerprint=canonical_fingerprint(task, args, kwargs) if key else codec.digest(payload),
        max_attempts=settings.max_attempts if asked.max_attempts is None else checked_attempts(asked.max_attempts),
        deadline_at=deadline.at or FAR,
        deadline_after=(deadline.after or CENTURY).total_seconds(),
        delay_until=delay.until,
        delay_for=delay.seconds,
        idempotency_scope=scope,
        idempotency_key=key,
        parent_id=kept.get("parent_id"),
        root_id=kept.get("root_id"),
        meta=meta_of(asked, ancestor),
        concurrency_group=group,
        **_publishing(publishing),
    )
    return Draft(task, run, args, kwargs, kept, transient, has_own_id=task_id is not None)


def submit(draft: Draft, runs: RunStore) -> Submitted:
    """Write the row, in one statement, or find the one that its key or id names.

    Raises:
        DeadlineExceeded: the deadline has passed already.
        IdempotencyConflict: the key was used with another payload.
        RunExists: the explicit id belongs to another run.
        StoreUnavailable: the database can't be reached; nothing was stored.
    """
    run, ttl = draft.run, task_settings(draft.task).idempotency_ttl
    for _ in range(10):
        submitted = runs.submit(run)
        if submitted is not None:
            return submitted
        taken = runs.taken_by(run, ttl)
        if taken is None:
            _refuse_what_is_late(run, runs)
        elif taken.id == run.id:
            return runs.move_in(run) or _same_id(draft, taken)
        elif taken.outlived_its_key:
            runs.free_key(taken.id, ttl)
        elif taken.fingerprint != run.fingerprint:
            raise IdempotencyConflict(
                f"{run.type}: the idempotency key {run.idempotency_key!r} was used by the run {taken.id}"
                " with other arguments"
            )
        elif not _may_run_again(draft, taken):
            return _follower(draft, taken, runs) if draft.has_own_id else taken
        elif again := runs.submit_again(replace(run, redrive_of=taken.id)):
            return again
    raise StoreUnavailable(f"{run.type}: other submissions with the key {run.idempotency_key!r} kept coming and going")


def announce_new(guard: Guard, run: NewRun, submitted: Submitted) -> None:
    """Tell those who watch of a run that was written, once it is committed."""
    if submitted.created:
        new = Transition.submitted(
            submitted.id,
            run.type,
            max_attempts=run.max_attempts,
            deadline_at=submitted.deadline_at,
            starts_at=submitted.starts_at,
            meta=json.loads(run.meta) if run.meta else {},
        )
        guard.announce(new)


def send(draft: Draft, run: Submitted) -> bool:
    """Publish a row just written. A broker that is down costs nothing but time: the dispatcher publishes later."""
    task = draft.task
    header = message_header(run.id, "created", deadline_at=run.deadline_at, fingerprint=run.fingerprint)
    try:
        publish(
            task.app,
            run.id,
            task.name,
            draft.args,
            draft.kwargs,
            draft.options,
            header,
            task_type=task,
            add_to_parent=False,
            **draft.transient,
        )
    except Exception as error:  # whatever the transport raises, the run is accepted
        guard_of(task.app).broker_failed_at = time.monotonic()
        logger.warning("%s[%s] is accepted but could not be published yet: %r", task.name, run.id, error)
        note(lambda: guard_of(task.app).runs.publish_soon([run.id], delay=1.0), run)
        if isinstance(error, SoftTimeLimitExceeded):
            raise  # it is meant for the body that submits
        return False
    guard_of(task.app).broker_failed_at = None
    return True


def send_after_commit(draft: Draft, run: Submitted) -> None:
    """Publish a row whose transaction has just committed; where an event loop runs, in a thread beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _send_and_note(draft, run)
    else:
        send_beside(draft, run)


def send_beside(draft: Draft, run: Submitted) -> None:
    """Publish a committed row in a thread beside the caller. In an outage of the broker the dispatcher does it."""

    def work() -> None:
        failed_at = guard_of(draft.task.app).broker_failed_at
        if failed_at is None or time.monotonic() - failed_at > _SOON:
            _send_and_note(draft, run)

    if not beside(work):
        logger.info("%s[%s] is accepted and left to the dispatcher: the broker is slow", run.type, run.id)


def _send_and_note(draft: Draft, run: Submitted) -> None:
    if send(draft, run):
        note(lambda: guard_of(draft.task.app).runs.published([run.id], lease=fresh_lease()), run)


def note(work: Callable[[], Any], run: Submitted) -> None:
    """Write down how the publishing went. Without that the row is looked at later; the run is accepted all the same."""
    try:
        work()
    except StoreUnavailable as away:
        logger.warning("%s[%s] is accepted, and the store is away now: %s", run.type, run.id, away)


def submit_stillborn(
    task: Any, args: Any, kwargs: Any, *, task_id: str | None, options: dict[str, Any], error: Exception
) -> str:
    """Write a follow-up that can't be submitted as a run that is over, so that Celery hears of it like of any other.

    An exception inside Celery's tracer would make a failure of the task that succeeded before. The arguments are kept
    where they can be encoded, for somebody to run it again.
    """
    kept = {name: options[name] for name in _CANVAS if options.get(name) is not None}
    how: dict[str, Any] = {"options": kept, "asked": _NOTHING, "publishing": Publishing.NOBODY}
    try:
        made = draft(task, args, kwargs, task_id=task_id, **how)
    except (GuardError, TypeError, ValueError):
        made = draft(task, (), {}, task_id=task_id, **how)
    fault = fault_of(error, Classification(Category.NON_RETRYABLE, "not_submittable"), limit=2_000)
    if isinstance(error, DeadlineExceeded):
        finish = Finish(State.DEAD, Reason.FAILED_DUE_DEADLINE, fault)
    else:
        finish = Finish(State.FAILED, Reason.FAILED_NON_RETRYABLE, fault)
    guard = guard_of(task.app)
    ended = guard.runs.submit_finished(made.run, finish)
    if ended is not None:
        guard.announce(Transition.settled(ended.type, ended.claim, finish, ended.meta, made_by="submitter"))
    return made.run.id


def adopt(task: Any, request: Any) -> None:
    """Write the row of a message that other code sent, as it arrives."""
    options = request.as_execution_options()
    run_id = options.pop("task_id")
    options["retries"] = None
    made = draft(
        task,
        request.args,
        request.kwargs,
        task_id=run_id,
        options=options,
        asked=Asked(),
        publishing=Publishing.NOBODY,
    )
    guard = guard_of(task.app)
    announce_new(guard, made.run, submit(made, guard.runs))


def new_run_id() -> str:
    """Return a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then chance, so that ids sort by time."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


_NOTHING = Asked(inherit_deadline=False)


def _publishing(publishing: Publishing) -> dict[str, Any]:
    if publishing is Publishing.HERE:
        return {"lease": fresh_lease()}
    return {"lease": _SOON if publishing is Publishing.SOON else None, "published": False}


def _follower(draft: Draft, first: Submitted, runs: RunStore) -> Submitted:
    """Give an id that others wait for, in a group or chord, a row of its own: it takes over the first run's ending."""
    follower = replace(
        draft.run, idempotency_key=None, idempotency_scope=None, same_as=first.id, lease=None, published=False
    )
    if runs.submit_follower(follower):
        announce_new(guard_of(draft.task.app), follower, replace(first, id=follower.id, created=True))
    return replace(first, id=follower.id)


def _refuse_what_is_late(run: NewRun, runs: RunStore) -> None:
    """The row was refused although nothing has its id or key: for a moment that is not before another."""
    clock = runs.clock()
    if run.deadline_after < 1 or clock >= run.deadline_at:
        raise DeadlineExceeded(
            "failed_due_deadline", f"the deadline {run.deadline_at} has passed already; nothing was submitted"
        )
    deadline_at = min(run.deadline_at, clock + timedelta(seconds=run.deadline_after))
    starts_at = run.delay_until or clock + timedelta(seconds=run.delay_for or 0)
    if starts_at >= deadline_at:
        raise InvalidOption(f"a start at {starts_at} is not before the deadline, {deadline_at}")


def _same_id(draft: Draft, taken: Submitted) -> Submitted:
    run = draft.run
    if not draft.has_own_id:  # our own row: the reply to the first try was lost
        return replace(taken, created=True)
    if taken.type == run.type and taken.fingerprint == run.fingerprint and taken.state not in TERMINAL:
        return taken
    raise RunExists(
        f"the id {run.id!r} belongs to a run of {taken.type} that is {taken.state}; leave task_id out to get a new one"
    )


def _may_run_again(draft: Draft, taken: Submitted) -> bool:
    """Whether the task lets its key start a new run after such an end."""
    return taken.state.value in draft.task.idempotency_rerun_after


def _note_ancestry(app: Any, options: dict[str, Any]) -> None:
    """Write down whose child this is, as Celery's ``send_task`` would, for the messages that come later."""
    parent, run = app.current_worker_task, running_here()
    if parent is not None:
        request = parent.request
        options["root_id"] = options.get("root_id") or request.root_id or request.id
        options["parent_id"] = options.get("parent_id") or request.id
    elif run is not None and run.held is not None:  # in a thread that the body has started
        options["root_id"] = options.get("root_id") or run.root_id or run.id
        options["parent_id"] = options.get("parent_id") or run.id


def _as_celery_takes(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"task args must be a list or tuple, not {args!r}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"task keyword arguments must be a mapping, not {kwargs!r}")
    return list(args or ()), dict(kwargs or {})


def _checked_id(task_id: Any) -> str:
    try:
        return checked_key(task_id, "task_id")
    except ValueError as error:
        raise InvalidOption(str(error)) from None
