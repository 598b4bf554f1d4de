"""Running again what has ended: a new run that points at the old one."""

from __future__ import annotations

from typing import Any

from celery.app import app_or_default

from celery_guard.errors import InvalidOption, RunNotFound
from celery_guard.flow import codec
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.publish import LEASE, message_header, publish
from celery_guard.flow.result import GuardedResult, get_run
from celery_guard.flow.submit import new_run_id
from celery_guard.observe.logs import logger
from celery_guard.store.records import NewRun

__all__ = ["redrive"]

#: What belongs to the canvas that the old run was part of, and has gone on without it.
_GONE = ("chord", "group_id", "group_index", "retries")


def redrive(run_id: str, *, app: Any = None) -> Any:
    """Submit the arguments of an ended run again, as a new run with fresh attempts and a fresh deadline.

    The new run keeps queue, links, chain and meta of the old one, whose id is its ``redrive_of``. It is no member of
    the old one's group or chord any more, and carries no idempotency key.

    Args:
        run_id: the run that has ended.
        app: the Celery app; the current one by default.

    Returns:
        A :class:`~celery_guard.GuardedResult`.

    Raises:
        RunNotFound: no run of this app's namespace has this id.
        InvalidOption: the run has not ended.
        StoreUnavailable: the database can't be reached; nothing was stored.
    """
    app = app_or_default(app)
    guard, old = guard_of(app), get_run(run_id, app=app)
    if not old.is_terminal:
        raise InvalidOption(f"the run {run_id} is {old.state}: only a run that has ended can be driven again")
    stored = guard.runs.payload(run_id)
    if stored is None:
        raise RunNotFound(f"no run has the id {run_id!r}")
    payload, options = (
        stored[0],
        {name: value for name, value in codec.decode_options(stored[1]).items() if name not in _GONE},
    )
    task = app.tasks.get(old.type)
    settings = task_settings(task) if task is not None else guard.settings.task
    run = NewRun(
        id=new_run_id(),
        namespace=guard.settings.namespace,
        type=old.type,
        queue=old.queue,
        payload=payload,
        options=codec.encode_options(options),
        fingerprint=codec.digest(payload),
        max_attempts=settings.max_attempts,
        deadline_after=settings.deadline.total_seconds(),
        lease=LEASE[0],
        parent_id=old.parent_id,
        root_id=old.root_id,
        redrive_of=old.id,
        meta=codec.encode(old.meta, "json") if old.meta else None,
    )
    submitted = guard.runs.submit(run)
    assert submitted is not None, "a new id meets nothing, and a duration from now is never past"
    args, kwargs = codec.decode(payload, options.get("serializer") or app.conf.task_serializer)
    header = message_header(run.id, "created", deadline_at=submitted.deadline_at, fingerprint=run.fingerprint)
    try:
        publish(app, run.id, run.type, args, kwargs, options, header, add_to_parent=False)
    except Exception as error:  # whatever the transport raises, the run is accepted
        logger.warning("%s[%s] is accepted but could not be published yet: %r", run.type, run.id, error)
        guard.runs.publish_soon([run.id], delay=1.0)
    return GuardedResult(run.id, app=app)
