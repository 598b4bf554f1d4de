"""A PostgreSQL and a Redis of the benchmark's own, unless the environment names others."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg2

#: What differs from PostgreSQL's defaults; ``fsync`` and ``synchronous_commit`` stay on.
POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "top",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "200",
}


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the URLs of a PostgreSQL database and of a Redis server, both for us alone."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # never leave a server behind
    with ExitStack() as stack:
        postgres = os.environ.get("GUARD_BENCH_POSTGRES_URL") or stack.enter_context(_postgres(folder))
        redis = os.environ.get("GUARD_BENCH_REDIS_URL") or stack.enter_context(_redis(folder))
        yield postgres, redis


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    programs, user = _programs(), _unprivileged_user()
    data, port = folder / "postgres", _free_port()
    data.mkdir()
    if user is not None:
        folder.chmod(0o755)
        shutil.chown(data, user)
    initdb = [programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--encoding=UTF8", "--locale=C"]
    subprocess.run([*initdb, "--data-checksums"], user=user, check=True, stdout=subprocess.DEVNULL, cwd=data)
    settings = [word for name, value in POSTGRES_SETTINGS.items() for word in ("-c", f"{name}={value}")]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), *settings],
        user=user,
        cwd=data,
        stderr=(folder / "postgres.log").open("w"),
        start_new_session=True,
    )
    try:
        _wait_for(port)
        administer(f"postgresql://postgres@127.0.0.1:{port}/postgres", "CREATE DATABASE bench")
        yield f"postgresql://postgres@127.0.0.1:{port}/bench"
    finally:
        server.send_signal(signal.SIGINT)  # which does not wait for connections to end
        server.wait()


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    program, port = shutil.which("redis-server") or shutil.which("valkey-server"), _free_port()
    if program is None:
        raise SystemExit("no redis-server here: install one, or set GUARD_BENCH_REDIS_URL")
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True)
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def administer(url: str, statement: str) -> None:
    """Run one statement outside any transaction."""
    for _ in range(100):
        try:
            connection = psycopg2.connect(url)
            break
        except psycopg2.OperationalError:  # it listens before it lets anybody in
            time.sleep(0.1)
    connection.autocommit = True
    connection.cursor().execute(statement)
    connection.close()


def _programs() -> Path:
    found = shutil.which("postgres")
    places = [Path(found)] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not places:
        raise SystemExit("no PostgreSQL server programs here: install them, or set GUARD_BENCH_POSTGRES_URL")
    return places[-1].parent


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")
