"""One app and one real worker for all tests of a module: what a run did is told apart by its id."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.apps.stage import CONF, FOLDER
from tests.acceptance.scenes import BRISK, Scene
from tests.infra.processes import WorkerProcess


class Stage(Scene):
    """A scene for a whole module.

    Args:
        module: the app module.
        conf: the Celery configuration.
        folder: where traces and gates lie.
        start_worker: starts a worker.
        monkeypatch: to set what the app reads from the environment.
    """

    def __init__(
        self,
        module: str,
        conf: Mapping[str, Any],
        folder: Path,
        start_worker: Callable[..., WorkerProcess],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.module = module
        self.folder = folder
        self._start_worker = start_worker
        monkeypatch.setenv(CONF, json.dumps({**BRISK, **conf}))
        monkeypatch.setenv(FOLDER, str(folder))
        known = sys.modules.get(self.module)
        self.tasks = importlib.reload(known) if known else importlib.import_module(self.module)
        self.app = self.tasks.app
        self.app.finalize(auto=True)

    def bodies(self, run_id: str) -> int:
        """Count how often a body began."""
        return len(self.traces("begin", run_id))
