"""The verbs of a concurrency limit: a run takes a permit with its claim, waits for one, or is given one."""

from __future__ import annotations

from dataclasses import dataclass

from celery_guard.core.states import Permit
from celery_guard.store import statements as sql
from celery_guard.store.database import Database
from celery_guard.store.records import Claimed, Due
from celery_guard.store.rows import to_claimed, to_due
from celery_guard.store.runs import RunStore

__all__ = ["MustWait", "PermitStore", "WaitingGroup"]

#: For how long a permit is kept for a run whose message is on its way, in seconds. One that takes longer, behind a long
#: queue or for a worker that is away, asks again when it comes; until then others may run.
KEPT_FOR = 15.0


class MustWait(Exception):
    """As many runs of the group are running as may; this one waits in its row."""


@dataclass(frozen=True)
class WaitingGroup:
    """A concurrency group in which runs wait: the one that waits longest, its task, and how many hold a permit."""

    run_id: str
    type: str
    held: int


class PermitStore:
    """What the table ``task_run`` of one namespace says about concurrency limits.

    A permit is nothing but a row that is running, or whose message is on its way, so whatever ends an attempt gives it
    back. Those who take and grant permits of one group do so one after the other.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def claim(
        self, run_id: str, token: str, *, limit: int, worker_id: str | None, fingerprint: str | None, type_: str
    ) -> Claimed | None:
        """Take a queued run for one attempt, as :meth:`RunStore.claim` does, if its group has room.

        Args:
            limit: how many runs of the group may be running.
            type_: the task that is to run, and the group of a run that was submitted without one.

        Raises:
            MustWait: the group has no room. The run waits without a message until a permit is granted to it.
        """
        rows = self.database.execute_behind(
            sql.LOCK_GROUP,
            sql.CLAIM_WITH_PERMIT,
            id=run_id,
            namespace=self.namespace,
            token=token,
            worker_id=worker_id,
            fingerprint=fingerprint,
            type=type_,
            concurrency_group=type_,
            limit=limit,
            kept=-KEPT_FOR,
        ).rows
        if not rows:
            return RunStore(self.database, self.namespace).held(run_id, token)
        *columns, permit = rows[0]
        if permit != Permit.GRANTED.value:
            raise MustWait(f"the run {run_id} waits: {limit} of its concurrency group are running")
        return to_claimed(run_id, token, columns)

    def grant(self, run_id: str, *, limit: int, lease: float | None = None) -> list[Due]:
        """Give what room the group of a run has to the runs that wait longest, and return those.

        Args:
            run_id: any run of the group.
            limit: how many runs of the group may be running.
            lease: seconds for the caller to publish them; without it they are due, and a dispatcher publishes them.
        """
        done = self.database.execute_behind(
            sql.LOCK_GROUP,
            sql.GRANT,
            id=run_id,
            namespace=self.namespace,
            concurrency_group="",
            limit=limit,
            lease=lease,
            kept=-KEPT_FOR,
        )
        return [to_due(row) for row in done.rows]

    def waiting_groups(self) -> list[WaitingGroup]:
        """Return the groups in which runs wait."""
        rows = self.database.execute(sql.GROUPS_THAT_WAIT, namespace=self.namespace, kept=-KEPT_FOR).rows
        return [WaitingGroup(*row) for row in rows]
