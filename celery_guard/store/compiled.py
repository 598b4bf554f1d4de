"""Statements compiled once: for our connections, for those of others, and as plans that a server keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import bindparam, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import Engine
from sqlalchemy.types import NullType

__all__ = ["Plan", "Statement"]


class Plan(NamedTuple):
    """A statement that PostgreSQL parses and plans once per connection.

    Its name says its text, so that one found on a connection that a proxy shares is the same statement.
    """

    name: str
    prepare: str
    execute: str
    order: list[str]
    constants: dict[str, Any]


class Statement:
    """One SQLAlchemy Core statement, compiled once per dialect and run through the pool's DBAPI connections.

    Args:
        build: makes the statement.
        sqlite: makes it for SQLite, where that needs other words.
        every_run: whether each run pays for it: then PostgreSQL keeps its plan.
        lock_patience: how long it may wait for a row that another transaction holds, in seconds; for ever by default.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        sqlite: Callable[[], Any] | None = None,
        *,
        every_run: bool = False,
        lock_patience: float | None = None,
    ) -> None:
        self.every_run = every_run
        self.lock_patience = lock_patience
        self._build = build
        self._build_for_sqlite = sqlite or build
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}
        self._texts: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._plan: Plan | None = None

    def compiled(self, engine: Engine) -> tuple[str, dict[str, Any]]:
        """Return the SQL text with named parameters, and the values of those that are constants."""
        found = self._compiled.get(engine.name)
        if found is None:
            dialect = sqlite.dialect(paramstyle="named") if engine.name == "sqlite" else engine.dialect
            compiled = self._core(engine.name).compile(dialect=dialect)
            found = self._compiled[engine.name] = (self._patient(str(compiled), engine.name), dict(compiled.params))
        return found

    def _patient(self, sql: str, dialect_name: str) -> str:
        """Bound the wait for locks in the same round trip: statements sent together are one transaction."""
        if self.lock_patience is None or dialect_name == "sqlite":
            return sql
        return f"SET LOCAL lock_timeout = {int(1_000 * self.lock_patience)}; {sql}"

    def plan(self) -> Plan:
        """Return the same as a plan for PostgreSQL to keep."""
        if self._plan is None:
            dialect: Any = PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
            compiled = self._build().compile(dialect=dialect)
            types: dict[str, Any] = {}
            for bound, name in compiled.bind_names.items():
                if not isinstance(bound.type, NullType):
                    types[name] = dialect.type_compiler_instance.process(bound.type)
            order = list(dict.fromkeys(compiled.positiontup))
            given = ", ".join(types.get(name, "unknown") for name in order)
            what = f"({given}) AS {compiled}"
            name = "guard_" + hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
            execute = self._patient(f"EXECUTE {name} ({', '.join('%s' for _ in order)})", dialect.name)
            self._plan = Plan(name, f"PREPARE {name} {what}", execute, order, dict(compiled.params))
        return self._plan

    def text(self, dialect_name: str) -> tuple[Any, dict[str, Any]]:
        """Return the same for a connection of somebody else's, whose driver may spell parameters in another way."""
        found = self._texts.get(dialect_name)
        if found is None:
            dialect = sqlite.dialect if dialect_name == "sqlite" else PGDialect
            compiled = self._core(dialect_name).compile(dialect=dialect(paramstyle="named"))
            typed = (bindparam(name, type_=bound.type) for bound, name in compiled.bind_names.items())
            found = self._texts[dialect_name] = (text(str(compiled)).bindparams(*typed), dict(compiled.params))
        return found

    def _core(self, dialect_name: str) -> Any:
        return self._build_for_sqlite() if dialect_name == "sqlite" else self._build()
