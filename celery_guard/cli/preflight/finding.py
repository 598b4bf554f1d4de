"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any

from celery_guard.flow.guard import task_settings

__all__ = ["Check", "Finding", "Level", "Result", "fail", "guarded_tasks", "ok", "per_task", "warn"]


class Level(str, Enum):
    """How bad it is."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One answer: why, what to do about it, and which tasks it is about."""

    level: Level
    why: str
    do: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One question. ``gate``: when it fails, the database is not asked any more."""

    name: str
    question: str
    run: Callable[[Any, Any], Iterable[Finding]]
    gate: bool = False


@dataclass(frozen=True)
class Result:
    """One answer to one question."""

    check: str
    question: str
    finding: Finding


def ok(why: str) -> Finding:
    """Say that nothing is to be done."""
    return Finding(Level.PASS, why)


def warn(why: str, do: str) -> Finding:
    """Say that it works, and where it will hurt."""
    return Finding(Level.WARN, why, do)


def fail(why: str, do: str) -> Finding:
    """Say that it must not go live like this."""
    return Finding(Level.FAIL, why, do)


def guarded_tasks(app: Any) -> list[Any]:
    """Return the guarded tasks of an app, by name."""
    return [task for _, task in sorted(app.tasks.items()) if hasattr(type(task), "_guard_bound")]


def per_task(
    check: Callable[[Any, Any], Finding | None],
) -> Callable[[Any, Any], Iterator[Finding]]:
    """Ask about each guarded task and its settings; tasks with the same answer share one line."""

    @wraps(check)
    def ask_each(app: Any, guard: Any) -> Iterator[Finding]:
        told: dict[Finding, list[str]] = {}
        for task in guarded_tasks(app):
            finding = check(task, task_settings(task))
            if finding is not None:
                told.setdefault(finding, []).append(task.name)
        for finding in sorted(told, key=lambda one: [*Level].index(one.level)):
            yield Finding(finding.level, finding.why, finding.do, tuple(told[finding]))

    return ask_each
