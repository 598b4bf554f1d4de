"""A kitchen whose tasks share few places, and workers for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.conftest import SetScene, scene as scene, worker as worker
from tests.acceptance.scenes import Scene


@pytest.fixture
def open_kitchen(scene: SetScene, redis_url: str) -> Callable[..., Scene]:
    """Import the app with a configuration; its broker is Redis."""

    def open_(**conf: Any) -> Scene:
        return scene("tests.limits.apps.kitchen", **{"broker_url": redis_url, **conf})

    return open_


@pytest.fixture
def kitchen(open_kitchen: Callable[..., Scene], postgres_url: str) -> Scene:
    """The app on PostgreSQL."""
    return open_kitchen(guard_database_url=postgres_url, guard_rescue_after=3)
