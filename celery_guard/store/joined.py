"""Statements in a transaction that is the caller's, on a connection that is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from celery_guard.errors import InvalidOption, StoreUnavailable
from celery_guard.store.database import Database, Done, Statement

__all__ = ["Joined", "in_async_session", "unscoped"]

T = TypeVar("T")


def unscoped(session: Any) -> Any:
    """Return the session of this thread or task where a ``scoped_session`` stands for it."""
    return session() if isinstance(session, scoped_session) else session


async def in_async_session(session: Any, work: Callable[[Any], T]) -> T:
    """Do work with the ``Session`` or ``Connection`` behind an asynchronous one.

    Raises:
        InvalidOption: it is not an asynchronous one.
    """
    if not hasattr(session, "run_sync"):
        raise InvalidOption(
            f"session must be a SQLAlchemy AsyncSession or AsyncConnection here, not {type(session).__name__}"
        )
    return await session.run_sync(work)  # type: ignore[no-any-return]


#: Engines of callers that were seen to lead to a store.
_same_store: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class Joined:
    """The caller's transaction, with the verbs' way of running statements; the caller commits.

    Args:
        database: the store.
        session: a SQLAlchemy ``Session``, ``scoped_session`` or ``Connection``.

    Raises:
        InvalidOption: another kind of object, or a session that is bound to another database.
    """

    def __init__(self, database: Database, session: Any) -> None:
        session = unscoped(session)
        if isinstance(session, Session):
            self.session: Session | None = session
            self.connection: Connection = session.connection()
        elif isinstance(session, Connection):
            self.session, self.connection = None, session
        else:
            raise InvalidOption(
                f"session must be a SQLAlchemy Session or Connection, not {type(session).__name__};"
                " with an AsyncSession, await submit_async, step_async or complete_in_async"
            )
        self.is_sqlite = database.is_sqlite
        self.clock = database.clock
        self._refuse_another_database(database)

    def execute(self, statement: Statement, **values: Any) -> Done:
        """Run one statement in the caller's transaction.

        Raises:
            StoreUnavailable: the database refused it; the caller's transaction is lost.
        """
        core, constants = statement.text(self.connection.dialect.name)
        given = {**constants, **values}
        if self.clock is not None and "now" in constants:
            given["now"] = self.clock()
        try:
            result = self.connection.execute(core, given)
        except DBAPIError as error:
            raise StoreUnavailable(f"the transaction given as session= can't go on: {error.orig}") from error
        rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else []
        return Done(rows, len(rows) if rows else max(result.rowcount, 0), False)

    def execute_together(self, *work: tuple[Statement, Mapping[str, Any]], answer: int = 0) -> Done:
        """Run statements in turn, the rest only where the first touched a row; return what one did."""
        found = [self.execute(work[0][0], **work[0][1])]
        found += [self.execute(statement, **values) for statement, values in work[1:] if found[0].touched]
        return found[answer] if answer < len(found) else Done([], 0, False)

    def _refuse_another_database(self, database: Database) -> None:
        engine = self.connection.engine
        if _same_store.get(engine) == database.store_id:
            return
        found = None
        if self.connection.dialect.has_table(self.connection, "guard_meta"):
            found = self.connection.execute(text("SELECT store_id FROM guard_meta")).scalar()
        if found != database.store_id:
            raise InvalidOption(
                "session is bound to another database than guard_database_url; a run and the caller's rows can only"
                " commit together in one database"
            )
        _same_store[engine] = database.store_id
