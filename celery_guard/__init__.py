"""Celery tasks whose life is modelled: deadlines, attempts, one claim, one ending, one reason."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_guard.core.backoff import compute_backoff_delay as compute_backoff_delay
    from celery_guard.core.explain import Explanation as Explanation
    from celery_guard.core.states import Reason as Reason, State as State
    from celery_guard.errors import (
        AttemptsExhausted as AttemptsExhausted,
        DeadlineExceeded as DeadlineExceeded,
        GuardError as GuardError,
        IdempotencyConflict as IdempotencyConflict,
        InvalidOption as InvalidOption,
        NonRetryableError as NonRetryableError,
        ResultNotKept as ResultNotKept,
        RetryableError as RetryableError,
        RunCancelled as RunCancelled,
        RunEnded as RunEnded,
        RunExists as RunExists,
        RunNotFound as RunNotFound,
        SchemaMismatch as SchemaMismatch,
        Snooze as Snooze,
        StepReused as StepReused,
        StoreUnavailable as StoreUnavailable,
        TaskFailed as TaskFailed,
        UnserializableArgument as UnserializableArgument,
        WorkerLost as WorkerLost,
    )
    from celery_guard.flow.cancel import cancel as cancel
    from celery_guard.flow.context import CurrentRun as CurrentRun, current_run as current_run
    from celery_guard.flow.explain import explain as explain
    from celery_guard.flow.many import submit_many as submit_many
    from celery_guard.flow.redrive import redrive as redrive
    from celery_guard.flow.result import EagerRun as EagerRun, GuardedResult as GuardedResult, get_run as get_run
    from celery_guard.flow.task import GuardedTask as GuardedTask
    from celery_guard.observe.transitions import Transition as Transition
    from celery_guard.store.records import TaskRun as TaskRun

__version__ = "0.1.0"

_HOMES = {
    "celery_guard.core.backoff": ("compute_backoff_delay",),
    "celery_guard.core.explain": ("Explanation",),
    "celery_guard.core.states": ("Reason", "State"),
    "celery_guard.errors": (
        "AttemptsExhausted",
        "DeadlineExceeded",
        "GuardError",
        "IdempotencyConflict",
        "InvalidOption",
        "NonRetryableError",
        "ResultNotKept",
        "RetryableError",
        "RunCancelled",
        "RunEnded",
        "RunExists",
        "RunNotFound",
        "SchemaMismatch",
        "Snooze",
        "StepReused",
        "StoreUnavailable",
        "TaskFailed",
        "UnserializableArgument",
        "WorkerLost",
    ),
    "celery_guard.flow.cancel": ("cancel",),
    "celery_guard.flow.context": ("CurrentRun", "current_run"),
    "celery_guard.flow.explain": ("explain",),
    "celery_guard.flow.many": ("submit_many",),
    "celery_guard.flow.redrive": ("redrive",),
    "celery_guard.flow.result": ("EagerRun", "GuardedResult", "get_run"),
    "celery_guard.flow.task": ("GuardedTask",),
    "celery_guard.observe.transitions": ("Transition",),
    "celery_guard.store.records": ("TaskRun",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker takes the imports above, and nothing else

    def __getattr__(name: str) -> Any:
        """Load a public name on first use: importing the package alone costs nothing."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value
