"""A long queue that waits for a long time, and is then lost by its broker.

``python -m tests.fire.backlog --broker redis --messages 20000 --minutes 10``; broker and database are private ones.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_guard.flow.guard import guard_of
from celery_guard.flow.many import submit_many
from celery_guard.store.database import Database
from celery_guard.store.migrations import migrate
from tests.fire.scenes import Fire
from tests.infra import servers
from tests.infra.polling import eventually
from tests.infra.processes import WorkerProcess

#: What production has, where the tests have less.
CONF = {"guard_dispatch_interval": 1, "guard_heartbeat_interval": 10, "guard_rescue_after": 30}

#: How long the runs may take to end once their messages are lost, in seconds.
PATIENCE = 3_600


def run(broker: str, messages: int, minutes: float) -> int:
    """Submit behind a body that lasts, wait, lose everything, and let it be executed; return how much was wrong."""
    with _scene(broker) as (scene, server):
        scene.worker(concurrency=1)
        held = scene.tasks.hold.delay("go", within=3_600)
        scene.begun(held.id)
        _submit(scene, messages)
        copies = _wait(scene, messages, minutes)
        print(f"waited {minutes:g} min: {copies} copies of {messages} messages", flush=True)

        lost = scene.depth()
        _lose(scene, server)
        print(f"{lost} messages lost", flush=True)
        begin = time.monotonic()
        scene.open_gate("go")
        worker = scene.worker(concurrency=2)
        counts = _until_all_ended(scene, messages + 1, begin)
        bodies = len(scene.traces("begin"))
        published = sum(map(int, re.findall(r"(\d+) messages of the queue .* are lost", _logs(scene))))
        print(f"ended {time.monotonic() - begin:.0f} s later: {counts}; {bodies} bodies; {published} published again")
        worker.stop()
        return copies + abs(bodies - messages - 1) + abs(counts.get("succeeded", 0) - messages - 1)


@contextmanager
def _scene(broker: str) -> Iterator[tuple[Fire, Any]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guard-backlog-")))
        database = stack.enter_context(servers.private_postgres())
        url = stack.enter_context(database.database())
        tables = Database(url)
        migrate(tables)
        tables.close()
        server = (servers.PrivateRedis if broker == "redis" else servers.PrivateRabbitMQ)(folder)
        server.start()
        stack.callback(server.kill)

        def start_worker(app_module: str, **options: Any) -> WorkerProcess:
            name = f"worker{len(list(folder.glob('worker*.log'))) + 1}"
            worker = WorkerProcess(app_module, name=name, folder=folder, **options)
            stack.callback(worker.destroy)
            worker.start()
            worker.wait_until_ready(within=60)
            return worker

        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        conf = {**CONF, "broker_url": server.url, "guard_database_url": url, "task_default_queue": "backlog"}
        scene = Fire(conf, folder, start_worker, monkeypatch)
        stack.callback(scene.close)
        yield scene, server


def _submit(scene: Fire, messages: int) -> None:
    begin = time.monotonic()
    for start in range(0, messages, 1_000):
        submit_many(scene.tasks.succeed, [[number] for number in range(start, min(start + 1_000, messages))])
    print(f"{messages} submitted in {time.monotonic() - begin:.1f} s", flush=True)


def _wait(scene: Fire, messages: int, minutes: float) -> int:
    """Wait, counting; return the most copies that were seen. A fourfold prefetch is in the worker's hands."""
    begin, most, beat = time.monotonic(), 0, 0.0
    scene.reserves(3)
    while time.monotonic() - begin < 60 * minutes:
        most = max(most, scene.depth() + 3 - messages)
        if time.monotonic() >= beat:
            beat = time.monotonic() + 30
            [(least, greatest)] = _query(scene, "SELECT min(publishes), max(publishes) FROM task_run")
            depth = scene.depth()
            print(
                f"{time.monotonic() - begin:6.0f} s  {depth} in the queue, looked at {least} to {greatest} times",
                flush=True,
            )
        time.sleep(1)
    return most


def _lose(scene: Fire, server: Any) -> None:
    if isinstance(server, servers.PrivateRedis):
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
    else:
        with scene.app.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_purge(scene.queue)


def _until_all_ended(scene: Fire, count: int, begin: float) -> dict[str, int]:
    beat = [0.0]

    def counts() -> dict[str, int]:
        found = dict(_query(scene, "SELECT state, count(*) FROM task_run GROUP BY state"))
        if time.monotonic() >= beat[0]:
            beat[0] = time.monotonic() + 30
            print(f"{time.monotonic() - begin:6.0f} s  {found}", flush=True)
        ended = sum(number for state, number in found.items() if state not in ("queued", "running", "retrying"))
        assert ended == count, f"{ended} of {count} have ended"
        time.sleep(0.3)
        return found

    return eventually(counts, PATIENCE)


def _query(scene: Fire, query: str) -> list[tuple[Any, ...]]:
    with guard_of(scene.app).database.connection() as connection:
        return list(map(tuple, connection.exec_driver_sql(query).fetchall()))


def _logs(scene: Fire) -> str:
    return "\n".join(path.read_text() for path in scene.folder.glob("worker*.log"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    return 1 if run(given.broker, given.messages, given.minutes) else 0


if __name__ == "__main__":
    sys.exit(main())
