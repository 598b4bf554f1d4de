"""Real processes: servers and Celery workers that write to a log file and never outlive pytest."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.infra.polling import eventually

LAUNCH = Path(__file__).with_name("launch.py")
ROOT = Path(__file__).parents[2]

#: The processes of a test, on its node; their logs are shown when it fails.
PROCESSES = pytest.StashKey["list[Process]"]()


def free_port() -> int:
    """Return a TCP port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Say whether something accepts TCP connections there."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


class Process:
    """A child process, its log and its end.

    Args:
        command: what to run.
        name: what to call it, and its log file, in the folder.
        folder: where it runs and logs.
        env: variables added to ours.
        user: the account to run as when we are root.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.command = list(command)
        self.name = name
        self.folder = folder
        self.log_path = folder / f"{name}.log"
        self.env = {**os.environ, **(env or {})}
        self.user = user or "-"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start it in a session of its own; it is killed when pytest dies."""
        self._log_start = len(self.log())
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-ES", str(LAUNCH), str(os.getpid()), self.user, *self.command],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], within: float) -> None:
        """Wait until it is ready.

        Raises:
            AssertionError: it ended, or the time is up; the text holds the end of its log.
        """

        def assertion() -> None:
            assert ready() or not self.running, f"{self.name} is not ready after {within} s:\n{self.log()[-4000:]}"

        eventually(assertion, within)
        assert self.running, f"{self.name} ended with {self.returncode}:\n{self.log()[-4000:]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def children(self) -> list[int]:
        """Return the ids of its child processes, oldest first."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def log(self, *, since_start: bool = False) -> str:
        """Return what it wrote, to the last start or in all."""
        if not self.log_path.exists():
            return ""
        text = self.log_path.read_bytes().decode("utf-8", "replace")
        return text[self._log_start :] if since_start else text

    def signal(self, number: int) -> None:
        """Send a signal to the main process, and to no other."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end, and don't wait: a Celery worker finishes what it runs."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the main process with SIGKILL; what becomes of its children is up to them."""
        if self.running:
            self.signal(signal.SIGKILL)
            self.wait()

    def freeze(self) -> None:
        """Stop the process and its children where they stand."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._signal_all(signal.SIGCONT)

    def wait(self, within: float = 20.0) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.wait(within)

    def stop(self, within: float = 20.0) -> None:
        """Ask it to end, and kill it and its children when it takes longer than that."""
        if self.running:
            self.thaw()
            self.terminate()
            try:
                self.wait(within)
            except subprocess.TimeoutExpired:
                self.destroy()

    def destroy(self) -> None:
        """Kill the process and its children at once, those that outlived it too."""
        if self._process is not None:
            self._signal_all(signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def _signal_all(self, number: int) -> None:
        try:
            main = psutil.Process(self.pid)
            family = [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)


class WorkerProcess(Process):
    """A real ``celery worker``.

    Args:
        app_module: what ``celery -A`` takes, such as ``tests.acceptance.apps.plain``.
        concurrency: how many children or threads.
        pool: ``prefork``, ``threads`` or ``solo``.
        env: variables added to ours.
        queues: the queues to consume; Celery's own default when empty.
        options: more words for the command line.
    """

    def __init__(
        self,
        app_module: str,
        *,
        name: str,
        folder: Path,
        concurrency: int = 2,
        pool: str = "prefork",
        env: Mapping[str, str] | None = None,
        queues: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        #: Tests that run side by side may share a broker, which takes each name once.
        self.hostname = f"{name}-{secrets.token_hex(3)}@{socket.gethostname()}"
        command = [sys.executable, "-m", "celery", "-A", app_module, "worker", "--loglevel=INFO"]
        command += [f"--hostname={self.hostname}", f"--concurrency={concurrency}", f"--pool={pool}"]
        command += ["--without-gossip", "--without-mingle", *options]
        if queues:
            command.append(f"--queues={','.join(queues)}")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        super().__init__(command, name=name, folder=folder, env={"PYTHONPATH": path, **(env or {})})

    def wait_until_ready(self, within: float = 30.0) -> None:
        """Wait until it consumes."""
        self.wait_until(lambda: f"{self.hostname} ready." in self.log(since_start=True), within)


@contextmanager
def worker_starter(
    folder: Path, started: list[Process], *, within: float = 30.0
) -> Iterator[Callable[..., WorkerProcess]]:
    """Give what starts real workers, each with a name of its own; they are killed afterwards.

    Args:
        folder: where they run and log.
        started: where they are written down, for their logs to be shown.
        within: how long one may take until it consumes, in seconds.
    """

    def start(app_module: str, *, wait: bool = True, **options: Any) -> WorkerProcess:
        process = WorkerProcess(app_module, name=f"worker{len(started) + 1}", folder=folder, **options)
        started.append(process)
        process.start()
        if wait:
            process.wait_until_ready(within)
        return process

    yield start
    for process in started:
        process.destroy()
