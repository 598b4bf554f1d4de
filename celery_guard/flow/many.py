"""Many runs of one task at once: their rows in a few statements, their messages over one producer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery_guard.errors import InvalidOption
from celery_guard.flow.guard import guard_of
from celery_guard.flow.submit import Draft, Publishing, draft, send, submit
from celery_guard.flow.wishes import Asked
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
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Submit a run for each set of arguments, with one statement per 200 rows.

    Args:
        task: a guarded task.
        arguments: one entry per run: a sequence of positional arguments, or a mapping of keyword arguments.
        deadline: for each of them, as in ``apply_async``.
        max_attempts: for each of them.
        idempotency_keys: one key, or None, per run; the task's own template otherwise.
        meta: for each of them.
        options: what ``apply_async`` takes besides.

    Returns:
        A :class:`~celery_guard.GuardedResult` per entry, in order; ``created`` is false where the key had a run.

    Raises:
        InvalidOption, UnserializableArgument: one entry is not accepted; nothing was submitted.
        DeadlineExceeded, IdempotencyConflict, StoreUnavailable: as in ``apply_async``; entries before may be submitted.
    """
    task = task.app.tasks[task.name]  # a decorated function is a stand-in until its app is finalised
    entries = [(list(entry), {}) if not isinstance(entry, Mapping) else ([], dict(entry)) for entry in arguments]
    keys = list(idempotency_keys) if idempotency_keys is not None else [None] * len(entries)
    if len(keys) != len(entries):
        raise InvalidOption(f"idempotency_keys must have one entry per run: {len(keys)} for {len(entries)} runs")
    drafts = [
        _draft(task, args, kwargs, dict(options), Asked(deadline, max_attempts, key, meta=meta))
        for (args, kwargs), key in zip(entries, keys, strict=True)
    ]
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
    """Write a batch; what met a key, an id or a deadline is looked at one by one."""
    runs = guard_of(task.app).runs
    written = runs.submit_many([replace(made.run, lease=(made.run.lease or 0) + PUBLISHING) for made in drafts])
    return [written.get(made.run.id) or submit(made, runs) for made in drafts]


def _publish(task: Any, written: list[tuple[Draft, Submitted]]) -> None:
    with task.app.producer_pool.acquire(block=True) as producer:
        for made, run in written:
            if run.created and not run.waits:
                made.transient.setdefault("producer", producer)
                send(made, run)
