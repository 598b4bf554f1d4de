"""Statements: one round trip each, committed by itself, and one answer to a dead connection."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeout

from celery_guard.errors import SchemaMismatch, StoreUnavailable
from celery_guard.store.compiled import Plan, Statement
from celery_guard.store.connections import Connections, first_line
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
        self.connections = Connections(url, options or {})
        #: Whether this is the embedded database.
        self.is_sqlite = url.startswith("sqlite")
        self._checked = False
        self._keeps_plans = not self.is_sqlite
        self._gate: Any = ForkGate(self.connections.close) if self.is_sqlite else nullcontext()

    @property
    def engine(self) -> Engine:
        """This process's engine."""
        return self.connections.engine

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
        if not self._checked:
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

    def execute_together(self, *work: tuple[Statement, Mapping[str, Any]], answer: int = 0) -> Done:
        """Run statements in one transaction, the rest only where the first touched a row; return what one did."""
        self._check_schema()

        def together(connection: Any, cursor: Any) -> tuple[list[Row], int]:
            cursor.execute("BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")
            try:
                found = [self._run(cursor, work[0][0], work[0][1])]
                found += [self._run(cursor, *more) for more in work[1:] if found[0][1]]
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")
            return found[answer] if answer < len(found) else ([], 0)

        return self._repeating(together)

    def close(self) -> None:
        """Close this process's connections; the next statement opens new ones."""
        self.connections.close()

    def _repeating(self, work: Work) -> Done:
        repeated, conflicts = False, 0
        while True:
            try:
                with self._gate:
                    return Done(*self._on_a_connection(work), repeated)
            except _Disconnected as lost:
                if repeated:
                    raise StoreUnavailable(f"the database of runs can't be reached: {lost}") from lost.__cause__
                repeated = True
            except _Conflict as conflict:
                conflicts += 1
                if conflicts > 5:
                    raise StoreUnavailable(f"the database of runs is too busy: {conflict}") from conflict.__cause__
                time.sleep(0.01 * 2**conflicts)

    def _on_a_connection(self, work: Work) -> tuple[list[Row], int]:
        connection = self.connections.take()
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
        self.connections.give_back(connection)
        return found

    def _refused(self, error: Any, connection: Any) -> None:
        dialect, code = self.engine.dialect, getattr(error, "pgcode", None)
        if dialect.is_disconnect(error, connection.dbapi_connection, None) or (code or "")[:3] == "57P":
            self.connections.lose(connection)
            raise _Disconnected(first_line(error)) from error
        if code in _PLAN_IS_GONE:
            self._keeps_plans = code != _NOT_PREPARED  # behind a proxy that shares connections none can be relied on
            connection.invalidate()
            raise _Conflict(first_line(error)) from error
        self.connections.give_back(connection)
        if code == "55P03":
            raise RowLocked(f"another transaction holds the run's row: {first_line(error)}") from error
        if code in ("40001", "40P01") or "database is locked" in str(error):
            raise _Conflict(first_line(error)) from error
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
        plan, known = statement.plan(), connection.info
        left: int | None = known.pop(plan.name, None)
        if not left:
            self._prepare(cursor, plan, again=left is not None)
            left = _EXECUTIONS
        known[plan.name] = left - 1
        given = self._given(plan.constants, values)
        cursor.execute(plan.execute, [given[name] for name in plan.order])
        return _found(cursor)

    def _prepare(self, cursor: Any, plan: Plan, *, again: bool) -> None:
        try:
            if again:
                cursor.execute(f"DEALLOCATE {plan.name}")
            cursor.execute(plan.prepare)
        except self.engine.dialect.loaded_dbapi.Error as error:
            if getattr(error, "pgcode", None) != _PREPARED_ALREADY:
                raise

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
            with self._gate, self.connections.for_rare_work() as connection:
                yield connection
        except PoolTimeout as busy:
            raise StoreUnavailable(f"no connection to the database of runs became free: {busy}") from busy
        except DBAPIError as error:
            away = isinstance(error.orig, self.engine.dialect.loaded_dbapi.OperationalError)
            if away or error.connection_invalidated or "not a database" in str(error.orig):
                raise StoreUnavailable(f"the database of runs can't be reached: {first_line(error.orig)}") from error
            raise


class _Disconnected(Exception):
    """The connection broke under a statement."""


class _Conflict(Exception):
    """Two writers met; one of them starts over."""


#: How often a plan is executed before it is made anew: one that was made while the table was all but empty reads all of
#: it each time, and PostgreSQL itself looks again only when the table is next vacuumed or analysed.
_EXECUTIONS = 1_000

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
