"""Checks of each guarded task."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from string import Formatter
from typing import Any

from celery_guard.cli.preflight.finding import Finding, fail, guarded_tasks, ok, per_task, warn
from celery_guard.core.wording import spell
from celery_guard.flow.guard import guard_of
from celery_guard.flow.request import GuardedRequest
from celery_guard.settings import UNLIMITED_ATTEMPTS, TaskSettings

__all__ = [
    "SHORT_DEADLINE",
    "broad_rules",
    "checked",
    "classification",
    "concurrency",
    "deadlines",
    "guarded",
    "hard_limit",
    "hung_calls",
    "idempotency",
    "jitter",
    "longest_attempt",
    "max_attempts",
    "message_mode",
    "retry_rate",
    "time_limits",
    "timeouts_inside",
]

#: A deadline up to which a call that hangs does no great harm.
SHORT_DEADLINE = timedelta(minutes=15)

#: More attempts than these are more likely a mistake than a wish.
_MANY_ATTEMPTS = 50

_BROAD = (BaseException, Exception)


def guarded(app: Any, guard: Any) -> Iterator[Finding]:
    """Name what is guarded, and what is not."""
    found = guarded_tasks(app)
    others = sorted(name for name, task in app.tasks.items() if not name.startswith("celery.") and task not in found)
    if not found:
        yield fail(
            "no task is guarded", "make the app with Celery(task_cls=GuardedTask), or give tasks base=GuardedTask"
        )
    else:
        yield ok(f"{len(found)} tasks are guarded")
    if others and found:
        unguarded = warn(f"{len(others)} tasks are not guarded", "give them base=GuardedTask, if their runs matter")
        yield Finding(unguarded.level, unguarded.why, unguarded.do, tuple(others))


@per_task
def deadlines(task: Any, settings: TaskSettings) -> Finding:
    """A deadline of the task's own, or one that was configured, or the technical default."""
    if task.deadline is not None:
        return ok("the task names its deadline")
    if "deadline" in guard_of(task.app).settings.task.model_fields_set:
        return ok(f"guard_default_deadline gives {spell(settings.deadline)}")
    return warn(
        f"no deadline is named, so the technical default of {spell(settings.deadline)} holds",
        "give deadline= to the task, or set guard_default_deadline",
    )


@per_task
def checked(task: Any, settings: TaskSettings) -> Finding:
    """The guard's own entry points stand between Celery and the body."""
    if not hasattr(type(task).__call__, "_guard_inner"):
        return fail("its __call__ was replaced after the guard was put around it", "don't replace __call__ of a task")
    if not _is_ours(task.Request):
        return fail(f"its Request is {task.Request!r}", "derive it from celery_guard.flow.request.GuardedRequest")
    return ok("the deadline is checked at submission, at the claim, when a retry is planned, and when the body returns")


@per_task
def max_attempts(task: Any, settings: TaskSettings) -> Finding:
    """A count of attempts that means something."""
    count = settings.max_attempts
    if count >= UNLIMITED_ATTEMPTS:
        return warn("max_retries=None: only the deadline ends its attempts", "give max_attempts= to the task")
    if count > _MANY_ATTEMPTS:
        return warn(f"{count} attempts", f"ask whether more than {_MANY_ATTEMPTS} attempts are meant")
    return ok(f"at most {count} attempt{'s' if count > 1 else ''}")


@per_task
def classification(task: Any, settings: TaskSettings) -> Finding:
    """Rules of the task's own, or the shipped ones, with a small count for what nobody knows."""
    own = [name for name in ("retryable", "non_retryable", "classify") if getattr(task, name, None)]
    if settings.unknown_max_attempts >= settings.max_attempts > 1:
        return warn(
            f"unknown errors may use up all {settings.max_attempts} attempts",
            "keep unknown_max_attempts below max_attempts, and declare what is retryable",
        )
    rules = f"{' and '.join(own)}, and the shipped rules" if own else "the shipped rules"
    return ok(f"{rules}; errors that no rule knows: at most {settings.unknown_max_attempts} attempts")


@per_task
def broad_rules(task: Any, settings: TaskSettings) -> Finding | None:
    """Exception as a whole says nothing."""
    configured = guard_of(task.app).settings
    rules = {
        "retryable": task.retryable,
        "non_retryable": task.non_retryable,
        "autoretry_for": getattr(task, "autoretry_for", ()) or (),
        "guard_retryable_errors": configured.retryable_errors,
        "guard_non_retryable_errors": configured.non_retryable_errors,
    }
    broad = [name for name, classes in rules.items() if any(map(_is_broad, classes))]
    if not broad:
        return ok("every rule names errors of some kind")
    repeats = [name for name in broad if "non_retryable" not in name]
    harm = "permanent errors are repeated" if repeats else "passing errors are not repeated"
    return warn(f"{' and '.join(broad)} names every Exception: {harm}", "name the errors that are meant")


@per_task
def jitter(task: Any, settings: TaskSettings) -> Finding:
    """Retries of runs that failed together must not come together."""
    if callable(settings.backoff):
        return ok("the task's own backoff decides; let it spread retries")
    if settings.backoff is not None:
        return warn("backoff= lists fixed delays: runs that failed together come back together", "use backoff_jitter")
    if settings.backoff_jitter in ("none", 0):
        return warn("no jitter: runs that failed together come back together", "set guard_backoff_jitter='equal'")
    return ok(f"delays are spread: {settings.backoff_jitter}")


