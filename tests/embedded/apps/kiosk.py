"""An app without a server; run as a module, it is a web process that starts a worker and waits for its end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from celery import Celery

from celery_guard import GuardedTask, current_run, embedded
from tests.acceptance.apps.stage import FOLDER, note, noted, wait_for_gate

app = Celery("kiosk", task_cls=GuardedTask)
embedded.configure(app, Path(os.environ[FOLDER], "home"))
app.conf.update(
    guard_heartbeat_interval=1,
    guard_rescue_after=3,
    guard_dispatch_interval=0.2,
    guard_backoff_base=0.1,
    worker_hijack_root_logger=True,
)


@app.task(shared=False)
def print_ticket(number):
    with noted():
        return f"ticket {number}"


@app.task(shared=False)
def print_slowly(gate):
    with noted() as run:
        note("parent", run.id, worker=os.getppid())
        if run.attempt == 1:
            wait_for_gate(gate)
        return current_run().attempt


def main(patience: str) -> None:
    """Start a worker, and stop it on SIGTERM as a web server does."""

    def leave(*_: Any) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, leave)
    with embedded.Worker("tests.embedded.apps.kiosk:app", patience=float(patience)) as worker:
        note("started", "", worker=worker.pid)
        while True:
            signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
