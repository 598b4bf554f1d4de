"""The child: a Celery worker that ends when the pipe to its parent closes. ``HOME PATIENCE APP WORDS…``."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main(home: str, patience: str, app: str, *words: str) -> None:
    """Wait until no other worker serves the folder, then serve it."""
    parent = os.dup(sys.stdin.fileno())
    threading.Thread(target=_end_with, args=(parent, float(patience)), daemon=True).start()
    _only = _wait_for_our_turn(Path(home))
    from celery.app.utils import find_app

    command = ["worker", "--without-gossip", "--without-mingle", *words]
    celery: Any = find_app(app)
    celery.worker_main(command)


def _end_with(parent: int, patience: float) -> None:
    """Wait for the parent's end; then end: warm, and after some time cold, and at last at once."""
    while os.read(parent, 1):
        pass
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
        os.kill(os.getpid(), number)
        time.sleep(patience if number == signal.SIGTERM else 10.0)


def _wait_for_our_turn(home: Path) -> Any:
    """Hold the folder's lock, which ends with this process and is not inherited by its children."""
    file = (home / "worker.lock").open("a")
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


if __name__ == "__main__":
    main(*sys.argv[1:])
