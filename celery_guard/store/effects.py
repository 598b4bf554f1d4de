"""The verbs of a run's steps: a named result is stored once."""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import bindparam, cast, select
from sqlalchemy.dialects import postgresql

from celery_guard.store.database import Done, Statement
from celery_guard.store.models import task_effect, task_run
from celery_guard.store.sql import now
from celery_guard.store.statements.parts import IS_HELD

__all__ = ["EffectStore", "Executes"]

EFFECT = task_effect.c


class Executes(Protocol):
    """Whatever runs a statement: the store's own database, or a transaction of the caller's."""

    def execute(self, statement: Statement, **values: Any) -> Done:
        """Run one statement."""


class EffectStore:
    """The table ``task_effect``."""

    def __init__(self, database: Executes) -> None:
        self.database = database

    def find(self, run_id: str, name: str) -> str | None:
        """Return the stored result of a step, encoded."""
        rows = self.database.execute(_FIND, id=run_id, name=name).rows
        return rows[0][0] if rows else None

    def keep(self, run_id: str, token: str, name: str, result: str) -> bool:
        """Store the result of a step. False: the token no longer holds the run, or the step is stored already."""
        return bool(self.database.execute(_KEEP, id=run_id, token=token, name=name, result=result).touched)


def _keep() -> Any:
    row = select(
        task_run.c.id,
        cast(bindparam("name"), EFFECT.name.type),
        cast(bindparam("result"), EFFECT.result.type),
        now(),
    ).where(IS_HELD)
    statement = postgresql.insert(task_effect).from_select(["run_id", "name", "result", "created_at"], row)
    return statement.on_conflict_do_nothing().returning(EFFECT.name)


#: Read the stored result of a step.
_FIND = Statement(
    lambda: select(EFFECT.result).where(EFFECT.run_id == bindparam("id"), EFFECT.name == bindparam("name"))
)

#: Store the result of a step, unless it is stored or the run is no longer held.
_KEEP = Statement(_keep)
