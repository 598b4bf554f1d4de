"""Without any server: runs in a SQLite file, messages as files beside it, and a worker that lives with the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery_guard.embedded.worker import Worker

__all__ = ["Worker", "configure"]


def configure(app: Any, folder: str | os.PathLike[str]) -> None:
    """Let an app keep its runs and its messages in a folder, which is made on first use.

    Every process that submits, and the worker, must be on one machine and mean the same folder.

    Args:
        app: the Celery app; its tasks are guarded. What else its configuration says stays.
        folder: an absolute path on a local disk. A relative one is taken from the working directory.
    """
    home = Path(folder).resolve()
    messages, control = home / "messages", home / "control"
    for made in (messages, control):
        made.mkdir(parents=True, exist_ok=True)
    app.conf.update(
        broker_url="filesystem://localhost//",
        broker_transport="celery_guard.embedded.broker:Transport",
        broker_transport_options={
            "data_folder_in": str(messages),
            "data_folder_out": str(messages),
            "control_folder": str(control),
            "polling_interval": 0.1,
        },
        broker_connection_retry_on_startup=True,
        guard_database_url=f"sqlite:///{home / 'runs.sqlite3'}",
    )
