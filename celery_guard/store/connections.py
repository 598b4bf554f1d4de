"""Connections of this process: SQLAlchemy's engine and pool, and those that the next statement finds at hand."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, TimeoutError as PoolTimeout

from celery_guard.errors import InvalidOption, StoreUnavailable

__all__ = ["Connections", "first_line"]

_DEFAULT: Mapping[str, Any] = {
    "isolation_level": "AUTOCOMMIT",
    "pool_reset_on_return": None,
    "pool_size": 2,
    "max_overflow": 8,
    "pool_timeout": 10,
    "pool_recycle": 1_800,
}

#: The same with one of them at hand instead of in the pool.
_KEEPING: Mapping[str, Any] = {**_DEFAULT, "pool_size": 1, "max_overflow": 9}

#: After how many seconds the pool looks at a connection at hand again.
_LOOK_AGAIN = 60.0

#: Which pool a connection was taken from, among what SQLAlchemy remembers of it.
_POOL = "guard_pool"

_all: WeakSet[Connections] = WeakSet()

#: What a fork has copied, never freed: freeing would take locks that threads of the parent may have held.
_inherited: list[Any] = []


class Connections:
    """The engine of one database, as one process sees it: made on first use, and again after a fork.

    To check a connection in and out costs SQLAlchemy's pool a good part of what a short statement costs its client, so
    one stays checked out between statements. Not where the options say how the pool is to be: it then sees each
    statement. Nor of SQLite, whose connections may not be open across a fork.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        configured = any(name.startswith("pool") or name in ("max_overflow", "creator") for name in options)
        self._keeps = not (configured or url.startswith("sqlite"))
        self._options = {**(_KEEPING if self._keeps else _DEFAULT), **options}
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._at_hand: list[Any] = []
        self._look_again_at = 0.0
        #: Who may have to wait for a connection of the pool.
        self._waiting: set[object] = set()

    def begin_anew(self) -> None:
        """Have nothing to do with the connections of the process that this one is a fork of."""
        _inherited.append((self._engine, self._at_hand))
        self._begin()

    @property
    def engine(self) -> Engine:
        """This process's engine; its autocommitting pool opens at most 10 connections, and 2 of them stay open."""
        if self._engine is None:
            with self._lock:
                if self._engine is None:
                    self._engine = _new_engine(self._url, self._options)
        return self._engine

    def take(self) -> Any:
        """Return a connection, to be given back, lost or invalidated.

        Raises:
            StoreUnavailable: none can be made, or none became free.
        """
        now = time.monotonic()
        if now >= self._look_again_at:
            self.hand_in()
            self._look_again_at = now + _LOOK_AGAIN
        return self._found_at_hand() or self._from_pool()

    def give_back(self, connection: Any) -> None:
        """Keep a connection for the next statement, or hand it in to the pool where somebody may wait for it."""
        engine = self._engine
        if engine is None or connection.info.get(_POOL) is not engine.pool:
            connection.invalidate()  # its pool was given up, and would keep it open
            return
        if self._keeps:
            self._at_hand.append(connection)
            if len(self._at_hand) == 1 and not self._waiting:
                return
            connection = self._found_at_hand()
        if connection is not None:
            connection.close()

    @contextmanager
    def for_rare_work(self) -> Iterator[Connection]:
        """A SQLAlchemy connection from the pool: for migrations, for reports."""
        engine = self.engine
        with self._may_wait():
            self.hand_in()
            connection = engine.connect()
        with connection:
            yield connection

    def lose(self, connection: Any) -> None:
        """Give up a connection that broke, and the pool that it is of; its neighbours died with it."""
        is_of_this_pool = connection.info.get(_POOL) is self.engine.pool
        connection.invalidate()
        if not is_of_this_pool:  # somebody else has noticed before
            return
        self.engine.dispose()
        while (neighbour := self._found_at_hand()) is not None:
            neighbour.invalidate()

    def hand_in(self) -> None:
        """Leave nothing checked out that is not in use."""
        while (connection := self._found_at_hand()) is not None:
            connection.close()

    def close(self) -> None:
        """Close this process's connections; the next statement opens new ones."""
        engine, self._engine = self._engine, None
        self.hand_in()
        if engine is not None:
            engine.dispose()

    def _found_at_hand(self) -> Any:
        try:
            return self._at_hand.pop()
        except IndexError:
            return None

    def _from_pool(self) -> Any:
        engine = self.engine
        pool = engine.pool
        try:
            with self._may_wait():
                connection = self._found_at_hand()
                if connection is None:
                    connection = engine.raw_connection()
                    connection.info[_POOL] = pool
        except PoolTimeout as busy:
            raise StoreUnavailable(f"no connection to the database of runs became free: {busy}") from busy
        except DBAPIError as error:
            raise StoreUnavailable(f"the database of runs can't be reached: {first_line(error.orig)}") from error
        except engine.dialect.loaded_dbapi.Error as error:
            raise StoreUnavailable(f"the database of runs can't be reached: {first_line(error)}") from error
        return connection

    @contextmanager
    def _may_wait(self) -> Iterator[None]:
        """Have whoever gives a connection back from now on hand it in. Who did so before may have left one at hand."""
        me = object()
        try:
            self._waiting.add(me)
            yield
        finally:
            self._waiting.discard(me)


def _begin_anew() -> None:
    for connections in list(_all):
        connections.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def first_line(error: Any) -> str:
    """Return what a driver says in its first line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _new_engine(url: str, options: Mapping[str, Any]) -> Engine:
    embedded = url.startswith("sqlite")
    arguments = (
        {"timeout": _SQLITE_PATIENCE, "isolation_level": None, "check_same_thread": False} if embedded else _POSTGRESQL
    )
    merged = {**options, "connect_args": {**arguments, **options.get("connect_args", {})}}
    try:
        engine = create_engine(url, **merged)
    except (ArgumentError, TypeError, ValueError) as error:
        refused = first_line(error).replace(url, "…")
        raise InvalidOption(f"guard_database_url and guard_database_engine_options give no engine: {refused}") from None
    event.listen(engine, "connect", _prepare_sqlite if embedded else _prepare_postgresql)
    return engine


_POSTGRESQL = {
    "connect_timeout": 5,
    "application_name": "celery_guard",
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def _prepare_postgresql(connection: Any, record: Any) -> None:
    connection.set_session(isolation_level="READ COMMITTED", autocommit=True)  # whatever the database's default is


_SQLITE_PATIENCE = 15  # seconds that a connection waits for another one's lock


def _prepare_sqlite(connection: Any, record: Any) -> None:
    cursor = connection.cursor()
    _write_ahead(cursor)
    for pragma in ("synchronous=FULL", f"busy_timeout={1000 * _SQLITE_PATIENCE}"):
        cursor.execute(f"PRAGMA {pragma}")
        cursor.fetchall()
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    # Two connections that both turn a new file to WAL could wait for each other for ever, so SQLite refuses one of
    # them at once, whatever its busy timeout. The file stays in WAL: whoever comes later has nothing to change.
    limit = time.monotonic() + _SQLITE_PATIENCE
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > limit:
                raise
            time.sleep(random.uniform(0.001, 0.01))
