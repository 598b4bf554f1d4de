"""Databases: SQLSTATE where a driver tells it, else the driver's own codes and classes."""

from __future__ import annotations

import re
from typing import Any

from celery_guard.core.category import Category
from celery_guard.core.rules.rule import Look, Row, Rule, by_code, named

__all__ = [
    "MYSQL_CODE",
    "SQLITE_CODE",
    "SQLSTATE",
    "SQL_ACCESS",
    "SQL_CLASS",
    "SQL_CONFLICT",
    "SQL_CONNECTION",
]

_SQLSTATE = re.compile(r"[0-9A-Z]{5}")

#: What libpq raises when a connection fails; the server's code is lost on the way, its text is not.
_LIBPQ = ("psycopg2.OperationalError", "psycopg.OperationalError")

_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|permission denied|is not permitted to log in"
    r'|(role|database) "[^"]*" does not exist'
)

_MYSQL = (
    "pymysql.err.MySQLError",
    "MySQLdb._exceptions.MySQLError",
    "asyncmy.errors.MySQLError",
    "mysql.connector.errors.Error",
)

_DRIVERS = ("sqlite3", "psycopg2", "psycopg", "pymysql.err", "MySQLdb._exceptions", "mysql.connector.errors")


def _sqlstate(look: Look) -> str | None:
    found = look.read("pgcode") or look.read("sqlstate")
    if found is None and look.is_a("pyodbc.Error"):
        found = look.text
    return found if isinstance(found, str) and _SQLSTATE.fullmatch(found) else None


SQLSTATE = by_code(
    "sqlstate",
    "SQLSTATE of psycopg2, psycopg, asyncpg, pyodbc and others",
    _sqlstate,
    (
        (("28", "42501", "57P04"), Category.NON_RETRYABLE),
        (("08", "40001", "40P01", "53", "55P03", "57P0"), Category.RETRYABLE),
        (("0A", "22", "23", "3D", "3F", "42"), Category.NON_RETRYABLE),
    ),
)


def _mysql_code(look: Look) -> int | None:
    if not look.is_a(*_MYSQL):
        return None
    arguments = look.read("args")
    code = look.read("errno") or (arguments[0] if isinstance(arguments, tuple) and arguments else None)
    return code if type(code) is int else None


MYSQL_CODE = by_code(
    "mysql_code",
    "MySQL's error number in PyMySQL, mysqlclient, asyncmy and MySQL Connector",
    _mysql_code,
    (
        (frozenset({1044, 1045, 1142, 1143, 1227, 1698}), Category.NON_RETRYABLE),
        (
            frozenset({1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 2002, 2003, 2006, 2013, 2055}),
            Category.RETRYABLE,
        ),
    ),
)


def _sqlite_name(look: Look) -> Any:
    if not look.is_a("sqlite3.Error"):
        return None
    name = look.read("sqlite_errorname")
    return name if isinstance(name, str) else _sqlite_name_by_text(look.text)


def _sqlite_name_by_text(text: str) -> str | None:
    """Python 3.10 tells no code."""
    if text.startswith("database") and text.endswith("is locked"):
        return "SQLITE_BUSY"
    return "SQLITE_ERROR" if text.startswith("no such ") or text.endswith("syntax error") else None


SQLITE_CODE = by_code(
    "sqlite_code",
    "the result code of `sqlite3`",
    _sqlite_name,
    (
        (
            tuple(
                """
                SQLITE_BUSY SQLITE_FULL SQLITE_INTERRUPT SQLITE_IOERR SQLITE_LOCKED SQLITE_NOMEM SQLITE_PROTOCOL
                SQLITE_SCHEMA
                """.split()
            ),
            Category.RETRYABLE,
        ),
        (
            tuple(
                """
                SQLITE_AUTH SQLITE_CONSTRAINT SQLITE_CORRUPT SQLITE_ERROR SQLITE_MISMATCH SQLITE_MISUSE SQLITE_NOTADB
                SQLITE_PERM SQLITE_RANGE SQLITE_READONLY SQLITE_TOOBIG
                """.split()
            ),
            Category.NON_RETRYABLE,
        ),
    ),
)


def _is_not_let_in(look: Look) -> Category | None:
    refused = look.is_a(*_LIBPQ) and _sqlstate(look) is None and _REFUSED.search(look.text)
    return Category.NON_RETRYABLE if refused else None


SQL_ACCESS = Rule(
    "sql_access",
    _is_not_let_in,
    (
        Row(
            "`psycopg2.OperationalError`, `psycopg.OperationalError` without SQLSTATE whose text tells of a wrong"
            " password, role, database or `pg_hba.conf`",
            Category.NON_RETRYABLE,
        ),
    ),
)

_DISCONNECTED = ("sqlalchemy.exc.DisconnectionError", "sqlalchemy.exc.TimeoutError", "psycopg_pool.PoolTimeout")


def _is_disconnected(look: Look) -> Category | None:
    gone = look.is_a(*_LIBPQ) and _sqlstate(look) is None
    invalidated = look.is_a("sqlalchemy.exc.DBAPIError") and look.read("connection_invalidated") is True
    return Category.RETRYABLE if gone or invalidated or look.is_a(*_DISCONNECTED) else None


SQL_CONNECTION = Rule(
    "sql_connection",
    _is_disconnected,
    (
        Row("`psycopg2.OperationalError`, `psycopg.OperationalError` without SQLSTATE", Category.RETRYABLE),
        Row("`sqlalchemy.exc.DBAPIError` that invalidated its connection", Category.RETRYABLE),
        Row(", ".join(f"`{name}`" for name in _DISCONNECTED), Category.RETRYABLE),
    ),
)

SQL_CONFLICT = named("sql_conflict", Category.RETRYABLE, "sqlalchemy.orm.exc.StaleDataError")

_PERMANENT = frozenset(
    f"{module}.{name}"
    for module in (*_DRIVERS, "sqlalchemy.exc")
    for name in ("DataError", "IntegrityError", "NotSupportedError", "ProgrammingError")
)


def _is_of_a_permanent_class(look: Look) -> Category | None:
    if look.names.isdisjoint(_PERMANENT) or _sqlstate(look) or _sqlstate(Look(look.read("orig"), look.now)):
        return None
    return Category.NON_RETRYABLE


SQL_CLASS = Rule(
    "sql_class",
    _is_of_a_permanent_class,
    (
        Row(
            "`DataError`, `IntegrityError`, `NotSupportedError` and `ProgrammingError` without SQLSTATE, of "
            + ", ".join(f"`{module}`" for module in (*_DRIVERS, "sqlalchemy.exc")),
            Category.NON_RETRYABLE,
        ),
    ),
)
