"""Celery's filesystem broker, with files that appear whole.

Kombu creates a message file first and fills it afterwards. A worker that polls between the two reads an empty file,
loses the message and stops; with several processes on one folder that is only a matter of time.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps

__all__ = ["Channel", "Transport"]


class Channel(filesystem.Channel):
    """A channel that publishes by renaming: a reader sees a complete file or none."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:
        name = f"{time.monotonic_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        _appear(Path(self.data_folder_out) / name, dumps(payload))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        table = self._exchange_file(exchange)
        if not table.exists():
            _appear(table, "[]")
        super()._queue_bind(exchange, routing_key, pattern, queue)


class Transport(filesystem.Transport):
    """The filesystem transport with :class:`Channel`."""

    Channel = Channel


def _appear(file: Path, text: str) -> None:
    """Write a new file in one step; a file that is already there stays as it is."""
    part = file.with_name(f"{file.name}.{uuid.uuid4()}.part")
    part.write_text(text, encoding="utf-8")
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    finally:
        part.unlink()
