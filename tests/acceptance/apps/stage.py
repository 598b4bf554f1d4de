"""What the apps of these tests share: their configuration comes from outside, and their bodies leave traces."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from celery_guard import GuardedTask, current_run
from tests.infra.polling import eventually

#: A Celery configuration as JSON, the folder for traces and gates, and whether this is a worker.
CONF, FOLDER, IN_WORKER = "GUARD_TEST_CONF", "GUARD_TEST_FOLDER", "GUARD_TEST_IN_WORKER"


class App(Celery):
    """An app whose tasks stay its own, for modules that are imported anew by each test."""

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})


def new_app(name: str, **options: Any) -> Celery:
    """Make an app with the configuration that the test wrote into the environment."""
    app = App(name, **{"task_cls": GuardedTask, **options})
    app.conf.update(json.loads(os.environ[CONF]))
    return app


def note(what: str, run: str, **more: Any) -> None:
    """Append one line to the traces: whole, whoever else writes, and there even if this process dies next."""
    line = json.dumps({"what": what, "run": run, "pid": os.getpid(), **more}) + "\n"
    file = os.open(Path(os.environ[FOLDER], "traces"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@contextmanager
def noted() -> Iterator[Any]:
    """Note that a body begins, and that and how it ends; give the run."""
    run, error = current_run(), None
    note("begin", run.id, attempt=run.attempt, task=run.type)
    try:
        yield run
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        note("end", run.id, attempt=run.attempt, error=error)


def wait_for_gate(name: str, within: float = 120) -> None:
    """Wait until the test opens a gate."""
    eventually(Path(os.environ[FOLDER], f"gate-{name}").exists, within)


def die() -> None:
    """End this process as the kernel does when memory runs out."""
    assert IN_WORKER in os.environ, "this would end the test"
    os.kill(os.getpid(), signal.SIGKILL)


def die_first(name: str) -> None:
    """Die when this is the first time, over all processes."""
    if IN_WORKER not in os.environ:
        return
    try:
        os.close(os.open(Path(os.environ[FOLDER], f"died-{name}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    die()
