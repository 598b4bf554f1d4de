"""The app of these tests, here and in its workers, and a look at what servers hold."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kombu
import pytest

from celery_guard.flow import publish
from celery_guard.flow.guard import guard_of
from tests.acceptance.apps.stage import CONF, FOLDER
from tests.acceptance.scenes import BRISK, Scene
from tests.infra.polling import eventually
from tests.infra.processes import WorkerProcess

#: A dead worker is noticed within seconds.
SWIFT: Mapping[str, Any] = {**BRISK, "guard_rescue_after": 3, "guard_deadline_grace": 1}


class Fire(Scene):
    """A scene whose patience can be made short.

    Args:
        conf: the Celery configuration; ``fire_lease`` and ``fire_patience`` shorten what the package waits for.
        folder: where traces and gates lie.
        start_worker: starts a worker.
        monkeypatch: to set what the app reads from the environment.
    """

    def __init__(
        self,
        conf: Mapping[str, Any],
        folder: Path,
        start_worker: Callable[..., WorkerProcess],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.module = "tests.fire.apps.fire"
        self.folder = folder
        self._start_worker = start_worker
        monkeypatch.setenv(CONF, json.dumps({**SWIFT, **conf}))
        monkeypatch.setenv(FOLDER, str(folder))
        if "fire_lease" in conf:
            monkeypatch.setattr(publish, "LEASE", tuple(conf["fire_lease"]))
        known = sys.modules.get(self.module)
        self.tasks = importlib.reload(known) if known else importlib.import_module(self.module)
        self.app = self.tasks.app
        self.app.finalize(auto=True)

    @property
    def queue(self) -> str:
        """The queue of this test."""
        return str(self.app.conf.task_default_queue)

    def begun(self, *run_ids: str, times: int = 1, within: float = 30.0) -> None:
        """Wait until the bodies of these runs have begun so often."""

        def assertion() -> None:
            counted = {run_id: len(self.traces("begin", run_id)) for run_id in run_ids}
            assert all(count >= times for count in counted.values()), f"begun: {counted}"

        eventually(assertion, within)

    def bodies(self, run_id: str) -> int:
        """Count how often a body began."""
        return len(self.traces("begin", run_id))

    def pid_of(self, run_id: str) -> int:
        """Return the process of the latest attempt."""
        return int(self.traces("begin", run_id)[-1]["pid"])

    def becomes(self, run_id: str, state: str, attempt: int, within: float = 30.0) -> None:
        """Wait until a run is in a state."""

        def assertion() -> None:
            run = self.run(run_id)
            assert (run.state.value, run.attempt) == (state, attempt)

        eventually(assertion, within)

    def depth(self) -> int:
        """Count the messages that the broker has not handed out."""
        with self.app.connection_for_write() as connection, connection.channel() as channel:
            bound = self.app.amqp.queues[self.queue](channel)
            return int(bound.queue_declare().message_count)

    def take_messages(self, count: int) -> list[Any]:
        """Take messages out of the queue by hand, as if the broker had lost them."""
        with self.app.connection_for_write() as connection, connection.channel() as channel:
            bound = self.app.amqp.queues[self.queue](channel)

            def taken() -> Any:
                message = bound.get(no_ack=True)
                assert message is not None, "the queue is empty"
                return message

            return [eventually(taken) for _ in range(count)]

    def put_back(self, message: Any, times: int = 1) -> None:
        """Put a message into the queue again."""
        with self.app.connection_for_write() as connection:
            producer = kombu.Producer(connection)
            properties = {
                name: message.properties.get(name) for name in ("correlation_id", "reply_to", "delivery_mode")
            }
            for _ in range(times):
                producer.publish(
                    message.body,
                    routing_key=self.queue,
                    headers=message.headers,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    **properties,
                )

    def workers(self, columns: str = "reserved") -> list[Any]:
        """Read the rows of workers that have not stopped."""
        with guard_of(self.app).database.connection() as connection:
            found = connection.exec_driver_sql(f"SELECT {columns} FROM task_worker WHERE stopped_at IS NULL").fetchall()
        return [tuple(row) for row in found]

    def reserves(self, count: int, within: float = 30.0) -> None:
        """Wait until the workers say that they hold so many runs that they have not started."""

        def assertion() -> None:
            reserved = sum(len(json.loads(row[0])) for row in self.workers())
            assert reserved == count, f"{reserved} are reserved"

        eventually(assertion, within)


def thaw(pid: int) -> None:
    """Let one process go on."""
    os.kill(pid, signal.SIGCONT)


def shape(run: Any) -> tuple[str, str | None, int, list[str | None]]:
    """Return state, reason and attempts of a run, and the rules that ended the attempts that failed."""
    reason = run.terminal_reason.value if run.terminal_reason else None
    return run.state.value, reason, run.attempt, [attempt.rule for attempt in run.attempts]


SUCCEEDED = ("succeeded", "succeeded")
LATE = ("dead", "failed_due_deadline")
USED_UP = ("dead", "failed_due_max_attempts")
CANCELLED = ("cancelled", "cancelled")
