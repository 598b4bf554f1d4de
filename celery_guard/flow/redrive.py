"""Running again what has ended: a new run that points at the old one."""

from __future__ import annotations

from typing import Any

from celery.app import app_or_default

from celery_guard.errors import InvalidOption, RunNotFound, StoreUnavailable
from celery_guard.flow import codec
from celery_guard.flow.guard import guard_of, task_settings
from celery_guard.flow.result import GuardedResult, get_run
from celery_guard.flow.submit import announce_new, new_run_id
from celery_guard.store.records import NewRun, TaskRun

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
    run = _again(app, old)
    submitted = guard.runs.submit(run)
    if submitted is None:
        raise StoreUnavailable(f"the run that repeats {run_id!r} was not written; try again")
    announce_new(guard, run, submitted)
    return GuardedResult(run.id, app=app)


def _again(app: Any, old: TaskRun) -> NewRun:
    """Make a row like the old one, due at once: a worker's dispatcher publishes it."""
    guard = guard_of(app)
    stored = guard.runs.payload(old.id)
    if stored is None:
        raise RunNotFound(f"no run has the id {old.id!r}")
    payload, options = stored[0], codec.decode_options(stored[1])
    task = app.tasks.get(old.type)
    settings = task_settings(task) if task is not None else guard.settings.task
    return NewRun(
        id=new_run_id(),
        namespace=guard.settings.namespace,
        type=old.type,
        queue=old.queue,
        payload=payload,
        options=codec.encode_options(_repeated(options)),
        fingerprint=codec.digest(payload),
        max_attempts=settings.max_attempts,
        deadline_after=settings.deadline.total_seconds(),
        lease=0.0,
        published=False,
        parent_id=old.parent_id,
        root_id=old.root_id,
        redrive_of=old.id,
        concurrency_group=old.concurrency_group,
        meta=codec.encode(old.meta, "json") if old.meta else None,
    )


def _repeated(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run that repeats another: what follows it has new ids, since the old ones have ended."""
    kept = {name: value for name, value in options.items() if name not in _GONE}
    repeated: dict[str, Any] = _with_new_ids({"options": kept}, {})["options"]
    return repeated


def _with_new_ids(signature: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """Give a signature and all inside of it new ids; equal ones stay equal."""
    found = {**signature, "options": dict(signature.get("options") or {})}
    options = found["options"]
    for name in _IDS & options.keys():
        options[name] = ids.setdefault(str(options[name]), new_run_id())
    for name in _FOLLOWERS & options.keys():
        options[name] = _each_with_new_ids(options[name], ids)
    if found.get("subtask_type") in _CANVASES:
        parts = {name: _each_with_new_ids(found["kwargs"][name], ids) for name in _PARTS & found["kwargs"].keys()}
        found["kwargs"] = {**found["kwargs"], **parts}
    return found


def _each_with_new_ids(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_each_with_new_ids(item, ids) for item in value]
    return _with_new_ids(value, ids) if isinstance(value, dict) else value


#: Where a signature keeps ids, those that follow it, and, when it is a canvas, what it is made of.
_IDS = {"task_id", "group_id"}
_FOLLOWERS = {"link", "link_error", "chain", "chord"}
_CANVASES = {"chain", "group", "chord"}
_PARTS = {"tasks", "header", "body"}
