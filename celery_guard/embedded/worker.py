"""In the web process: a worker beside it, as a child that ends when it does, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from celery_guard.errors import InvalidOption
from celery_guard.observe.logs import logger

__all__ = ["Worker"]

#: How long a worker that ended by itself is left alone before it is started again, in seconds.
_PAUSE = 1.0

#: How much longer than its own patience a worker may take to end, in seconds.
_LAST_WORDS = 20.0


class Worker:
    """A worker of an app that :func:`~celery_guard.embedded.configure` prepared, in a child process. A context manager.

    The child holds one end of a pipe whose other end is here, so it notices the end of this process, by ``kill -9``
    too: it takes no more, lets bodies end for as long as ``patience`` says, and gives back what is not over by then.
    A child that ends by itself is started again.

    Of several processes that start a worker of one folder (several web workers; the old and the new one while a
    server reloads) one has it, and the others stand by to take over.

    Args:
        app: where the app is, as ``celery -A`` takes it, such as ``"shop.tasks:app"``.
        concurrency: how many runs at once.
        patience: how long bodies may go on once this process ends or stops the worker, in seconds.
        options: more words for ``celery worker``.

    Raises:
        InvalidOption: the app was not prepared.
    """

    def __init__(
        self, app: str, *, concurrency: int = 2, patience: float = 10.0, options: Sequence[str] = ("--loglevel=INFO",)
    ) -> None:
        home = _home_of(app)
        self.patience = patience
        self._command = [sys.executable, "-m", "celery_guard.embedded", str(home), str(patience), app]
        self._command += [f"--concurrency={concurrency}", *options]
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    def start(self) -> Worker:
        """Start the child, and a thread that starts it again; return at once."""
        self._process = self._spawn()
        self._keeper = threading.Thread(target=self._keep, name="celery-guard-embedded", daemon=True)
        self._keeper.start()
        return self

    def stop(self) -> None:
        """Let the child end, and wait for it: what runs may go on for ``patience``, and is given back after that."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()

    @property
    def pid(self) -> int | None:
        """The child's process id; None before the start."""
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # what can be imported here can be there
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for this process, which then stops the worker
        )

    def _keep(self) -> None:
        while not self._stopping.wait(_PAUSE):
            assert self._process is not None
            if self._process.poll() is not None:
                logger.error("the embedded worker ended with code %d; it is started again", self._process.returncode)
                self._close()
                self._process = self._spawn()
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(self.patience + _LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _home_of(app: str) -> Path:
    from celery.app.utils import find_app

    conf: Any = find_app(app).conf
    if conf.broker_transport != "celery_guard.embedded.broker:Transport":
        raise InvalidOption(
            f"{app} is not embedded: call celery_guard.embedded.configure(app, folder) where it is made"
        )
    return Path(conf.broker_transport_options["data_folder_in"]).parent
