"""Connections: one engine per process, one round trip per statement, one answer to a dead connection."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, TimeoutError as PoolTimeout

from celery_guard.errors import InvalidOption, SchemaMismatch, StoreUnavailable
from celery_guard.store.compiled import Statement
from celery_guard.store.forking import ForkGate
from celery_guard.store.sql import sortable_text

__all__ = ["Database", "Done", "RowLocked", "Statement", "parse_moment"]

Row = tuple[Any, ...]

#: What is done with a connection and a cursor on it, and the rows and their number that come of it.
Work = Callable[[Any, Any], tuple[list[Row], int]]


class Done(NamedTuple):
    """What one statement did: its rows, how many it touched, and whether a lost reply made it run again."""

    rows: list[Row]
    touched: int
    repeated: bool


class RowLocked(StoreUnavailable):
    """Somebody's transaction holds a row, and goes on to."""


class Database:
    """A database of runs, as one process sees it. Safe across fork and spawn: a child opens its own connections."""

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, clock: Callable[[], datetime] | None = None
    ) -> None:
        self.url = url
        self.clock = clock
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._pid = 0
        self._checked = False
        self._keeps_plans = not self.is_sqlite
        self._gate: Any = ForkGate(self._close_ours) if self.is_sqlite else nullcontext()

    @property
    def engine(self) -> Engine:
        """This process's engine; its autocommitting pool keeps 2 connections and opens at most 10."""
        if self._engine is None or self._pid != os.getpid():
            self._open()
        assert self._engine is not None
        return self._engine

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database."""
        return self.url.startswith("sqlite")

    @cached_property
    def store_id(self) -> str:
        """What tells this store from every other."""
        self._check_schema()
        with self.connection() as connection:
            return str(connection.execute(text("SELECT store_id FROM guard_meta")).scalar())

    def execute(self, statement: Statement, **values: Any) -> Done:
        """Run one statement and commit it: a single round trip.

        Statements must be safe to run twice: after a lost connection the statement runs again, once.

        Raises:
            StoreUnavailable: the database can't be reached or is too busy.
            SchemaMismatch: the tables are missing or do not fit this version.
        """
        self._check_schema()

        def work(connection: Any, cursor: Any) -> tuple[list[Row], int]:
            if statement.every_run and self._keeps_plans:
                return self._run_plan(connection, cursor, statement, values)
            return self._run(cursor, statement, values)

        return self._repeating(work)

    def execute_behind(self, lock: Statement, statement: Statement, **values: Any) -> Done:
        """Run one statement while a lock is held, in one round trip. SQLite has one writer at a time without it."""
        if self.is_sqlite:
            return self.execute(statement, **values)
        self._check_schema()
        return self._repeating(lambda _, cursor: self._run(cursor, statement, values, lock=lock))

    def execute_together(self, *work: tuple[Statement, Mapping[str, Any]]) -> Done:
        """Run statements in one transaction, the rest only where the first touched a row; the answer is the first's."""
        self._check_schema()

        def together(connection: Any, cursor: Any) -> tuple[list[Row], int]:
            cursor.execute("BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")
            try:
                first = self._run(cursor, work[0][0], work[0][1])
                for statement, values in work[1:] if first[1] else ():
                    self._run(cursor, statement, values)
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")
            return first

        return self._repeating(together)

    def _close_ours(self) -> None:
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()

    def close(self) -> None:
        """Close this process's connections; the next statement opens new ones."""
        if self._engine is not None:
            self._engine.dispose(close=self._pid == os.getpid())
            self._engine = None

    def _open(self) -> None:
        if self._pid != os.getpid():  # a fork may have copied a lock that another thread of the parent held
            self._lock = threading.Lock()
            self._pid, inherited = os.getpid(), self._engine
            self._engine = None
            if inherited is not None:
                inherited.dispose(close=False)
        with self._lock:
            if self._engine is None:
                self._engine = _new_engine(self.url, self._options)

    def _repeating(self, work: Work) -> Done:
        repeated, conflicts = False, 0
        while True:
            try:
                with self._gate:
                    rows, touched = self._with_cursor(work)
                return Done(rows, touched, repeated)
            except _Disconnected as lost:
                if repeated:
                    raise StoreUnavailable(f"the database of runs can't be reached: {lost}") from lost.__cause__
                repeated = True
            except _Conflict as conflict:
                conflicts += 1
                if conflicts > 5:
                    raise StoreUnavailable(f"the database of runs is too busy: {conflict}") from conflict.__cause__
                time.sleep(0.01 * 2**conflicts)

    def _with_cursor(self, work: Work) -> tuple[list[Row], int]:
        connection = self._checked_out()
        try:
            cursor = connection.cursor()
            try:
                found = work(connection, cursor)
            finally:
                cursor.close()
        except self.engine.dialect.loaded_dbapi.Error as error:
            self._refused(error, connection)
        except BaseException:
            connection.invalidate()  # in the middle of a statement: the connection's state is unknown
            raise
        connection.close()
        return found

    def _checked_out(self) -> Any:
        try:
            return self.engine.raw_connection()
        except PoolTimeout as busy:
            raise StoreUnavailable(f"no connection to the database of runs became free: {busy}") from busy
        except DBAPIError as error:
            raise StoreUnavailable(f"the database of runs can't be reached: {_first_line(error.orig)}") from error
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise StoreUnavailable(f"the database of runs can't be reached: {_first_line(error)}") from error

    def _refused(self, error: Any, connection: Any) -> None:
        dialect, code = self.engine.dialect, getattr(error, "pgcode", None)
        if dialect.is_disconnect(error, connection.dbapi_connection, None) or (code or "")[:3] == "57P":
            connection.invalidate()
            self.engine.dispose()  # its neighbours in the pool died with it
            raise _Disconnected(_first_line(error)) from error
        if code in _PLAN_IS_GONE:
            self._keeps_plans = code != _NOT_PREPARED  # behind a proxy that shares connections none can be relied on
            connection.invalidate()
            raise _Conflict(_first_line(error)) from error
        connection.close()
        if code == "55P03":
            raise RowLocked(f"another transaction holds the run's row: {_first_line(error)}") from error
        if code in ("40001", "40P01") or "database is locked" in str(error):
            raise _Conflict(_first_line(error)) from error
        if code == "42P01" or "no such table" in str(error):
            raise SchemaMismatch(_NO_TABLES) from error
        raise error

    def _run(
        self, cursor: Any, statement: Statement, values: Mapping[str, Any], *, lock: Statement | None = None
    ) -> tuple[list[Row], int]:
        sql, constants = statement.compiled(self.engine)
        if lock is not None:  # both are one transaction, in which the statement sees what was committed before the lock
            taking, more = lock.compiled(self.engine)
            sql, constants = f"{taking}; {sql}", {**more, **constants}
        given = self._given(constants, values)
        if self.is_sqlite:
            given = {name: _for_sqlite(value) for name, value in given.items()}
        cursor.execute(sql, given)
        return _found(cursor)

    def _run_plan(
        self, connection: Any, cursor: Any, statement: Statement, values: Mapping[str, Any]
    ) -> tuple[list[Row], int]:
        plan, (_, constants) = statement.plan(), statement.compiled(self.engine)
        if plan.name not in connection.info:
            try:
                cursor.execute(plan.prepare)
            except self.engine.dialect.loaded_dbapi.Error as error:
                if getattr(error, "pgcode", None) != _PREPARED_ALREADY:
                    raise
            connection.info[plan.name] = True
        given = self._given(constants, values)
        cursor.execute(plan.execute, [given[name] for name in plan.order])
        return _found(cursor)

    def _given(self, constants: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        given = {**constants, **values}
        if self.clock is not None and "now" in constants:
            given["now"] = self.clock()
        return given

    def _check_schema(self) -> None:
        if not self._checked:
            from celery_guard.store.migrations import check_or_create

            check_or_create(self)
            self._checked = True

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A SQLAlchemy connection for work that is rare: migrations, reports."""
        try:
            with self._gate, self.engine.connect() as connection:
                yield connection
        except PoolTimeout as busy:
            raise StoreUnavailable(f"no connection to the database of runs became free: {busy}") from busy
        except DBAPIError as error:
            away = isinstance(error.orig, self.engine.dialect.loaded_dbapi.OperationalError)
            if away or error.connection_invalidated or "not a database" in str(error.orig):
                raise StoreUnavailable(f"the database of runs can't be reached: {_first_line(error.orig)}") from error
            raise


class _Disconnected(Exception):
    """The connection broke under a statement."""


class _Conflict(Exception):
    """Two writers met; one of them starts over."""


#: SQLSTATEs of kept plans: the name is taken, it is unknown, the tables have changed under it.
_PREPARED_ALREADY, _NOT_PREPARED, _TABLES_CHANGED = "42P05", "26000", "0A000"
_PLAN_IS_GONE = (_NOT_PREPARED, _TABLES_CHANGED)

_NO_TABLES = "the tables of celery_guard are missing; run: celery -A <your app> guard migrate"


def parse_moment(value: Any) -> Any:
    """Return an aware UTC moment as either database gives it; None stays None."""
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(timezone.utc)


def _found(cursor: Any) -> tuple[list[Row], int]:
    rows = cursor.fetchall() if cursor.description is not None else []
    return rows, len(rows) if rows else max(cursor.rowcount, 0)


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return sortable_text(value)
    if isinstance(value, list):
        return json.dumps(value)
    return value


def _first_line(error: Any) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _new_engine(url: str, options: Mapping[str, Any]) -> Engine:
    embedded = url.startswith("sqlite")
    defaults: dict[str, Any] = {
        "isolation_level": "AUTOCOMMIT",
        "pool_reset_on_return": None,
        "pool_size": 2,
        "max_overflow": 8,
        "pool_timeout": 10,
        "pool_recycle": 1_800,
    }
    arguments = (
        {"timeout": _SQLITE_PATIENCE, "isolation_level": None, "check_same_thread": False} if embedded else _POSTGRESQL
    )
    given = dict(options)
    merged = {**defaults, **given, "connect_args": {**arguments, **given.get("connect_args", {})}}
    try:
        engine = create_engine(url, **merged)
    except (ArgumentError, TypeError, ValueError) as error:
        refused = _first_line(error).replace(url, "…")
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
