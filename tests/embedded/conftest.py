"""Web processes that start a worker beside them."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_guard.flow.guard import guard_of
from tests.acceptance.apps.stage import FOLDER
from tests.acceptance.scenes import Scene
from tests.infra.processes import PROCESSES, ROOT, Process

MODULE = "tests.embedded.apps.kiosk"


class Kiosk(Scene):
    """The app, imported here to submit, with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        known = sys.modules.get(MODULE)
        self.folder = folder
        self.tasks = importlib.reload(known) if known else importlib.import_module(MODULE)
        self.app = self.tasks.app
        self.app.finalize(auto=True)

    def workers(self) -> list[int]:
        """Return the processes of workers of this folder that live."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            ours = "celery_guard.embedded" in words and str(self.folder / "home") in words
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        return found


@pytest.fixture
def kiosk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kiosk]:
    """The app without any server."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    kiosk = Kiosk(tmp_path)
    yield kiosk
    for pid in kiosk.workers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kiosk.app.close()
    guard_of(kiosk.app).database.close()


@pytest.fixture
def web_process(kiosk: Kiosk, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start web processes."""
    started: list[Process] = request.node.stash.setdefault(PROCESSES, [])

    def start(patience: float = 30.0) -> Process:
        command = [sys.executable, "-m", MODULE, str(patience)]
        env: dict[str, Any] = {"PYTHONPATH": str(ROOT), FOLDER: str(tmp_path)}
        process = Process(command, name=f"web{len(started) + 1}", folder=tmp_path, env=env)
        started.append(process)
        process.start()
        process.wait_until(lambda: f'"pid": {process.pid}' in (tmp_path / "traces").read_text(), within=60)
        return process

    (tmp_path / "traces").touch()
    yield start
    for process in started:
        process.destroy()
