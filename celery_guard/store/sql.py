"""SQL that PostgreSQL and SQLite spell differently: the clock, membership in a list."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import ARRAY, JSON, DateTime, Float, Text, bindparam, literal_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeDecorator

__all__ = [
    "Moment",
    "among",
    "constant",
    "earlier_of",
    "later",
    "now",
    "now_for_scans",
    "seconds_from_now",
    "seconds_from_now_for_scans",
    "sortable_text",
]

_SQLITE_FORMAT = "'%Y-%m-%d %H:%M:%f000+00:00'"


def sortable_text(moment: datetime) -> str:
    """Write a moment as SQLite keeps it: UTC, of fixed width."""
    return moment.astimezone(timezone.utc).isoformat(" ", "microseconds")


class Moment(TypeDecorator[Any]):
    """An aware moment: ``timestamptz`` on PostgreSQL, sortable UTC text on SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(DateTime(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return sortable_text(value) if dialect.name == "sqlite" and isinstance(value, datetime) else value


class now(ColumnElement[Any]):
    """The database's clock, or the bound ``now`` where a test passes one."""

    inherit_cache = True
    type = Moment()


class now_for_scans(now):
    """The clock read once per statement, so that an index can serve the comparison."""

    inherit_cache = True


class seconds_from_now(ColumnElement[Any]):
    """The clock plus a bound number of seconds, times an expression where one is given."""

    inherit_cache = True
    type = Moment()

    def __init__(self, name: str, times: Any = None) -> None:
        self.name = name
        self.times = literal_column("1") if times is None else times


class seconds_from_now_for_scans(seconds_from_now):
    """The same, computed once per statement, so that an index can serve the comparison."""

    inherit_cache = True


class later(ColumnElement[Any]):
    """The clock, or another moment, plus an expression in seconds."""

    inherit_cache = True
    type = Moment()

    def __init__(self, seconds: Any, since: Any = None) -> None:
        self.seconds = seconds
        self.since = since


class earlier_of(ColumnElement[Any]):
    """The earlier of two moments, neither of them NULL."""

    inherit_cache = True
    type = Moment()

    def __init__(self, one: Any, other: Any) -> None:
        self.one = one
        self.other = other


class among(ColumnElement[Any]):
    """Whether a column is one of a bound list of texts."""

    inherit_cache = True

    def __init__(self, column: Any, name: str) -> None:
        self.column = column
        self.name = name


def constant(value: object) -> ColumnElement[Any]:
    """Write a state or reason into the SQL itself, so that partial indexes match on every database."""
    return literal_column(f"'{value}'")


def _bound(name: str, compiler: Any, type_: Any) -> str:
    return str(compiler.process(bindparam(name, None, type_=type_)))


def _clock(compiler: Any) -> str:
    return _bound("now", compiler, Moment())


@compiles(now, "postgresql")
def _postgresql_now(element: Any, compiler: Any, **kw: Any) -> str:
    return f"COALESCE(CAST({_clock(compiler)} AS TIMESTAMPTZ), clock_timestamp())"


@compiles(now_for_scans, "postgresql")
def _postgresql_now_for_scans(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(SELECT {_postgresql_now(element, compiler)})"


@compiles(seconds_from_now, "postgresql")
def _postgresql_seconds_from_now(element: Any, compiler: Any, **kw: Any) -> str:
    seconds = f"CAST({_bound(element.name, compiler, Float())} AS FLOAT) * {compiler.process(element.times, **kw)}"
    return f"({_postgresql_now(element, compiler)} + {seconds} * INTERVAL '1 second')"


@compiles(seconds_from_now_for_scans, "postgresql")
def _postgresql_seconds_from_now_for_scans(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(SELECT {_postgresql_seconds_from_now(element, compiler, **kw)})"


@compiles(later, "postgresql")
def _postgresql_later(element: Any, compiler: Any, **kw: Any) -> str:
    since = _postgresql_now(element, compiler) if element.since is None else compiler.process(element.since, **kw)
    return f"({since} + {compiler.process(element.seconds, **kw)} * INTERVAL '1 second')"


@compiles(earlier_of, "postgresql")
def _postgresql_earlier_of(element: Any, compiler: Any, **kw: Any) -> str:
    return f"LEAST({compiler.process(element.one, **kw)}, {compiler.process(element.other, **kw)})"


@compiles(among, "postgresql")
def _postgresql_among(element: Any, compiler: Any, **kw: Any) -> str:
    return f"{compiler.process(element.column, **kw)} = ANY({_bound(element.name, compiler, ARRAY(Text))})"


@compiles(now, "sqlite")
@compiles(now_for_scans, "sqlite")
def _sqlite_now(element: Any, compiler: Any, **kw: Any) -> str:
    return f"COALESCE({_clock(compiler)}, strftime({_SQLITE_FORMAT}, 'now'))"


@compiles(seconds_from_now, "sqlite")
@compiles(seconds_from_now_for_scans, "sqlite")
def _sqlite_seconds_from_now(element: Any, compiler: Any, **kw: Any) -> str:
    clock = f"COALESCE({_clock(compiler)}, 'now')"
    seconds = f"({_bound(element.name, compiler, Float())} * {compiler.process(element.times, **kw)})"
    return f"strftime({_SQLITE_FORMAT}, {clock}, {seconds} || ' seconds')"


@compiles(later, "sqlite")
def _sqlite_later(element: Any, compiler: Any, **kw: Any) -> str:
    clock = f"COALESCE({_clock(compiler)}, 'now')"
    since = clock if element.since is None else compiler.process(element.since, **kw)
    return f"strftime({_SQLITE_FORMAT}, {since}, {compiler.process(element.seconds, **kw)} || ' seconds')"


@compiles(earlier_of, "sqlite")
def _sqlite_earlier_of(element: Any, compiler: Any, **kw: Any) -> str:
    return f"MIN({compiler.process(element.one, **kw)}, {compiler.process(element.other, **kw)})"


@compiles(among, "sqlite")
def _sqlite_among(element: Any, compiler: Any, **kw: Any) -> str:
    listed = f"json_each({_bound(element.name, compiler, JSON())})"
    return f"{compiler.process(element.column, **kw)} IN (SELECT value FROM {listed})"
