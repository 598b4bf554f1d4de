"""Two workers, a broker and a database of our own, and everything that can be done to them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis

from celery_guard.store.database import Database
from celery_guard.store.migrations import migrate
from tests.chaos import settings
from tests.infra import servers
from tests.infra.processes import WorkerProcess

#: Every change of a run's state, written by the database itself.
_HISTORY = """
CREATE TABLE history (n bigserial, run text, was text, became text, attempt int, at timestamptz);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (run, was, became, attempt, at)
    VALUES (NEW.id, CASE TG_OP WHEN 'UPDATE' THEN OLD.state END, NEW.state, NEW.attempt, clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER remember_new AFTER INSERT ON task_run FOR EACH ROW EXECUTE FUNCTION remember();
CREATE TRIGGER remember_moves AFTER UPDATE ON task_run FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.attempt <> NEW.attempt) EXECUTE FUNCTION remember();
"""


@dataclass(frozen=True)
class Freeze:
    """A process that stood still, alone or together with its whole worker."""

    pid: int
    whole: bool
    begin: float
    end: float


@dataclass
class Arena:
    """What is attacked, and what was done to it so far."""

    folder: Path
    broker: servers.PrivateRedis | servers.PrivateRabbitMQ
    database: servers.PrivatePostgres
    database_url: str
    rng: random.Random
    workers: list[WorkerProcess] = field(default_factory=list)
    blows: Counter[str] = field(default_factory=Counter)
    freezes: list[Freeze] = field(default_factory=list)
    _down: list[WorkerProcess] = field(default_factory=list)
    _later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def blow(self) -> str:
        """Do something terrible, chosen by chance; return what."""
        kinds = list(self._kinds())
        name, _, act = self.rng.choices(kinds, [weight for _, weight, _ in kinds])[0]
        act()
        self.blows[name] += 1
        return name

    def catch_up(self) -> None:
        """Undo what was due to be undone by now."""
        now = time.monotonic()
        due, self._later = (
            [entry for entry in self._later if entry[0] <= now],
            [entry for entry in self._later if entry[0] > now],
        )
        for _, undo in sorted(due, key=lambda entry: entry[0]):
            undo()
        self.supervise()

    def supervise(self) -> None:
        """Start workers again that ended on their own: kombu gives up when a Redis dies that it owes messages to."""
        for worker in self.workers:
            if not worker.running and worker not in self._down:
                self.blows["worker gave up"] += 1
                worker.start()

    def heal(self) -> None:
        """Undo everything."""
        self._later, undos = [], self._later
        for _, undo in sorted(undos, key=lambda entry: entry[0]):
            undo()
        for worker in self.workers:
            if not worker.running:
                worker.start()

    def _kinds(self) -> Iterator[tuple[str, float, Callable[[], None]]]:
        yield "child killed", 5, self._kill_a_child
        yield "child frozen", 2, self._freeze_a_child
        yield "worker killed", 3, lambda: self._end_a_worker(signal.SIGKILL)
        yield "worker frozen", 3, self._freeze_a_worker
        yield "worker shut down warmly", 1, lambda: self._end_a_worker(signal.SIGTERM)
        yield "worker shut down coldly", 1, lambda: self._end_a_worker(signal.SIGQUIT)
        yield "broker killed", 1, self._kill_the_broker
        yield "broker frozen", 1, lambda: self._freeze_a_server(self.broker.process, 3)
        yield "database killed", 1, self._kill_the_database
        yield "database frozen", 1, lambda: self._freeze_a_server(self.database.process, 7)
        if isinstance(self.broker, servers.PrivateRedis):
            yield "broker emptied", 1, self._empty_the_broker

    def _undo_in(self, at_most: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self.rng.uniform(0.3, at_most), undo))

    def _a_worker(self) -> WorkerProcess | None:
        running = [worker for worker in self.workers if worker.running and worker not in self._down]
        return self.rng.choice(running) if running else None

    def _a_child(self) -> int | None:
        worker = self._a_worker()
        children = worker.children() if worker else []
        return self.rng.choice(children) if children else None

    def _kill_a_child(self) -> None:
        child = self._a_child()
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _freeze_a_child(self) -> None:
        child = self._a_child()
        if child is not None:
            self._freeze([child], at_most=3, whole=False)

    def _freeze_a_worker(self) -> None:
        worker = self._a_worker()
        if worker is not None:
            self._freeze([worker.pid, *worker.children()], at_most=2 * settings.RESCUE_AFTER, whole=True)

    def _freeze(self, pids: list[int], at_most: float, *, whole: bool) -> None:
        begin = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).send_signal(signal.SIGCONT)
                self.freezes.append(Freeze(pid, whole, begin, time.monotonic()))

        self._undo_in(at_most, thaw)

    def _end_a_worker(self, number: int) -> None:
        worker = self._a_worker()
        if worker is None:
            return
        worker.thaw()
        worker.signal(number)
        self._down.append(worker)

        def restart() -> None:
            if worker.running:  # it finishes what it runs
                self._undo_in(2, restart)
            else:
                self._down.remove(worker)
                worker.start()

        self._undo_in(4, restart)

    def _kill_the_broker(self) -> None:
        if self.broker.process.running:
            self.broker.kill()
            self._undo_in(3, self.broker.start)

    def _empty_the_broker(self) -> None:
        assert isinstance(self.broker, servers.PrivateRedis)
        with redis.Redis.from_url(self.broker.url, socket_timeout=1) as client, suppress(redis.RedisError):
            client.flushall()

    def _kill_the_database(self) -> None:
        if self.database.process.running:
            self.database.kill()
            self._undo_in(4, self.database.start)

    def _freeze_a_server(self, process: servers.Process, at_most: float) -> None:
        if process.running:
            process.freeze()
            self._undo_in(at_most, lambda: process.thaw() if process.running else None)


@contextmanager
def arena(broker: str, seed: int, *, plain: bool = False, workers: int = 2) -> Iterator[Arena]:
    """Give a running arena for as long as needed; the environment tells the app where everything is."""
    folder = Path(tempfile.mkdtemp(prefix="guard-chaos-"))
    try:
        with servers.private_postgres() as database:
            kind = servers.PrivateRedis if broker == "redis" else servers.PrivateRabbitMQ
            found = Arena(folder, kind(folder), database, database.url, random.Random(seed))
            found.broker.start()
            try:
                _migrate(found.database_url)
                os.environ.update(_environment(found, plain))
                found.workers += [_worker(folder, number) for number in range(workers)]
                for worker in found.workers:
                    worker.start()
                for worker in found.workers:
                    worker.wait_until_ready(within=60)
                yield found
            finally:
                database.thaw()
                for worker in found.workers:
                    worker.destroy()
                found.broker.process.thaw()
                found.broker.kill()
    finally:
        if "CHAOS_KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    with database.connection() as connection:
        connection.exec_driver_sql(_HISTORY)
    database.close()


def _environment(arena: Arena, plain: bool) -> dict[str, str]:
    options = settings.REDIS if isinstance(arena.broker, servers.PrivateRedis) else settings.RABBITMQ
    conf = {**settings.COMMON, "broker_url": arena.broker.url, "broker_transport_options": options}
    if not plain:
        conf |= {**settings.GUARDED, "guard_database_url": arena.database_url}
    os.environ.pop(settings.PLAIN, None)
    found = {settings.CONF: json.dumps(conf), settings.FOLDER: str(arena.folder)}
    return {**found, settings.PLAIN: "1"} if plain else found


def _worker(folder: Path, number: int) -> WorkerProcess:
    env = {settings.IN_WORKER: "1"}
    return WorkerProcess("tests.chaos.app", name=f"worker{number + 1}", folder=folder, concurrency=4, env=env)
