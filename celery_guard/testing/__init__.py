"""For a user's own tests: ``pytest_plugins = ["celery_guard.testing"]`` gives the fixture ``guard_kit``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_guard.testing.clock import Clock
from celery_guard.testing.crash import CrashPoint
from celery_guard.testing.kit import GuardKit, open_kit
from celery_guard.testing.submissions import Submission

__all__ = ["Clock", "CrashPoint", "GuardKit", "Submission", "guard_app", "guard_database_url", "guard_kit", "open_kit"]


@pytest.fixture
def guard_app() -> Any:
    """The app under test, for you to override."""
    pytest.fail("guard_kit needs your app: return it from a fixture guard_app in your conftest.py", pytrace=False)


@pytest.fixture
def guard_database_url(tmp_path: Path) -> str:
    """Where the runs of a test are kept: a new SQLite file. Override this fixture for a database of your own."""
    return f"sqlite:///{tmp_path / 'guard.db'}"


@pytest.fixture
def guard_kit(guard_app: Any, guard_database_url: str) -> Iterator[GuardKit]:
    """The app without a worker: what was submitted, and a clock and workers that the test moves."""
    with open_kit(guard_app, guard_database_url) as kit:
        yield kit
