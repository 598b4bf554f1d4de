"""Comparing what came of the runs with what had to come of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery.exceptions import TimeoutError

from example_project.scenarios import Scenario

__all__ = ["Seen", "differences", "ended", "look_at", "unexpected_files"]

FOLDERS = ("exports", "mails")
WAIT_FOR_CELERY = 15.0


@dataclass(frozen=True)
class Seen:
    """What came of one run: in its row, in Celery's eyes, and outside."""

    state: str
    reason: str
    attempts: int
    celery_state: str
    raised: str | None
    visits: Mapping[str, int]
    lines: Mapping[str, int]


def ended(run: Any) -> bool:
    """Say whether a snapshot is final."""
    return run.finished_at is not None


def look_at(scenario: Scenario, result: Any, visits: Mapping[str, int], home: Path) -> Seen:
    """Collect what came of a run; when it has ended, give Celery a moment to hear of it."""
    run = result.run
    outcome = _told(result) if ended(run) else None
    return Seen(
        state=str(run.state),
        reason=str(run.terminal_reason),
        attempts=run.attempt,
        celery_state=result.state,
        raised=type(outcome).__name__ if isinstance(outcome, BaseException) else None,
        visits={place.path: visits[place.path] for place in scenario.places},
        lines={name: _lines(home / name) for name in scenario.files},
    )


def differences(scenario: Scenario, seen: Seen) -> list[str]:
    """Return in words what is not as it must be; empty when all is well."""
    wanted = {
        "state": scenario.state,
        "reason": scenario.reason,
        "attempts": scenario.attempts,
        "celery_state": "SUCCESS" if scenario.raises is None else "FAILURE",
        "raised": scenario.raises,
        "visits": {place.path: place.visits for place in scenario.places},
        "lines": dict(scenario.files),
    }
    return [
        f"{scenario.title}: {name} is {getattr(seen, name)!r}, not {want!r}"
        for name, want in wanted.items()
        if getattr(seen, name) != want
    ]


def unexpected_files(scenarios: Sequence[Scenario], home: Path) -> list[str]:
    """Return the finished files that no scenario asked for; a ``.part`` of a killed process is not one."""
    wanted = {name for scenario in scenarios for name in scenario.files}
    found = {file.relative_to(home).as_posix() for folder in FOLDERS for file in (home / folder).glob("*")}
    return [f"{name}: nobody asked for this file" for name in sorted(found - wanted) if not name.endswith(".part")]


def _told(result: Any) -> Any:
    """Return the value or the error that Celery's result has in the end."""
    with suppress(TimeoutError):
        return result.get(timeout=WAIT_FOR_CELERY, propagate=False)
    return None


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
