"""Concurrency limits: what a task may say, and to whom a permit goes that becomes free."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from string import Formatter
from typing import Any

from celery_guard.errors import InvalidOption, StoreUnavailable
from celery_guard.flow.codec import signature_of
from celery_guard.flow.guard import Guard, task_settings
from celery_guard.flow.publish import fresh_lease, publish_due
from celery_guard.observe.logs import logger
from celery_guard.store.records import Due

__all__ = ["check_concurrency_key", "free_permit", "grant_what_is_free", "pass_on_permit"]


def check_concurrency_key(cls: Any) -> None:
    """Refuse a key that limits nothing, and a template that no call of the task can fill.

    Raises:
        InvalidOption: the text names the task, the key and what is accepted.
    """
    key = cls.concurrency_key
    if key is None:
        return
    if task_settings(cls).concurrency is None:
        raise InvalidOption(
            f"{cls.name}: concurrency_key={key!r} limits nothing without concurrency: how many runs with the same key"
            " may be running at once"
        )
    if not callable(key):
        _check_template(cls, key)


def _check_template(cls: Any, template: Any) -> None:
    try:
        fields = {re.split(r"[.\[]", name)[0] for _, name, _, _ in Formatter().parse(template) if name is not None}
    except (TypeError, ValueError) as error:
        raise InvalidOption(
            f"{cls.name}: concurrency_key must be a template such as 'tenant-{{tenant_id}}' or a callable, not"
            f" {template!r} ({error})"
        ) from None
    signature = signature_of(cls)
    unknown = sorted(fields - set(signature.parameters)) if signature else ()
    if unknown:
        raise InvalidOption(f"{cls.name}: concurrency_key={template!r} names {unknown}, which the task does not take")


def pass_on_permit(guard: Guard, run_id: str, limit: int) -> None:
    """Give the permit of an attempt that is over to the run that waits longest, and publish that at once.

    What goes wrong here costs no more than time: a worker finds free permits, and the dispatcher what is unpublished.
    """
    try:
        due = guard.permits.grant(run_id, limit=limit, lease=fresh_lease())
        if due:
            with ThreadPoolExecutor(1) as elsewhere:  # Celery takes what is sent in a task's own thread for its child
                elsewhere.submit(_publish, guard, due).result()
    except StoreUnavailable as away:
        logger.warning("the store is away; whoever waits for the permit of run %s waits on: %s", run_id, away)


def _publish(guard: Guard, due: Sequence[Due]) -> None:
    try:
        for row in due:
            publish_due(guard.app, row, producer=None)
    except Exception as error:  # whatever the transport raises, the dispatcher publishes later
        logger.warning("runs with a permit could not be published yet: %r", error)
        guard.runs.publish_soon([row.id for row in due], delay=0.0)


def free_permit(guard: Guard, task_type: str, run_id: str) -> None:
    """Grant the permit of an attempt that was ended from outside; a dispatcher publishes whom it goes to."""
    task = guard.app.tasks.get(task_type)
    limit = task_settings(task).concurrency if task is not None else None
    if limit is not None:
        guard.permits.grant(run_id, limit=limit)


def grant_what_is_free(guard: Guard) -> int:
    """Grant permits that nobody passed on, and return how many: a worker was killed just then, a limit was raised.

    Groups of tasks that this worker does not know are left to those that do.
    """
    granted = 0
    for group in guard.permits.waiting_groups():
        task: Any = guard.app.tasks.get(group.type)
        if task is not None:
            limit = task_settings(task).concurrency or group.held + guard.settings.dispatch_batch
            if group.held < limit:
                granted += len(guard.permits.grant(group.run_id, limit=limit))
    return granted
