"""One app, here and in its workers, and what its bodies did."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu.pools
import pytest
import redis

from celery_guard import TaskRun
from celery_guard.flow.guard import guard_of
from tests.acceptance.apps.stage import CONF, FOLDER, IN_WORKER
from tests.infra.polling import eventually
from tests.infra.processes import WorkerProcess

#: Everything is looked at more often than in production, and a slow machine is still not taken for a dead one.
BRISK: Mapping[str, Any] = {
    "guard_backoff_base": 0.1,
    "guard_backoff_jitter": "none",
    "guard_dispatch_interval": 0.2,
    "guard_heartbeat_interval": 1,
    "guard_rescue_after": 15,
    "broker_connection_retry_on_startup": True,
    "result_chord_retry_interval": 0.2,
    "worker_send_task_events": False,
    "worker_hijack_root_logger": True,
}


class Scene:
    """An app module imported here with a configuration, which workers started from here get too.

    Args:
        module: an app module, by its dotted name or below ``tests.acceptance.apps``.
        conf: the Celery configuration.
        folder: where traces and gates lie.
        start_worker: the fixture ``worker``.
        monkeypatch: to set what the module reads from the environment.
    """

    def __init__(
        self,
        module: str,
        conf: Mapping[str, Any],
        folder: Path,
        start_worker: Callable[..., WorkerProcess],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.module = module if "." in module else f"tests.acceptance.apps.{module}"
        self.folder = folder
        self._start_worker = start_worker
        monkeypatch.setenv(CONF, json.dumps({**BRISK, **conf}))
        monkeypatch.setenv(FOLDER, str(folder))
        known = sys.modules.get(self.module)
        self.tasks: ModuleType = importlib.reload(known) if known else importlib.import_module(self.module)
        self.app = self.tasks.app
        self.app.finalize(auto=True)

    def worker(self, **options: Any) -> WorkerProcess:
        """Start a real worker of the app."""
        options["env"] = {IN_WORKER: "1", **options.get("env", {})}
        return self._start_worker(self.module, **options)

    def traces(self, what: str | None = None, run: str | None = None) -> list[dict[str, Any]]:
        """Return what bodies and hooks noted, oldest first."""
        path = self.folder / "traces"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [trace for trace in found if what in (None, trace["what"]) and run in (None, trace["run"])]

    def open_gate(self, name: str) -> None:
        """Let bodies through that wait."""
        (self.folder / f"gate-{name}").touch()

    def run(self, run_id: str) -> TaskRun:
        """Return the row."""
        run = guard_of(self.app).runs.find(run_id, history=True)
        assert run is not None, f"no row has the id {run_id}"
        return run

    def ended(self, *run_ids: str, within: float = 45.0) -> list[TaskRun]:
        """Wait until these runs have ended, and Celery was told; return their rows."""

        def all_ended() -> list[TaskRun]:
            runs = list(map(self.run, run_ids))
            open_ = [(run.type, run.state.value, run.attempt) for run in runs if not run.is_terminal or run.owed]
            assert not open_, f"not ended after {within} s: {open_[:5]}, {len(open_)} in all"
            return runs

        return eventually(all_ended, within)

    def ends(self, *run_ids: str, within: float = 45.0) -> list[tuple[str, str, int]]:
        """Wait until these runs have ended; return state, reason and attempts of each."""
        return [ending(run) for run in self.ended(*run_ids, within=within)]

    def rows(self, columns: str, where: str = "true") -> list[Any]:
        """Read the table of runs, in the order of submission."""
        with guard_of(self.app).database.connection() as connection:
            rows = connection.exec_driver_sql(f"SELECT {columns} FROM task_run WHERE {where} ORDER BY id").fetchall()
        return [tuple(row) for row in rows]

    def close(self) -> None:
        """Close every connection from here."""
        if str(self.app.conf.result_backend).startswith("redis"):
            self.app.backend.result_consumer.stop()
            self.app.backend.result_consumer.subscribed_to.clear()  # else results that die later connect to unsubscribe
            self.app.backend.client.connection_pool.disconnect()
        self.app.close()
        kombu.pools.reset()
        guard_of(self.app).database.close()


def ending(run: TaskRun) -> tuple[str, str, int]:
    """Return state, reason and attempts of a run that has ended."""
    assert run.terminal_reason is not None
    return run.state.value, run.terminal_reason.value, run.attempt


def messages_in(broker_url: str, queue: str) -> int:
    """Count what a broker holds of a queue, handed out or not; on RabbitMQ only what is not handed out."""
    if broker_url.startswith("redis"):
        with redis.Redis.from_url(broker_url) as client:
            return int(client.llen(queue)) + int(client.hlen("unacked")) + int(client.zcard("unacked_index"))
    with kombu.Connection(broker_url) as connection, connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


def ids(results: Iterable[Any]) -> list[str]:
    """Return the ids of results."""
    return [result.id for result in results]
