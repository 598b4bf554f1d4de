"""A row's message: the same the first time, after a retry, and when an ending is told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from celery.utils.saferepr import saferepr

from celery_guard.flow.codec import decode, decode_options
from celery_guard.flow.traces import TRACE, continued
from celery_guard.store.records import Due

__all__ = ["BY_REFERENCE", "HEADER", "LEASE", "header_of", "message_header", "publish", "publish_due"]

#: The message header that is ours.
HEADER = "guard"

#: How long a broker that confirms may take to do so, in seconds; then the row is published again later.
CONFIRM_TIMEOUT = 10.0

#: The stored option that says: the message carries the run's id only.
BY_REFERENCE = "guard_by_reference"

#: Seconds within which a published run should be claimed, before its message counts as a suspect.
LEASE = (15.0, 30.0)


def fresh_lease() -> float:
    """Return a lease, spread so that rows submitted together are not looked at together."""
    return random.uniform(*LEASE)


def message_header(
    run_id: str, event: str, *, deadline_at: datetime, fingerprint: str, attempt: int = 0, ticket: int = 0
) -> dict[str, Any]:
    """Return our part of a message's headers: which run it is for, and why it is sent."""
    return {
        "v": 1,
        "id": run_id,
        "event": event,
        "deadline": deadline_at.isoformat(),
        "fingerprint": fingerprint,
        "attempt": attempt,
        "ticket": ticket,
    }


def header_of(request: Any) -> Mapping[str, Any] | None:
    """Return our header as a worker's request, or an eager one, carries it."""
    found = getattr(request, HEADER, None) or (request.headers or {}).get(HEADER)
    return found if isinstance(found, Mapping) else None


class _Sent:
    """In the place of the result object that ``send_task`` makes, and nobody reads."""

    def __init__(self, task_id: str) -> None:
        self.id = task_id


def publish(
    app: Any,
    run_id: str,
    name: str,
    args: Any,
    kwargs: Any,
    options: Mapping[str, Any],
    header: Mapping[str, Any],
    **transient: Any,
) -> None:
    """Send one message by Celery's own ``send_task``; it needs no registered task."""
    sent = {
        "confirm_timeout": CONFIRM_TIMEOUT,
        **options,
        **transient,
        "expires": None,  # the row expires; a broker would drop the message unheard
        "result_cls": _Sent,
    }
    if sent.pop(BY_REFERENCE, False):
        header = {**header, "fingerprint": None}  # the claim brings the arguments
        sent = {"argsrepr": saferepr(args, 256), "kwargsrepr": saferepr(kwargs, 256), **sent}
        args, kwargs = [], {}
    trace = sent.pop(TRACE, {})
    sent["headers"] = {**trace, **(options.get("headers") or {}), HEADER: dict(header)}
    with continued(trace) if trace else nullcontext():
        app.send_task(name, args, kwargs, task_id=run_id, **sent)


def publish_due(app: Any, due: Due, *, producer: Any) -> None:
    """Send the message of a row that is due."""
    options = decode_options(due.options)
    serializer = options.get("serializer") or app.conf.task_serializer
    args, kwargs = decode(due.payload, serializer)
    event = "deliver" if due.owed else "retry" if due.attempt and due.ticket == 1 else "republish"
    header = message_header(
        due.id, event, deadline_at=due.deadline_at, fingerprint=due.fingerprint, attempt=due.attempt, ticket=due.ticket
    )
    options["retries"] = max(options.get("retries") or 0, due.attempt - int(due.owed))
    if "queue" in app.amqp.router.route(dict(options), due.type, args, kwargs):
        options["queue"] = due.queue  # where it was submitted to, whatever this worker's own routes say
    publish(app, due.id, due.type, args, kwargs, options, header, producer=producer, add_to_parent=False)
