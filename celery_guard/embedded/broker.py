"""Celery's filesystem broker, with messages that appear whole and are taken by one.

Kombu creates a message file first and fills it afterwards, so a worker that polls between the two loses the message.
And it takes a message by moving it to the system's folder for temporary files: a copy, where that is another disk.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

__all__ = ["Channel", "Transport"]


class Channel(filesystem.Channel):
    """A channel that publishes and takes by renaming: a message is there as a whole, or not at all."""

    def _put(self, queue: Any, payload: Any, **_: Any) -> None:  # type: ignore[override]
        name = f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}.msg"
        _appear(Path(self.data_folder_out) / name, dumps(payload))

    def _get(self, queue: Any, timeout: Any = None) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(os.listdir(folder)):
            if name.partition(".")[2] == f"{queue}.msg":
                taken = folder / f"{name}.taken"
                try:
                    os.rename(folder / name, taken)
                except FileNotFoundError:  # somebody else was faster
                    continue
                text = taken.read_text(encoding="utf-8")
                taken.unlink()
                return loads(text)
        raise Empty

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        table = self._exchange_file(exchange)  # type: ignore[no-untyped-call]
        if not table.exists():
            _appear(table, "[]")
        super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[no-untyped-call]


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
