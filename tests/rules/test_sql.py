"""Databases: what a real PostgreSQL and SQLite raise through each driver; MySQL by stand-ins."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import StatementError
from sqlalchemy.orm.exc import StaleDataError

from tests.rules.peers import unused_port
from tests.rules.verdicts import NO, UNKNOWN, YES, Verdict, awaited, raised_by, verdict, verdict_on


@pytest.fixture(scope="module")
def url(postgres_server) -> Iterator[str]:
    with postgres_server.database() as url:
        yield sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def by_psycopg2(url: str, statement: str) -> None:
    connection = psycopg2.connect(url)
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def by_psycopg(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement)


def by_asyncpg(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close(timeout=1)

    awaited(execute)()


def by_sqlalchemy(url: str, statement: str) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg2:"))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


DRIVERS = [by_psycopg2, by_psycopg, by_asyncpg, by_sqlalchemy]
every_driver = pytest.mark.parametrize("execute", DRIVERS, ids=lambda execute: execute.__name__)

STATEMENTS = {
    "SELECT 1 / 0": (NO, "sqlstate"),
    "SELECT 'x'::int": (NO, "sqlstate"),
    "SELECT 99999999999::int": (NO, "sqlstate"),
    "SELECT * FROM nowhere": (NO, "sqlstate"),
    "SELEKT": (NO, "sqlstate"),
    "CREATE TEMP TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (1)": (NO, "sqlstate"),
    "CREATE TEMP TABLE t (id int NOT NULL); INSERT INTO t VALUES (NULL)": (NO, "sqlstate"),
    "SET statement_timeout = 10; SELECT pg_sleep(5)": (UNKNOWN, "unknown"),
}

CODES = {
    "08006": (YES, "sqlstate"),
    "28000": (NO, "sqlstate"),
    "28P01": (NO, "sqlstate"),
    "40001": (YES, "sqlstate"),
    "40P01": (YES, "sqlstate"),
    "42501": (NO, "sqlstate"),
    "53100": (YES, "sqlstate"),
    "53300": (YES, "sqlstate"),
    "55P03": (YES, "sqlstate"),
    "57P01": (YES, "sqlstate"),
    "57P03": (YES, "sqlstate"),
    "57P04": (NO, "sqlstate"),
    "0A000": (NO, "sqlstate"),
    "3D000": (NO, "sqlstate"),
    "23514": (NO, "sqlstate"),
    "P0001": (UNKNOWN, "unknown"),
    "XX000": (UNKNOWN, "unknown"),
}


@every_driver
@pytest.mark.parametrize(("statement", "expected"), STATEMENTS.items())
def test_postgresql_says_itself_whether_a_repeat_helps(url, execute, statement, expected):
    assert verdict(lambda: execute(url, statement)) == Verdict(*expected)


@every_driver
def test_a_connection_that_the_server_ends_is_worth_a_repeat(url, execute):
    found = verdict(lambda: execute(url, "SELECT pg_terminate_backend(pg_backend_pid())"))

    assert found.category is YES
    assert found.rule in ("sqlstate", "sql_connection")  # libpq may see only that the connection is gone


@every_driver
@pytest.mark.parametrize(("code", "expected"), CODES.items())
def test_a_sqlstate_means_the_same_in_every_driver(url, execute, code, expected):
    statement = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'so it is'; END $$"

    assert verdict(lambda: execute(url, statement)) == Verdict(*expected)


@pytest.mark.parametrize(
    ("execute", "rule"),
    [
        (by_psycopg2, "sql_connection"),
        (by_psycopg, "sql_connection"),
        (by_sqlalchemy, "sql_connection"),
        (by_asyncpg, "python_connection"),
    ],
)
def test_a_database_that_is_not_there_is_worth_a_repeat(execute, rule):
    assert verdict(lambda: execute(f"postgresql://x@127.0.0.1:{unused_port()}/x", "SELECT 1")) == Verdict(YES, rule)


@every_driver
@pytest.mark.parametrize("wrong", [{"database": "no_such_database"}, {"username": "nobody_here", "password": "x"}])
def test_whom_the_server_does_not_let_in_need_not_come_again(url, execute, wrong):
    refused = sa.make_url(url).set(**wrong).render_as_string(hide_password=False)

    assert verdict(lambda: execute(refused, "SELECT 1")).category is NO


@pytest.mark.parametrize(
    "text",
    [
        'FATAL:  password authentication failed for user "shop"',
        'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "shop"',
        'FATAL:  role "shop" is not permitted to log in',
        "fe_sendauth: no password supplied",
    ],
)
@pytest.mark.parametrize("raised", [psycopg2.OperationalError, psycopg.OperationalError])
def test_a_refused_login_is_told_by_its_text_where_libpq_loses_the_code(raised, text):
    assert verdict_on(raised(f"connection failed: {text}")) == Verdict(NO, "sql_access")


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    path = str(tmp_path / "ledger.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, amount INT NOT NULL CHECK (amount > 0))")
    connection.close()
    return path


def by_sqlite3(path: str, statement: str) -> None:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute(statement)
    finally:
        connection.close()


def by_sqlalchemy_on_sqlite(path: str, statement: str) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


@pytest.mark.parametrize("execute", [by_sqlite3, by_sqlalchemy_on_sqlite])
@pytest.mark.parametrize(
    "statement",
    [
        "SELEKT",
        "SELECT * FROM nowhere",
        "INSERT INTO entry VALUES (1, NULL)",
        "INSERT INTO entry VALUES (1, -1)",
        "INSERT INTO entry VALUES (1, 1), (1, 1)",
        "INSERT INTO entry VALUES ('x', 1)",
        "SELECT ?",
    ],
)
def test_what_sqlite_refuses_is_permanent(ledger, execute, statement):
    assert verdict(lambda: execute(ledger, statement)).category is NO


@pytest.mark.parametrize("execute", [by_sqlite3, by_sqlalchemy_on_sqlite])
def test_a_locked_sqlite_file_is_worth_a_repeat(ledger, execute):
    holder = sqlite3.connect(ledger, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        found = verdict(lambda: execute(ledger, "INSERT INTO entry VALUES (1, 1)"))
    finally:
        holder.close()

    assert found == Verdict(YES, "sqlite_code")


def test_an_exhausted_pool_is_worth_a_repeat():
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect():
        found = verdict(engine.connect)
    engine.dispose()

    assert found == Verdict(YES, "sql_connection")


def test_a_connection_that_sqlalchemy_gave_up_is_worth_a_repeat():
    inner = psycopg2.InterfaceError("connection already closed")

    lost = sa.exc.DBAPIError.instance("SELECT 1", {}, inner, psycopg2.Error, connection_invalidated=True)
    misused = sa.exc.DBAPIError.instance("SELECT 1", {}, inner, psycopg2.Error)

    assert verdict_on(lost) == Verdict(YES, "sql_connection")
    assert verdict_on(misused) == Verdict(UNKNOWN, "unknown")


def test_a_value_that_can_not_be_bound_is_permanent():
    engine = sa.create_engine("sqlite://")
    statement = sa.select(sa.literal("x", sa.DateTime()))

    def execute() -> None:
        with engine.connect() as connection:
            connection.execute(statement)

    error = raised_by(execute)
    engine.dispose()

    assert isinstance(error, StatementError)
    assert verdict_on(error) == Verdict(NO, "python_value")


def test_a_row_that_somebody_else_changed_is_worth_a_repeat():
    assert verdict_on(StaleDataError("expected to update 1 row(s); 0 were matched")) == Verdict(YES, "sql_conflict")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncpg.SerializationError("x"), (YES, "sqlstate")),
        (asyncpg.InvalidPasswordError("x"), (NO, "sqlstate")),
        (asyncpg.TooManyConnectionsError("x"), (YES, "sqlstate")),
        (asyncpg.ConnectionDoesNotExistError("x"), (YES, "sqlstate")),
        (asyncpg.DataError("x"), (NO, "sqlstate")),
        (asyncpg.InterfaceError("x"), (UNKNOWN, "unknown")),
        (psycopg.errors.DeadlockDetected(), (YES, "sqlstate")),
        (psycopg.errors.QueryCanceled(), (UNKNOWN, "unknown")),
        (psycopg.ProgrammingError("no results to fetch"), (NO, "sql_class")),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), (NO, "sql_class")),
        (sqlite3.OperationalError("database is locked"), (YES, "sqlite_code")),
        (sqlite3.Error("?"), (UNKNOWN, "unknown")),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}" if isinstance(value, Exception) else value[1],
)
def test_what_drivers_raise_by_themselves(error, expected):
    assert verdict_on(error) == Verdict(*expected)


def a_class(module: str, name: str, *bases: type) -> type[Exception]:
    return type(name, bases or (Exception,), {"__module__": module})


def pymysql(name: str) -> Callable[..., Exception]:
    root = a_class("pymysql.err", "MySQLError")
    return a_class("pymysql.err", name, a_class("pymysql.err", "DatabaseError", root))


def connector(number: int) -> Exception:
    error = a_class("mysql.connector.errors", "Error")()
    error.errno, error.sqlstate = number, "HY000"  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pymysql("OperationalError")(1205, "Lock wait timeout exceeded"), (YES, "mysql_code")),
        (pymysql("OperationalError")(1213, "Deadlock found"), (YES, "mysql_code")),
        (pymysql("OperationalError")(2006, "MySQL server has gone away"), (YES, "mysql_code")),
        (pymysql("OperationalError")(1045, "Access denied"), (NO, "mysql_code")),
        (pymysql("IntegrityError")(1062, "Duplicate entry"), (NO, "sql_class")),
        (pymysql("ProgrammingError")(1146, "Table doesn't exist"), (NO, "sql_class")),
        (pymysql("OperationalError")("no code"), (UNKNOWN, "unknown")),
        (connector(1213), (YES, "mysql_code")),
        (connector(1045), (NO, "mysql_code")),
        (a_class("pyodbc", "Error")("40001", "deadlock"), (YES, "sqlstate")),
    ],
)
def test_mysql_tells_numbers(error, expected):
    assert verdict_on(error) == Verdict(*expected)
    wrapped = sa.exc.DBAPIError.instance("SELECT 1", {}, error, Exception)
    assert verdict_on(wrapped) == Verdict(*expected)
