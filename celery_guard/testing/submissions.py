"""What was submitted, for people to read when it is not what they expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery_guard.core.idempotency import bound_arguments
from celery_guard.errors import InvalidOption, UnserializableArgument
from celery_guard.flow import codec
from celery_guard.flow.guard import Guard
from celery_guard.store.records import TaskRun
from celery_guard.store.reports import ReportStore, RunFilter
from celery_guard.testing.stand_in import WatchedGuard

__all__ = ["Submission", "all_submissions", "call_of", "is_call_of", "listed", "task_of"]


@dataclass(frozen=True)
class Submission:
    """A run, and the arguments that it was submitted with."""

    run: TaskRun
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        run = self.run
        told = [str(run.state)]
        told += [str(run.terminal_reason)] if run.terminal_reason not in (None, run.state.value) else []
        told += [f"key {run.idempotency_key!r}"] if run.idempotency_key else []
        return f"{call_of(run.type, self.args, self.kwargs)}  {', '.join(told)}"


def task_of(app: Any, task: Any) -> Any:
    """Return a task that is given as itself or by its name.

    Raises:
        InvalidOption: the app has none of this name, or it is not guarded.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    found = app.tasks.get(name)
    if found is None:
        raise InvalidOption(f"task must be a task of the app {app.main!r} or the name of one, not {task!r}")
    if "_guard_bound" not in type(found).__dict__:
        raise InvalidOption(f"{name} is not guarded, so nothing is known of its submissions")
    return found


def all_submissions(guard: WatchedGuard) -> list[Submission]:
    """Return every run of the app's namespace, the first submitted first."""
    reports = ReportStore(guard.database, guard.settings.namespace)
    runs = [guard.runs.find(run_id, history=True) for run_id in reports.all_ids(RunFilter())]
    places = {run_id: place for place, run_id in enumerate(guard.submissions)}
    last = len(places)
    known = sorted(filter(None, runs), key=lambda run: (run.created_at, places.get(run.id, last), run.id))
    return [_submission(guard, run) for run in known]


def is_call_of(task: Any, submission: Submission, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Say whether a run was submitted with these arguments, however they are spelt.

    What the serializer makes of an argument counts as the same: a tuple arrives as a list.
    """
    signature = codec.signature_of(task)
    if submission.run.type != task.name:
        return False
    there = bound_arguments(signature, list(submission.args), submission.kwargs)
    return any(bound_arguments(signature, *spelt) == there for spelt in _spellings(task, list(args), dict(kwargs)))


def call_of(name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Write a call as Python does."""
    words = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"{name}({', '.join(words)})"


def listed(submissions: Iterable[Submission]) -> str:
    """Write a line for each of them."""
    return "\n".join(f"  {submission}" for submission in submissions) or "  nothing at all"


def _submission(guard: Guard, run: TaskRun) -> Submission:
    stored = guard.runs.payload(run.id)
    assert stored is not None
    options = codec.decode_options(stored[1])
    args, kwargs = codec.decode(stored[0], options.get("serializer") or guard.app.conf.task_serializer)
    return Submission(run, tuple(args), dict(kwargs))


def _spellings(task: Any, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
    given = [(args, kwargs)]
    serializer = task.serializer or task.app.conf.task_serializer
    with suppress(UnserializableArgument):  # such as mock.ANY, which compares by itself
        given.append(codec.decode(codec.encode_arguments(task, args, kwargs, serializer), serializer))
    return given