@per_task
def retry_rate(task: Any, settings: TaskSettings) -> Finding:
    """A rate so slow that the second retry in the queue is past the deadline limits nothing but success."""
    between = settings.seconds_between_retries()
    if between is None:
        return ok("retries are not limited by a rate")
    if between >= settings.deadline.total_seconds():
        return warn(
            f"retry_rate={settings.retry_rate!r} leaves {between:g} s between retries, longer than the deadline",
            "raise the rate or the deadline",
        )
    return ok(f"at most {settings.retry_rate} retries over all workers")


@per_task
def concurrency(task: Any, settings: TaskSettings) -> Finding:
    """A key that is the same for all runs is none."""
    key, limit = task.concurrency_key, settings.concurrency
    if limit is None:
        return ok("as many may run at once as there are workers for")
    if key is None:
        return ok(f"at most {limit} at once over all workers")
    if isinstance(key, str) and all(name is None for _, name, _, _ in Formatter().parse(key)):
        return warn(
            f"concurrency_key={key!r} names no argument, so it is the same for all runs",
            "name arguments in braces, such as 'tenant-{tenant_id}', or leave the key out",
        )
    return ok(f"at most {limit} at once for each concurrency_key")


@per_task
def time_limits(task: Any, settings: TaskSettings) -> Finding:
    """Limits of one attempt lie in order, and before the end of the run."""
    hard, soft = hard_limit(task), _soft_limit(task)
    if hard and soft and soft >= hard:
        return fail(
            f"soft_time_limit ({soft:g} s) is not before time_limit ({hard:g} s)", "make the soft limit shorter"
        )
    limit = soft or hard
    if limit and limit > settings.deadline.total_seconds():
        return warn(
            f"one attempt may take {limit:g} s, longer than the whole run's deadline ({spell(settings.deadline)})",
            "shorten the time limit, so that a retry has a chance",
        )
    return ok("time limits lie within the deadline" if limit else "the deadline limits an attempt")


@per_task
def hung_calls(task: Any, settings: TaskSettings) -> Finding:
    """A call that never returns ends by a time limit, or by the deadline."""
    if hard_limit(task) or _soft_limit(task):
        return ok("a time limit ends an attempt that hangs")
    if settings.deadline <= SHORT_DEADLINE:
        return ok("the deadline is short enough to end an attempt that hangs")
    return warn(
        f"neither a time limit nor a deadline within {spell(SHORT_DEADLINE)}: a call that hangs holds its slot until"
        " the deadline",
        "give soft_time_limit= or a shorter deadline= to the task",
    )


@per_task
def timeouts_inside(task: Any, settings: TaskSettings) -> Finding:
    """Whether the body speaks of timeouts: all that can be told from outside."""
    if "timeout" in _body_text(task) or hard_limit(task) or _soft_limit(task):
        return ok("the body names a timeout, or a time limit ends the attempt")
    return warn(
        "its body names no timeout (as far as its own text tells)",
        "give calls to others timeout=current_run().timeout(at_most=…)",
    )


@per_task
def idempotency(task: Any, settings: TaskSettings) -> Finding | None:
    """A task that says it is critical has a key, so that one intent is one run."""
    if not getattr(task, "critical", False):
        return None
    if getattr(type(task), "idempotency_key", None) is None:
        return fail(
            "critical=True, and no idempotency_key: a caller that repeats a submission makes a second run",
            "give idempotency_key= to the task, a template such as 'receipt-{order_id}'",
        )
    return ok("a critical task, and its key makes one intent one run")


@per_task
def message_mode(task: Any, settings: TaskSettings) -> Finding:
    """What is sent, and whether workers take it."""
    conf = task.app.conf
    serializer = task.serializer or conf.task_serializer
    if serializer not in conf.accept_content and f"application/x-{serializer}" not in conf.accept_content:
        return fail(
            f"it is sent as {serializer}, and accept_content is {sorted(conf.accept_content)}",
            "add it to accept_content",
        )
    said = "whole messages" if settings.message == "full" else "messages that name the run, arguments stay in the row"
    return ok(f"{said}, as {serializer}")


def hard_limit(task: Any) -> float | None:
    """Return the hard time limit of one attempt."""
    return task.time_limit or task.app.conf.task_time_limit  # type: ignore[no-any-return]


def longest_attempt(task: Any, settings: TaskSettings) -> float:
    """Return how long one attempt may hold its message, in seconds."""
    by_deadline = (settings.deadline + settings.deadline_grace).total_seconds()
    return min(hard_limit(task) or by_deadline, by_deadline)


def _soft_limit(task: Any) -> float | None:
    return task.soft_time_limit or task.app.conf.task_soft_time_limit  # type: ignore[no-any-return]


def _is_broad(error: Any) -> bool:
    return error in _BROAD or error in ("Exception", "BaseException", "builtins.Exception", "builtins.BaseException")


def _is_ours(request: Any) -> bool:
    from celery.utils.imports import symbol_by_name

    found = symbol_by_name(request)
    return isinstance(found, type) and issubclass(found, GuardedRequest)


def _body_text(task: Any) -> str:
    body = inspect.unwrap(task.run)
    try:
        return inspect.getsource(body)
    except (OSError, TypeError):
        code = getattr(body, "__code__", None)
        return " ".join((*code.co_names, *code.co_varnames)) if code else ""
