"""Child processes of the demo: started in a group of their own, always stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

__all__ = ["Child", "ChildFailed", "answers_http", "celery", "free_port", "python"]

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 10.0


class ChildFailed(Exception):
    """A child process ended by itself, or did not get ready in time."""


@dataclass(frozen=True)
class Child:
    """A running child and the file that takes its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Return once the child is ready.

        Raises:
            ChildFailed: it ended, or the time is up; the text has the last lines of its log.
        """
        limit = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > limit:
                raise ChildFailed(f"{self.name} was not ready after {seconds:g} s\n{self.tail()}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise :class:`ChildFailed` when the child has ended."""
        if self.process.poll() is not None:
            raise ChildFailed(f"{self.name} ended with code {self.process.returncode}\n{self.tail()}")

    def says(self, text: str) -> bool:
        """Say whether a text is in the child's output."""
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 25) -> str:
        """Return the last lines of the child's output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextmanager
def celery(name: str, arguments: Sequence[str], *, home: Path, app: str = "example_project.app") -> Iterator[Child]:
    """Run ``celery -A <app> …`` until the block ends; its output goes to ``<name>.log``."""
    with python(name, ["-m", "celery", "-A", app, *arguments], home=home) as child:
        yield child


@contextmanager
def python(name: str, arguments: Sequence[str], *, home: Path) -> Iterator[Child]:
    """Run this Python with these arguments until the block ends; its output goes to ``<name>.log``."""
    log = home / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Child(name, process, log)
    finally:
        _stop(process)


def free_port() -> int:
    """Return a local port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers_http(url: str) -> bool:
    """Say whether a web server answers there."""
    with suppress(OSError), urlopen(url, timeout=2) as response:
        return bool(response.status == 200)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask for a warm shutdown, then leave nothing of the child's group alive."""
    try:
        process.terminate()
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
