"""Apps whose events are heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.conftest import SetScene, scene as scene, worker as worker
from tests.acceptance.scenes import Scene
from tests.flower.listener import Listener, listening
from tests.web.conftest import browser as browser


@pytest.fixture
def life(scene: SetScene, redis_url: str, sqlite_url: str) -> Scene:
    """An app that sends all events."""
    conf: dict[str, Any] = {"worker_send_task_events": True, "task_send_sent_event": True}
    return scene(broker_url=redis_url, guard_database_url=sqlite_url, **conf)


@pytest.fixture
def heard(life: Scene) -> Iterator[Listener]:
    """What is heard of the app."""
    with listening(life.app) as listener:
        yield listener
