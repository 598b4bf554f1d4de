"""The verbs of a run's life: each is one statement, commits by itself, and says whether it won."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_guard.core.deadline import CENTURY
from celery_guard.core.decide import Claim, Finish, Retry, Settlement, Wait
from celery_guard.core.faults import Category, Fault
from celery_guard.core.states import Reason, State
from celery_guard.store import statements as sql
from celery_guard.store.bulk import submit_many
from celery_guard.store.database import Database, Done, parse_moment
from celery_guard.store.joined import Joined
from celery_guard.store.records import Attempt, Claimed, Due, Ended, Ending, NewRun, Running, Submitted, TaskRun
from celery_guard.store.rows import to_attempt, to_claimed, to_due, to_ended, to_running, to_task_run

__all__ = ["RunStore"]


class RunStore:
    """The table ``task_run`` of one namespace."""

    def __init__(self, database: Database | Joined, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    def submit(self, run: NewRun) -> Submitted | None:
        """Write a new row. None: nothing was written, since the id or the key is taken or the deadline has passed."""
        return _written(run, self.database.execute(sql.SUBMIT, **vars(run)))

    def submit_again(self, run: NewRun) -> Submitted | None:
        """Write a new row that takes its key over from the run it redrives. None: that one's key was taken by another.

        Who else submits the same key meanwhile waits, and finds the new row.
        """
        free = {"id": run.redrive_of, "ago": 0.0}
        return _written(run, self.database.execute_together((sql.FREE_KEY, free), (sql.SUBMIT, vars(run)), answer=1))

    def submit_many(self, runs: Sequence[NewRun]) -> dict[str, Submitted]:
        """Write many new rows in one statement; return those that were written, by id."""
        return submit_many(self.database, runs)

    def submit_finished(self, run: NewRun, finish: Finish) -> Ended | None:
        """Write a row that is over before it began, and owed to Celery. None: its id is taken."""
        values = {**vars(run), "state": finish.state.value, "terminal_reason": finish.reason.value}
        rows = self.database.execute(sql.SUBMIT_FINISHED, **values, **_fault_values(finish.fault)).rows
        return to_ended(rows[0]) if rows else None

    def taken_by(self, run: NewRun, ttl: timedelta = CENTURY) -> Submitted | None:
        """Return the row that has this id, or else this key, which is kept for a time after the end."""
        found = self.database.execute(
            sql.TAKEN_BY,
            id=run.id,
            namespace=run.namespace,
            idempotency_scope=run.idempotency_scope,
            idempotency_key=run.idempotency_key,
            ago=-ttl.total_seconds(),
        ).rows
        if not found:
            return None
        id_, deadline_at, fingerprint, type_, state, outlived = found[0]
        submitted_with, _, _ = fingerprint.partition("/")  # a retry with other arguments writes its own behind
        deadline_at = parse_moment(deadline_at)
        return Submitted(id_, False, deadline_at, submitted_with, type_, State(state), outlived_its_key=bool(outlived))

    def free_key(self, run_id: str, ttl: timedelta) -> bool:
        """Take its key from a run that ended longer ago than the key is kept."""
        return bool(self.database.execute(sql.FREE_KEY, id=run_id, ago=-ttl.total_seconds()).touched)

    def clock(self) -> datetime:
        """Return the database's clock."""
        moment: datetime = parse_moment(self.database.execute(sql.CLOCK).rows[0][0])
        return moment

    def claim(
        self, run_id: str, token: str, *, worker_id: str | None, fingerprint: str | None, type_: str | None = None
    ) -> Claimed | None:
        """Take a queued run for one attempt. None: it is not to be had; the same token gets what it already holds.

        Args:
            run_id: the run.
            token: who claims.
            worker_id: where.
            fingerprint: of the payload at hand; another one comes with the claim.
            type_: the task that is to run; another one may have taken its place.
        """
        done = self.database.execute(
            sql.CLAIM,
            id=run_id,
            namespace=self.namespace,
            token=token,
            worker_id=worker_id,
            fingerprint=fingerprint,
            type=type_,
        )
        return to_claimed(run_id, token, done.rows[0]) if done.rows else self.held(run_id, token)

    def held(self, run_id: str, token: str) -> Claimed | None:
        """Return the attempt that a token holds, if it does."""
        rows = self.database.execute(sql.HELD, id=run_id, token=token).rows
        return to_claimed(run_id, token, rows[0]) if rows else None

    def settle(
        self,
        claim: Claim,
        settlement: Settlement,
        *,
        result: str | None = None,
        owed: bool = False,
        lease: float | None = None,
        successor: str | None = None,
    ) -> bool:
        """End the attempt we hold. Return whether we still held it.

        Args:
            result: the encoded result, or the encoded error of an ending that is owed.
            owed: whether Celery must still be told.
            lease: seconds until the dispatcher tells it in our place.
            successor: the token to leave on the row when another than the holder settles, so that the holder does not
                take this settlement for its own.
        """
        values: dict[str, Any] = {
            "id": claim.run_id,
            "token": claim.token,
            "successor": successor or claim.token,
            "result": result,
            "owed": owed,
            "lease": lease,
        }
        if isinstance(settlement, Wait):
            done = self._snooze(claim, settlement)
        elif isinstance(settlement, Finish) and settlement.state is State.SUCCEEDED:
            done = self.database.execute(sql.SUCCEED, **values)
        else:
            done = self._settle_with_history({**values, **_settlement_values(settlement)})
        return bool(done.touched) or self._ended_by(claim, settlement, values["successor"])

    def succeed_together(self, left: Mapping[str, tuple[str, str | None]]) -> set[str]:
        """End attempts whose bodies returned, in one statement; return the tokens of those that were still held.

        Args:
            left: by the token that holds it, a run and its encoded result, if that is kept.

        Raises:
            RowLocked: somebody's transaction holds one of the rows; nothing was written.
        """
        ids, results = [run_id for run_id, _ in left.values()], [result for _, result in left.values()]
        done = self.database.execute(sql.SUCCEED_TOGETHER, ids=ids, tokens=list(left), results=results)
        won = {row[0] for row in done.rows}
        if done.repeated:  # a reply was lost: what it said is in the rows
            lost = left.keys() - won
            won |= {token for token in lost if self.holder(left[token][0]) == (State.SUCCEEDED, token)}
        return won

    def finish_waiting(self, run_id: str, settlement: Finish, *, token: str) -> Ended | None:
        """End a run that is not running: cancelled, or dead before its next attempt. None: it is not waiting."""
        values = {**_settlement_values(settlement), "id": run_id, "token": token}
        rows = self.database.execute(sql.FINISH_WAITING, **values).rows
        return to_ended(rows[0]) if rows else None

    def finish_expired(self, settlement: Finish, *, limit: int) -> list[Ended]:
        """End waiting runs whose deadline has passed, earliest first, and return them."""
        values = {**_settlement_values(settlement), "namespace": self.namespace, "limit": limit}
        return [to_ended(row) for row in self.database.execute(sql.FINISH_EXPIRED, **values).rows]

    def overdue(self, grace: timedelta, *, limit: int) -> list[Running]:
        """Return running rows whose deadline and grace have passed."""
        done = self.database.execute(sql.OVERDUE, namespace=self.namespace, ago=-grace.total_seconds(), limit=limit)
        return [to_running(row) for row in done.rows]

    def running_on(self, worker_id: str) -> list[Running]:
        """Return what a worker runs, as the table knows it."""
        return [to_running(row) for row in self.database.execute(sql.RUNNING_ON, worker_id=worker_id).rows]

    def running_for_nobody(self) -> list[Running]:
        """Return what workers run, as the table knows it, that are gone."""
        return [to_running(row) for row in self.database.execute(sql.RUNNING_FOR_NOBODY, namespace=self.namespace).rows]

    def running(self, run_id: str) -> Running | None:
        """Return a run that is running, as somebody other than its holder sees it."""
        rows = self.database.execute(sql.RUNNING, id=run_id, namespace=self.namespace).rows
        return to_running(rows[0]) if rows else None

    def prune(self, state: State, age: timedelta, key_age: timedelta, *, limit: int) -> int:
        """Delete runs that ended longer ago than their state is kept, with all that belongs to them.

        A run whose idempotency key must still point at it stays as long as that.
        """
        found = self.database.execute(
            sql.PRUNABLE,
            namespace=self.namespace,
            state=state.value,
            ago=-age.total_seconds(),
            key_ago=-key_age.total_seconds(),
            limit=limit,
        ).rows
        if not found:
            return 0
        ids = {"ids": [row[0] for row in found]}
        return self.database.execute_together(
            (sql.DELETE_RUNS, ids), (sql.DELETE_ATTEMPTS, ids), (sql.DELETE_EFFECTS, ids)
        ).touched

    def take_due(self, *, limit: int, lease: float) -> list[Due]:
        """Take rows to publish, earliest first, disjoint from what others take, and lease them."""
        done = self.database.execute(sql.TAKE_DUE, namespace=self.namespace, limit=limit, lease=lease)
        return sorted((to_due(row) for row in done.rows), key=lambda due: due.id)  # ids sort by time

    def waiting(self, *, reserved: Sequence[str], on_its_way: float) -> dict[str, tuple[int, int]]:
        """Return by queue how many rows should have a message in it, and how many rows outlived their lease.

        Args:
            reserved: the runs whose messages workers hold.
            on_its_way: how long ago a row may have been written whose message need not have arrived, in seconds; such
                rows are left out.
        """
        rows = self.database.execute(
            sql.WAITING, namespace=self.namespace, reserved=list(reserved), ago=-on_its_way
        ).rows
        return {queue: (int(waiting), int(suspects)) for queue, waiting, suspects in rows}

    def take_lost(self, queue: str, *, limit: int, lease: float, reserved: Sequence[str]) -> list[Due]:
        """Take published rows that outlived a lease since then and are in no worker's hands, oldest first."""
        values = {"queue": queue, "limit": limit, "lease": lease, "ago": -lease, "reserved": list(reserved)}
        return [to_due(row) for row in self.database.execute(sql.TAKE_LOST, namespace=self.namespace, **values).rows]

    def extend_leases(self, queue: str, *, limit: int, lease: float) -> int:
        """Double the patience with rows that the broker still has."""
        return self.database.execute(
            sql.EXTEND_LEASES, namespace=self.namespace, queue=queue, limit=limit, lease=lease
        ).touched

    def published(self, ids: Iterable[str], *, lease: float) -> int:
        """Note that rows which were due are published by their submitter."""
        return self.database.execute(sql.PUBLISHED, ids=list(ids), lease=lease).touched

    def publish_soon(self, ids: Iterable[str], *, delay: float) -> int:
        """Make rows whose publishing failed, or whose message is lost, due again."""
        return self.database.execute(sql.PUBLISH_SOON, ids=list(ids), delay=delay).touched

    def requeue(self, run_id: str) -> bool:
        """Make a waiting run claimable at once, without a message: what eager execution does instead of waiting."""
        return bool(self.database.execute(sql.REQUEUE, id=run_id).touched)

    def vacate(self, claim: Claim) -> bool:
        """Leave the row empty for another task that will be submitted under its id."""
        return bool(self.database.execute(sql.VACATE, id=claim.run_id, token=claim.token).touched)

    def move_in(self, run: NewRun) -> Submitted | None:
        """Write a new run into the row of its id that was left for it. None: the row was not left."""
        done = self.database.execute(sql.MOVE_IN, **vars(run))
        if not done.rows:
            return None
        deadline_at = parse_moment(done.rows[0][0])
        return Submitted(run.id, True, deadline_at, run.fingerprint, run.type, State.QUEUED)

    def submit_follower(self, run: NewRun) -> bool:
        """Write a row that will take over the ending of the run that it is the same as."""
        return bool(self.database.execute(sql.SUBMIT_FOLLOWER, **vars(run)).touched)

    def follow(self, *, limit: int) -> list[Ended]:
        """Give rows the ending of the run that they are the same as, where that has ended; return them."""
        return [to_ended(row) for row in self.database.execute(sql.FOLLOW, namespace=self.namespace, limit=limit).rows]

    def take_ending(self, run_id: str, *, ticket: int, lease: float) -> Ending | None:
        """Take an owed ending to tell Celery. None: another message was given that job, or nothing is owed."""
        rows = self.database.execute(sql.TAKE_ENDING, id=run_id, ticket=ticket, lease=lease).rows
        if not rows:
            return None
        state, reason, result, last_error, error_type = rows[0]
        return Ending(State(state), Reason(reason), result, last_error, error_type)

    def owe(self, run_id: str, token: str) -> bool:
        """Have the dispatcher tell Celery how a token ended the run; False where that is owed, or can't be told."""
        return bool(self.database.execute(sql.OWE, id=run_id, token=token).touched)

    def tell_soon(self, run_id: str, token: str) -> bool:
        """Make an owed ending due at once: the child that settled it can't tell it any more."""
        return bool(self.database.execute(sql.TELL_SOON, id=run_id, token=token).touched)

    def told(self, run_id: str) -> bool:
        """Celery knows the ending: nothing is owed any more."""
        return bool(self.database.execute(sql.TOLD, id=run_id).touched)

    def find(self, run_id: str, *, history: bool = False) -> TaskRun | None:
        """Return a snapshot of a run of this namespace, with its failed attempts when asked."""
        rows = self.database.execute(sql.FIND, id=run_id, namespace=self.namespace).rows
        if not rows:
            return None
        attempts: tuple[Attempt, ...] = ()
        if history:
            attempts = tuple(map(to_attempt, self.database.execute(sql.HISTORY, id=run_id).rows))
        return to_task_run(rows[0], attempts)

    def holder(self, run_id: str) -> tuple[State | None, str | None]:
        """Return the state of a run, and the token of its latest delivery."""
        rows = self.database.execute(sql.STATE_AND_TOKEN, id=run_id).rows
        return (State(rows[0][0]), rows[0][1]) if rows else (None, None)

    def payload(self, run_id: str) -> tuple[str, str] | None:
        """Return the encoded arguments and options of a run."""
        rows = self.database.execute(sql.PAYLOAD, id=run_id).rows
        return (rows[0][0], rows[0][1]) if rows else None

    def rewrite(self, claim: Claim, *, payload: str, options: str, fingerprint: str, queue: str | None = None) -> bool:
        """Give the run other arguments or options for its next attempt."""
        values = {"payload": payload, "options": options, "fingerprint": fingerprint, "queue": queue}
        return bool(self.database.execute(sql.REWRITE, id=claim.run_id, token=claim.token, **values).touched)

    def _snooze(self, claim: Claim, wait: Wait) -> Done:
        return self.database.execute(sql.SNOOZE, id=claim.run_id, token=claim.token, at=wait.at)

    def _settle_with_history(self, values: dict[str, Any]) -> Done:
        if not self.database.is_sqlite:
            return self.database.execute(sql.SETTLE, **values)
        return self.database.execute_together((sql.SETTLE_ROW, values), (sql.SETTLE_HISTORY, values))

    def _ended_by(self, claim: Claim, settlement: Settlement, token: str) -> bool:
        state, holder = self.holder(claim.run_id)
        wanted = {settlement.state} if isinstance(settlement, Finish) else {State.RETRYING, State.QUEUED}
        return holder == token and state in wanted


def _written(run: NewRun, done: Done) -> Submitted | None:
    if not done.rows:
        return None
    deadline_at, next_retry_at = map(parse_moment, done.rows[0])
    return Submitted(run.id, True, deadline_at, run.fingerprint, run.type, State.QUEUED, next_retry_at)


def _settlement_values(settlement: Finish | Retry) -> dict[str, Any]:
    fault = settlement.fault
    if isinstance(settlement, Retry):
        return {
            "state": State.RETRYING.value,
            "terminal_reason": None,
            "next_retry_at": settlement.at,
            "final": False,
            "rule": settlement.fault.rule,
            **_fault_values(fault),
        }
    return {
        "state": settlement.state.value,
        "terminal_reason": settlement.reason.value,
        "next_retry_at": None,
        "final": True,
        "rule": fault.rule if fault else settlement.reason.value,
        **_fault_values(fault),
    }


def _fault_values(fault: Fault | None) -> dict[str, Any]:
    if fault is None:
        return {"unknown": 0}
    return {
        "unknown": int(fault.category is Category.UNKNOWN),
        "category": fault.category.value,
        "error_type": fault.error_type,
        "error": fault.error,
        "summary": fault.summary,
        "traceback": fault.traceback,
    }
