"""Real workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.acceptance.scenes import Scene
from tests.infra.processes import PROCESSES, WorkerProcess, worker_starter


class StartWorker(Protocol):
    def __call__(
        self,
        app_module: str,
        *,
        concurrency: int = 2,
        pool: str = "prefork",
        env: Mapping[str, str] | None = None,
        queues: Sequence[str] = (),
        options: Sequence[str] = (),
        wait: bool = True,
    ) -> WorkerProcess: ...


@pytest.fixture
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartWorker]:
    """Start real ``celery worker`` processes; they are killed after the test."""
    with worker_starter(tmp_path, request.node.stash.setdefault(PROCESSES, [])) as start:
        yield start


class SetScene(Protocol):
    def __call__(self, module: str = "life", **conf: Any) -> Scene: ...


@pytest.fixture
def scene(worker: StartWorker, tmp_path: Path, queue_name: str) -> Iterator[SetScene]:
    """Import an app module with a Celery configuration; its queue is this test's alone."""
    scenes: list[Scene] = []
    with pytest.MonkeyPatch.context() as monkeypatch:

        def set_scene(module: str = "life", **conf: Any) -> Scene:
            folder = tmp_path / f"scene{len(scenes) + 1}"
            folder.mkdir()
            scenes.append(Scene(module, {"task_default_queue": queue_name, **conf}, folder, worker, monkeypatch))
            return scenes[-1]

        yield set_scene
        for scene in scenes:
            scene.close()
