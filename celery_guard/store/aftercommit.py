"""When the outermost transaction of a caller's session has committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

__all__ = ["after_commit"]


class _Pending:
    """What to do after one session's commits. A rollback, of a savepoint too, drops what was asked for inside of it."""

    def __init__(self, session: Session) -> None:
        self._waiting: list[tuple[list[Any], Callable[[], None]]] = []
        self._committed: list[Callable[[], None]] = []
        event.listen(session, "after_commit", self._on_commit)
        event.listen(session, "after_soft_rollback", self._on_rollback)
        event.listen(session, "after_transaction_end", self._on_end)

    def add(self, session: Session, action: Callable[[], None]) -> None:
        self._waiting.append((_open_transactions(session), action))

    def _on_commit(self, session: Session) -> None:
        if session.get_nested_transaction() is None:  # else a savepoint was released, which commits nothing
            self._committed += [action for _, action in self._waiting]
            self._waiting.clear()

    def _on_rollback(self, session: Session, transaction: Any) -> None:
        self._waiting = [(inside, action) for inside, action in self._waiting if transaction not in inside]

    def _on_end(self, session: Session, transaction: Any) -> None:
        if transaction.parent is None:
            actions, self._committed = self._committed, []
            self._waiting.clear()  # the session was closed without a commit
            for action in actions:
                action()


_pending: WeakKeyDictionary[Session, _Pending] = WeakKeyDictionary()


def after_commit(session: Any, action: Callable[[], None]) -> bool:
    """Call an action once the outermost transaction has committed.

    Args:
        session: a SQLAlchemy ``Session``; one that joined a connection's transaction can't see the outermost commit.

    Returns:
        Whether that can be known; a bare connection does not tell.
    """
    if not isinstance(session, Session) or isinstance(session.get_bind(), Connection):
        return False
    if session not in _pending:
        _pending[session] = _Pending(session)
    _pending[session].add(session, action)
    return True


def _open_transactions(session: Session) -> list[Any]:
    transaction = session.get_nested_transaction() or session.get_transaction()
    found = []
    while transaction is not None:
        found.append(transaction)
        transaction = transaction.parent
    return found
