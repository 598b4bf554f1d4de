"""Two tasks that charge a card: as one writes it for Celery, and guarded."""

from __future__ import annotations

import os
import signal

from celery import Task
from sqlalchemy.orm import Session

from celery_guard import GuardedTask, current_run
from example_project import folders
from example_project.charge_once import app
from example_project.charge_once.ledger import charge, ledger

__all__ = ["charge_guarded", "charge_plainly"]


@app.task(base=Task, acks_late=True, reject_on_worker_lost=True)
def charge_plainly(order_id: int) -> None:
    """Charge, with all that Celery offers against lost work."""
    with Session(ledger()) as session:
        charge(session, "plain", order_id)
        session.commit()
    _be_killed_once("plain")


@app.task(base=GuardedTask, idempotency_key="charge-{order_id}")
def charge_guarded(order_id: int) -> None:
    """Charge in a step, whose record commits with the charge."""
    with Session(ledger()) as session:
        current_run().step("charge", charge, session, "guarded", order_id, session=session)
        session.commit()
    _be_killed_once("guarded")


def _be_killed_once(who: str) -> None:
    """Be killed right after the first charge, as when memory runs out: nothing else is done or told."""
    try:
        (folders.home() / f"killed-{who}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
