"""What a measured part used: CPU seconds of a system's processes and of the servers, statements, commits, log."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import redis

_TICK = os.sysconf("SC_CLK_TCK")

#: A machine of which others use less than this share is quiet.
QUIET = 0.15


@dataclass(frozen=True)
class Servers:
    """The servers of the benchmark, as the driver sees them."""

    postgres_url: str
    redis_url: str

    def sql(self, statement: str) -> list[Any]:
        """Run one statement and return its rows."""
        with self._connection() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        connection = psycopg2.connect(self.postgres_url, application_name="driver")
        connection.autocommit = True
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def empty(self) -> None:
        """Begin with an empty database, and an empty Redis."""
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        others = "'information_schema', 'stats'"
        for (name,) in self.sql(
            f"SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ({others})"
        ):
            self.sql(f'DROP SCHEMA "{name}" CASCADE')
        self.sql("CREATE SCHEMA public")
        self.sql("CREATE SCHEMA IF NOT EXISTS stats")
        self.sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA stats")
        for number in range(4, 8):
            redis.Redis.from_url(f"{self.redis_url}/{number}").flushdb()

    def settings(self) -> dict[str, str]:
        """Return the settings that decide what a commit costs."""
        names = "server_version fsync synchronous_commit wal_sync_method shared_buffers full_page_writes".split()
        return {name: self.sql(f"SHOW {name}")[0][0] for name in names}

    def reset(self) -> None:
        """Count statements from now on, without the work that earlier parts left behind."""
        self.sql("CHECKPOINT")
        time.sleep(0.2)
        self.sql("SELECT stats.pg_stat_statements_reset()")

    def counted(self) -> dict[str, float]:
        """Return what was counted so far; transactions are counted late, when their connections end."""
        ours = "FROM stats.pg_stat_statements s JOIN pg_database d ON d.oid = dbid WHERE datname = current_database()"
        calls = self.sql(f"SELECT coalesce(sum(calls), 0) {ours} AND query !~ 'pg_stat_|driver|CHECKPOINT|^SHOW'")
        commits = self.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        log = self.sql("SELECT wal_sync, wal_bytes FROM pg_stat_wal")
        return {
            "statements": float(calls[0][0]),
            "commits": float(commits[0][0]),
            "log_syncs": float(log[0][0]),
            "log_bytes": float(log[0][1]),
        }

    def _pids(self) -> tuple[int, int]:
        port = psycopg2.extensions.parse_dsn(self.postgres_url)["port"]
        listening = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        return listening[int(port)], redis.Redis.from_url(self.redis_url).info("server")["process_id"]

    def cpu(self, sessions: set[int]) -> dict[str, float]:
        """Return CPU seconds so far: of the system's sessions, PostgreSQL, Redis, this process, the whole machine."""
        postgres, broker = self._pids()
        used = {"system": 0.0, "postgres": 0.0, "redis": 0.0}
        for pid, parent, session, own, ended in _processes():
            if session in sessions:
                used["system"] += own + ended
            elif pid == postgres:
                used["postgres"] += own + ended
            elif parent == postgres:
                used["postgres"] += own
            elif pid == broker:
                used["redis"] += own
        ticks = [int(word) / _TICK for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return {**used, "driver": time.process_time(), "machine": sum(ticks) - ticks[3] - ticks[4]}


def _processes() -> Iterator[tuple[int, int, int, float, float]]:
    """Return each process's id, parent, session, and CPU seconds: its own, and those of its ended children."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        own, ended = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
        yield int(folder.name), int(words[1]), int(words[3]), own / _TICK, ended / _TICK


def spent(before: dict[str, float], after: dict[str, float], seconds: float, runs: int) -> dict[str, float]:
    """Return milliseconds of CPU per run, and the share of the machine that others used."""
    used = {name: after[name] - before[name] for name in before}
    others = used.pop("machine") - sum(used.values())
    per_run = {name: used[name] / runs * 1e3 for name in ("system", "postgres", "redis")}
    return {**per_run, "others": max(0.0, others) / (seconds * (os.cpu_count() or 1))}


def wait_for_quiet(patience: float) -> float:
    """Wait, for a time, until nobody else uses the machine; return how long a fixed loop takes, in milliseconds."""
    until = time.monotonic() + patience
    while psutil.cpu_percent(0.3) / 100 > QUIET and time.monotonic() < until:
        pass
    return statistics.median(_fixed_loop() for _ in range(5))


def _fixed_loop() -> float:
    began = time.perf_counter()
    for _ in range(500_000):
        pass
    return (time.perf_counter() - began) * 1e3
