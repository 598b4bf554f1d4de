"""Many runs of one task at once: their rows in a few statements, their messages over one producer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_guard.errors import GuardError, InvalidOption
from celery_guard.flow.guard import guard_of
from celery_guard.flow.publish import fresh_lease
from celery_guard.flow.submit import Draft, Publishing, announce_new, draft, note, send, submit
from celery_guard.flow.wishes import Asked
from celery_guard.observe.logs import logger
from celery_guard.store.records import Submitted

__all__ = ["submit_many"]

#: How many rows one statement writes.
BATCH = 200

#: How much longer than others the rows of a batch are leased, in seconds: their messages are sent one after the other.
PUBLISHING = 15.0


def submit_many(
    task: Any,
    arguments: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    deadline: timedelta | float | datetime | None = None,
    max_attempts: int | None = None,
    idempotency_keys: Sequence[str | None] | None = None,
    idempotency_scope: str | None = None,
    meta: Mapping[str, Any] | None = None,
    inherit_deadline: bool = True,
    **options: Any,
) -> list[Any]:
    """Submit a run for each set of arguments, with two statements per 200 rows.

    Args:
        task: a guarded task.
        arguments: one entry per run: a sequence of positional arguments, or a mapping of keyword arguments.
        deadline: for each of them, as in ``apply_async``.
        max_attempts: for each of them.
        idempotency_keys: one key, or None, per run; the task's own template otherwise.
        idempotency_scope: where the keys are unique; the task's own, or its name, otherwise.
        meta: for each of them.
        inherit_deadline: for each of them.
        options: what ``apply_async`` takes besides.

    Returns:
        A :class:`~celery_guard.GuardedResult` per entry, in order; ``created`` is false where the key had a run.

    Raises:
        InvalidOption, UnserializableArgument: one entry is not accepted; nothing was submitted.
        DeadlineExceeded, IdempotencyConflict, StoreUnavailable: as in ``apply_async``; other entries may be submitted.
    """
    task = task.app.tasks[task.name]  # a decorated function is a stand-in until its app is finalised
    entries = [(list(entry), {}) if not isinstance(entry, Mapping) else ([], dict(entry)) for entry in arguments]
    for name in ("task_id", "session"):
        if options.get(name) is not None:
            raise InvalidOption(f"{name} is not for many runs; submit them one by one")
    keys = list(idempotency_keys) if idempotency_keys is not None else [None] * len(entries)
    if len(keys) != len(entries):
        raise InvalidOption(f"idempotency_keys must have one entry per run: {len(keys)} for {len(entries)} runs")
    wanted = [Asked(deadline, max_attempts, key, idempotency_scope, meta, inherit_deadline) for key in keys]
    pairs = list(zip(entries, wanted, strict=True))
    if task.app.conf.task_always_eager:
        return [task.apply_async(args, kwargs, **asdict(asked), **options) for (args, kwargs), asked in pairs]
    drafts = [_draft(task, args, kwargs, dict(options), asked) for (args, kwargs), asked in pairs]
    results: list[Any] = []
    for first in range(0, len(drafts), BATCH):
        batch = drafts[first : first + BATCH]
        runs = _write(task, batch)
        _publish(task, list(zip(batch, runs, strict=True)))
        results += [
            task._result(run.id, run.created, bool(made.options.get("ignore_result")))
            for made, run in zip(batch, runs, strict=True)
        ]
    return results


def _draft(task: Any, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any], asked: Asked) -> Draft:
    prepared_args, prepared_kwargs, prepared = task._prepared(args, kwargs, None, options)
    return draft(
        task,
        prepared_args,
        prepared_kwargs,
        task_id=None,
        options=prepared,
        asked=asked,
        publishing=Publishing.HERE,
    )


def _write(task: Any, drafts: list[Draft]) -> list[Submitted]:
    """Write a batch; what met a key, an id or a deadline is looked at one by one.

    When one of them is refused the others are accepted all the same, and published.
    """
    runs = guard_of(task.app).runs
    found = runs.submit_many([replace(made.run, lease=(made.run.lease or 0) + PUBLISHING) for made in drafts])
    try:
        for made in drafts:
            if made.run.id not in found:
                found[made.run.id] = submit(made, runs)
    except GuardError:
        _publish(task, [(made, found[made.run.id]) for made in drafts if made.run.id in found])
        raise
    return [found[made.run.id] for made in drafts]


def _publish(task: Any, written: list[tuple[Draft, Submitted]]) -> None:
    """Announce a batch and send its messages. What may not have arrived is left to the dispatcher."""
    guard = guard_of(task.app)
    for made, run in written:
        announce_new(guard, made.run, run)
    waiting = [(made, run) for made, run in written if run.created and not run.waits]
    with task.app.producer_pool.acquire(block=True) as producer:
        missing = _send_together(producer, waiting)
    sent = [run.id for _, run in waiting[: len(waiting) - len(missing)]]
    if sent:
        note(lambda: guard.runs.published(sent, lease=fresh_lease()), written[0][1])
    if missing:
        guard.runs.publish_soon([run.id for _, run in missing], delay=1.0)


def _send_together(producer: Any, waiting: list[tuple[Draft, Submitted]]) -> list[tuple[Draft, Submitted]]:
    """Send messages in as few round trips as the transport can make of them; return those that may be missing.

    Once one can't be sent the rest is not tried: a broker that is away costs its time once.
    """
    sent = 0
    try:
        with producer.batch():
            for made, run in waiting:
                made.transient.setdefault("producer", producer)
                if not send(made, run):
                    break
                sent += 1
    except SoftTimeLimitExceeded:
        raise  # it is meant for the body that submits; the dispatcher publishes the rest
    except Exception as error:  # of messages that travel together nobody knows which arrived
        logger.warning("%d runs are accepted but may not be published yet: %r", len(waiting), error)
        return waiting
    return waiting[sent:]
