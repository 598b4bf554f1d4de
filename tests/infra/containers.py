"""pytest-celery on local processes: its setup, clusters, ``kill()`` and ``restart()`` without Docker."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_celery import CeleryWorkerContainer, RedisContainer
from redis.connection import parse_url

from tests.infra.processes import ROOT, Process


class LocalContainer:
    """What pytest-celery asks of a Docker container, answered by a process or, without one, by somebody's server."""

    def __init__(self, name: str, process: Process | None = None, *, id: str, host: str = "127.0.0.1") -> None:
        self.name = name
        self.id = id
        self.process = process
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": host, "Env": []},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.process is None or self.process.running else "exited"

    def reload(self) -> None:
        """Our status is always fresh."""

    def logs(self) -> bytes:
        return b"" if self.process is None else self.process.log(since_start=True).encode()

    def kill(self, signal: str | int | None = None) -> None:
        """As Docker does: SIGKILL ends everything in the container, any other signal goes to its main process."""
        process = self._ours()
        number = _number(signal)
        if number == _number("SIGKILL"):
            process.destroy()
        else:
            process.signal(number)

    def restart(self, timeout: float = 10) -> None:
        process = self._ours()
        process.stop(timeout)
        process.start()

    def _ours(self) -> Process:
        assert self.process is not None, f"{self.name} is not ours to end"
        return self.process


class SharedRedisContainer(RedisContainer):
    """One database of a Redis that runs already."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = parse_url(url)
        super().__init__(LocalContainer("redis", id=uuid.uuid4().hex, host=parts["host"]))
        self._port, self._database = parts.get("port", 6379), str(parts.get("db", 0))

    @property
    def url(self) -> str:
        return self._url

    host_url = url

    @property
    def port(self) -> int:
        return self._port

    @property
    def vhost(self) -> str:
        return self._database

    def ready(self) -> bool:
        return bool(self.client.ping())


class LocalWorkerContainer(CeleryWorkerContainer):
    """A ``celery worker`` process in a folder with the content that pytest-celery generates."""

    def __init__(self, folder: Path, env: Mapping[str, str], content: Mapping[str, bytes], *, name: str) -> None:
        for path, source in content.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(source)
        id = uuid.uuid4().hex
        words = self.command("--concurrency=1", "--prefetch-multiplier=1", "--without-gossip", "--without-mingle")
        command = [sys.executable, "-m", *(word.replace("%h", id[:12]) for word in words)]
        path = os.pathsep.join([str(folder), str(ROOT)])
        self.process = Process(command, name=name, folder=folder, env={**env, "PYTHONPATH": path})
        super().__init__(LocalContainer(name, self.process, id=id))
        self.process.start()

    def ready(self) -> bool:
        """Wait until it consumes; the stock one polls once a second, and takes a restarted worker for ready."""
        self.process.wait_until(lambda: self.ready_prompt in self.logs(), within=30)
        return True


def _number(name: str | int | None) -> int:
    if isinstance(name, int):
        return name
    return signal.Signals[name or "SIGKILL"].value
