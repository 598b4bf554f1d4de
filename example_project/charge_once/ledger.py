"""The shop's own table of charges, in the database that the runs are in."""

from __future__ import annotations

import os
from functools import cache

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.orm import Session

from example_project.charge_once import app

__all__ = ["charge", "charges", "ledger", "open_ledger"]

_CHARGES = Table(
    "example_charge",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("way", String(10), nullable=False),
    Column("order_id", Integer, nullable=False),
)


def ledger() -> Engine:
    """Return this process's way into the database."""
    return _engine(os.getpid())


@cache
def _engine(pid: int) -> Engine:
    return create_engine(app.conf.guard_database_url)


def open_ledger() -> None:
    """Begin with an empty table."""
    _CHARGES.metadata.drop_all(ledger())
    _CHARGES.metadata.create_all(ledger())


def charge(session: Session, way: str, order_id: int) -> str:
    """Write a charge, and let the caller commit it."""
    session.execute(insert(_CHARGES).values(way=way, order_id=order_id))
    return f"charged {order_id}"


def charges(way: str) -> int:
    """Count the charges that one of the tasks made."""
    with ledger().connect() as connection:
        return connection.execute(select(func.count()).where(_CHARGES.c.way == way)).scalar_one()
