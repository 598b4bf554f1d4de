"""The statements behind the verbs: each has a name, a sentence and named parameters."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Integer,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert as plain_insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from celery_guard.core.states import LIVE, State
from celery_guard.store.database import Statement
from celery_guard.store.models import task_attempt, task_effect, task_run
from celery_guard.store.sql import (
    among,
    constant,
    earlier_of,
    now,
    now_for_scans,
    seconds_from_now,
    seconds_from_now_for_scans,
)

RUN = task_run.c
_QUEUED = RUN.state == constant(State.QUEUED)
_RUNNING = RUN.state == constant(State.RUNNING)
_LIVE = RUN.state.in_([constant(state) for state in sorted(LIVE)])
_WAITING = RUN.state.in_([constant(State.QUEUED), constant(State.RETRYING)])
_FALSE: Any = literal_column("false")
_TRUE: Any = literal_column("true")
_MINE = RUN.namespace == bindparam("namespace")
_THIS = RUN.id == bindparam("id")
_HELD = and_(_THIS, RUN.claim_token == bindparam("token"), _RUNNING)
_DUE = and_(_MINE, RUN.publish_at <= now_for_scans())
#: A published row that nobody claimed: its message may be lost.
_PUBLISHED = and_(_QUEUED, RUN.next_retry_at.is_(None), RUN.publishes > 0)
_PATIENCE = seconds_from_now("lease", literal_column("(1 << CASE WHEN publishes < 6 THEN publishes ELSE 6 END)"))

#: What a snapshot shows, in the order of its columns.
SNAPSHOT = (
    "id type queue state terminal_reason attempt max_attempts unknown_faults deadline_at next_retry_at created_at"
    " started_at finished_at last_error error_category error_type idempotency_key parent_id root_id redrive_of same_as"
    " snoozes owed meta result"
).split()

#: What a submission gives as it is.
_GIVEN = (
    "id namespace type queue payload options max_attempts idempotency_scope idempotency_key fingerprint parent_id"
    " root_id redrive_of same_as meta"
).split()

_CLAIMED = (
    RUN.attempt,
    RUN.max_attempts,
    RUN.unknown_faults,
    RUN.deadline_at,
    now().label("clock"),
    RUN.created_at,
    case((RUN.fingerprint == bindparam("fingerprint"), null()), else_=RUN.payload).label("payload"),
    case((RUN.fingerprint == bindparam("fingerprint"), null()), else_=RUN.options).label("options"),
    RUN.meta,
    RUN.idempotency_scope,
    RUN.idempotency_key,
    RUN.parent_id,
    RUN.root_id,
    RUN.snoozes,
)

_DUE_COLUMNS = (
    RUN.id,
    RUN.type,
    RUN.payload,
    RUN.options,
    RUN.attempt,
    RUN.state,
    RUN.owed,
    RUN.publishes,
    RUN.deadline_at,
    RUN.fingerprint,
)

_RUNNING_COLUMNS = (
    RUN.id,
    RUN.claim_token,
    RUN.attempt,
    RUN.max_attempts,
    RUN.unknown_faults,
    RUN.deadline_at,
    RUN.type,
    now().label("clock"),
)


def _given(name: str) -> Any:
    """A bound value for a column; some drivers must be told the type of what is not text."""
    bound = bindparam(name, type_=RUN[name].type)
    return cast(bound, Integer) if isinstance(RUN[name].type, Integer) else bound


def _insert_or_nothing(columns: dict[str, Any], where: Any = None) -> Any:
    chosen = select(*columns.values())
    chosen = chosen.where(_TRUE if where is None else where)
    statement = postgresql.insert(task_run).from_select(list(columns), chosen, include_defaults=False)
    return statement.on_conflict_do_nothing()


def _deadline() -> Any:
    return earlier_of(_given("deadline_at"), seconds_from_now("deadline_after"))


def _submit() -> Any:
    starts_at = func.coalesce(_given_moment("delay_until"), seconds_from_now("delay_for"))
    unpublished = ~cast(bindparam("published"), Boolean)
    columns = {
        **{name: _given(name) for name in _GIVEN},
        "state": constant(State.QUEUED),
        "deadline_at": _deadline(),
        "next_retry_at": starts_at,
        "publish_at": func.coalesce(starts_at, seconds_from_now("lease")),
        "publishes": case((or_(starts_at.is_not(None), seconds_from_now("lease").is_(None), unpublished), 0), else_=1),
        "created_at": now(),
        "updated_at": now(),
    }
    in_time = and_(_deadline() > now(), or_(starts_at.is_(None), starts_at < _deadline()))
    return _insert_or_nothing(columns, in_time).returning(RUN.deadline_at, RUN.next_retry_at)


def _given_moment(name: str) -> Any:
    return bindparam(name, type_=RUN.deadline_at.type)


def _submit_finished() -> Any:
    columns = {
        **{name: _given(name) for name in _GIVEN},
        "state": _given("state"),
        "terminal_reason": _given("terminal_reason"),
        "deadline_at": _deadline(),
        "created_at": now(),
        "updated_at": now(),
        "finished_at": now(),
        "publish_at": now(),
        "owed": _TRUE,
        "last_error": bindparam("summary", type_=RUN.last_error.type),
        "error_category": bindparam("category", type_=RUN.error_category.type),
        "error_type": _given("error_type"),
    }
    return _insert_or_nothing(columns)


def _submit_follower() -> Any:
    columns = {
        **{name: _given(name) for name in _GIVEN},
        "state": constant(State.QUEUED),
        "deadline_at": _deadline(),
        "next_retry_at": _deadline(),
        "created_at": now(),
        "updated_at": now(),
    }
    return _insert_or_nothing(columns)


def _follow() -> Any:
    first = task_run.alias("first")
    follows = and_(_MINE, _LIVE, RUN.same_as.is_not(None))
    ended = select(RUN.id).where(follows, first.c.id == RUN.same_as, first.c.finished_at.is_not(None))
    found = ended.limit(bindparam("limit")).with_for_update(skip_locked=True, of=task_run).cte("found")
    taken = ("state", "terminal_reason", "result", "last_error", "error_category", "error_type")
    return (
        update(task_run)
        .where(RUN.id.in_(select(found.c.id)), first.c.id == RUN.same_as)
        .values(
            **{name: first.c[name] for name in taken},
            finished_at=now(),
            next_retry_at=None,
            owed=_TRUE,
            publish_at=now(),
            publishes=0,
            updated_at=now(),
        )
        .returning(RUN.id)
    )


def _ending() -> dict[str, Any]:
    """Columns that every settlement but a success writes."""
    final: Any = bindparam("final")
    return {
        "state": bindparam("state"),
        "terminal_reason": bindparam("terminal_reason"),
        "next_retry_at": _given("next_retry_at"),
        "publishes": 0,
        "updated_at": now(),
        "finished_at": case((final, now())),
        "unknown_faults": RUN.unknown_faults + bindparam("unknown"),
        "last_error": func.coalesce(bindparam("summary"), RUN.last_error),
        "error_category": func.coalesce(bindparam("category"), RUN.error_category),
        "error_type": func.coalesce(bindparam("error_type"), RUN.error_type),
    }


def _settle() -> Any:
    owed: Any = bindparam("owed")
    told_by = case((owed, func.coalesce(seconds_from_now("lease"), now())))
    return (
        update(task_run)
        .where(_HELD)
        .values(
            **_ending(),
            publish_at=case((bindparam("final"), told_by), else_=_given("next_retry_at")),
            owed=case((bindparam("final"), owed), else_=_FALSE),
            claim_token=bindparam("successor"),
            result=bindparam("result"),
        )
    )


_HISTORY = "run_id attempt worker_id started_at finished_at category rule error_type error traceback".split()


def _history_of(source: Any) -> Any:
    return select(
        source.c.id,
        source.c.attempt,
        source.c.worker_id,
        source.c.started_at,
        now(),
        bindparam("category", type_=task_attempt.c.category.type),
        bindparam("rule", type_=task_attempt.c.rule.type),
        bindparam("error_type", type_=task_attempt.c.error_type.type),
        bindparam("error", type_=task_attempt.c.error.type),
        bindparam("traceback", type_=task_attempt.c.traceback.type),
    )


def _settle_with_history() -> Any:
    settled = _settle().returning(RUN.id, RUN.attempt, RUN.worker_id, RUN.started_at).cte("settled")
    return plain_insert(task_attempt).from_select(_HISTORY, _history_of(settled))


def _finish_waiting(where: Any) -> Any:
    return update(task_run).where(where).values(**_ending(), publish_at=now(), owed=_TRUE)


def _first(where: Any, order: Any) -> Any:
    found = select(RUN.id).where(where).order_by(order).limit(bindparam("limit")).with_for_update(skip_locked=True)
    return RUN.id.in_(select(found.cte("found").c.id))


def _publish(where: Any) -> Any:
    taken = update(task_run).where(_first(where, RUN.publish_at))
    return taken.values(
        state=case((RUN.state == constant(State.RETRYING), constant(State.QUEUED)), else_=RUN.state),
        next_retry_at=None,
        publish_at=_PATIENCE,
        publishes=RUN.publishes + 1,
        updated_at=now(),
    )


def _of_a_newer_payload() -> Any:
    """The fingerprint of what an attempt brought, behind that of the submission, which a key goes on to know."""
    submitted_with = func.substr(RUN.fingerprint, 1, 42)
    both = submitted_with.concat(literal_column("'/'")).concat(func.substr(_given("fingerprint"), 1, 20))
    return case((RUN.idempotency_key.is_(None), _given("fingerprint")), else_=both)


def _claim() -> Any:
    return (
        update(task_run)
        .where(_THIS, _MINE, _QUEUED, RUN.next_retry_at.is_(None))
        .where(or_(_given("type").is_(None), RUN.type == _given("type")))
        .where(RUN.deadline_at > now(), RUN.attempt < RUN.max_attempts)
        .values(
            state=constant(State.RUNNING),
            attempt=RUN.attempt + 1,
            claim_token=bindparam("token"),
            worker_id=bindparam("worker_id"),
            started_at=now(),
            updated_at=now(),
            publish_at=None,
            publishes=0,
        )
        .returning(*_CLAIMED)
    )


#: Write a new row, unless its id or key is taken or its deadline has passed.
SUBMIT = Statement(_submit)

#: Write a row that is over before it began.
SUBMIT_FINISHED = Statement(_submit_finished)

#: Read the row that has this id, or else this key.
TAKEN_BY = Statement(
    lambda: (
        select(
            RUN.id,
            RUN.deadline_at,
            RUN.fingerprint,
            RUN.type,
            RUN.state,
            and_(RUN.finished_at.is_not(None), RUN.finished_at <= seconds_from_now("ago")).label("outlived"),
        )
        .where(
            or_(
                _THIS,
                and_(
                    _MINE,
                    RUN.idempotency_scope == bindparam("idempotency_scope"),
                    RUN.idempotency_key == bindparam("idempotency_key"),
                ),
            )
        )
        .order_by(case((_THIS, 0), else_=1))
        .limit(1)
    )
)

#: Take its key from a run that ended before a moment.
FREE_KEY = Statement(
    lambda: (
        update(task_run)
        .where(_THIS, RUN.idempotency_key.is_not(None), RUN.finished_at <= seconds_from_now("ago"))
        .values(idempotency_key=None)
    )
)

#: Read the clock.
CLOCK = Statement(lambda: select(now()))

#: Take a queued run for one attempt.
CLAIM = Statement(_claim)

#: Read the attempt that a token holds.
HELD = Statement(lambda: select(*_CLAIMED).where(_HELD))

#: The body returned in time.
SUCCEED = Statement(
    lambda: (
        update(task_run)
        .where(_HELD)
        .values(
            state=constant(State.SUCCEEDED),
            terminal_reason=constant("succeeded"),
            result=bindparam("result"),
            owed=bindparam("owed"),
            publish_at=case((bindparam("owed"), func.coalesce(seconds_from_now("lease"), now()))),
            finished_at=now(),
            updated_at=now(),
            claim_token=bindparam("successor"),
        )
    )
)

#: End the attempt in any other way and write its history, in one statement.
SETTLE = Statement(_settle_with_history)

#: The same for SQLite, which has no INSERT behind an UPDATE: two statements in one transaction.
SETTLE_ROW = Statement(_settle)
SETTLE_HISTORY = Statement(lambda: plain_insert(task_attempt).from_select(_HISTORY, _history_of(task_run).where(_THIS)))

#: Read who ended an attempt, and how.
STATE_AND_TOKEN = Statement(lambda: select(RUN.state, RUN.claim_token).where(_THIS))

#: End a run that is not running.
FINISH_WAITING = Statement(lambda: _finish_waiting(and_(_THIS, _WAITING)))

#: End waiting runs whose deadline has passed, earliest first.
FINISH_EXPIRED = Statement(
    lambda: _finish_waiting(
        and_(_WAITING, _first(and_(_MINE, _LIVE, _WAITING, RUN.deadline_at <= now_for_scans()), RUN.deadline_at))
    ).returning(RUN.id)
)

#: Read running rows whose deadline passed some time ago.
OVERDUE = Statement(
    lambda: (
        select(*_RUNNING_COLUMNS)
        .where(_MINE, _LIVE, _RUNNING, RUN.deadline_at <= seconds_from_now_for_scans("ago"))
        .order_by(RUN.deadline_at)
        .limit(bindparam("limit"))
    )
)

#: Read what a worker runs.
RUNNING_ON = Statement(lambda: select(*_RUNNING_COLUMNS).where(RUN.worker_id == bindparam("worker_id"), _RUNNING))

#: Read one running row.
RUNNING = Statement(lambda: select(*_RUNNING_COLUMNS).where(_THIS, _MINE, _RUNNING))

#: Read ended rows that are no longer kept, oldest first.
PRUNABLE = Statement(
    lambda: (
        select(RUN.id)
        .where(
            _MINE,
            RUN.state == bindparam("state"),
            RUN.finished_at.is_not(None),
            RUN.finished_at <= seconds_from_now_for_scans("ago"),
            or_(RUN.idempotency_key.is_(None), RUN.finished_at <= seconds_from_now_for_scans("key_ago")),
        )
        .order_by(RUN.finished_at)
        .limit(bindparam("limit"))
    )
)

#: Delete rows that have ended, and what belongs to them.
DELETE_RUNS = Statement(lambda: delete(task_run).where(among(RUN.id, "ids"), RUN.finished_at.is_not(None)))
DELETE_ATTEMPTS = Statement(lambda: delete(task_attempt).where(among(task_attempt.c.run_id, "ids")))
DELETE_EFFECTS = Statement(lambda: delete(task_effect).where(among(task_effect.c.run_id, "ids")))

#: Take rows to publish: whose wait is over, whose publishing failed, whose ending is owed.
TAKE_DUE = Statement(
    lambda: _publish(and_(_DUE, or_(RUN.owed, RUN.next_retry_at.is_not(None), RUN.publishes == 0))).returning(
        *_DUE_COLUMNS
    )
)

#: Count published rows that outlived their lease, by queue.
SUSPECTS = Statement(lambda: select(RUN.queue, func.count()).where(_DUE, _PUBLISHED).group_by(RUN.queue))

#: Count published rows of one queue that nobody has claimed.
WAITING_IN = Statement(lambda: select(func.count()).where(_MINE, _LIVE, _PUBLISHED, RUN.queue == bindparam("queue")))

#: Take published rows that outlived their lease and that no worker holds reserved.
TAKE_LOST = Statement(
    lambda: _publish(
        and_(_DUE, _PUBLISHED, RUN.queue == bindparam("queue"), ~among(RUN.id, "reserved").self_group())
    ).returning(*_DUE_COLUMNS)
)

#: Double the patience with published rows of one queue that outlived their lease.
EXTEND_LEASES = Statement(
    lambda: (
        update(task_run)
        .where(_first(and_(_DUE, _PUBLISHED, RUN.queue == bindparam("queue")), RUN.publish_at))
        .values(publish_at=_PATIENCE, publishes=RUN.publishes + 1)
        .returning(RUN.id)  # sqlite3 counts no rows of a statement that begins with WITH
    )
)

#: A row that was due is published by its submitter.
PUBLISHED = Statement(
    lambda: (
        update(task_run)
        .where(_THIS, _QUEUED, RUN.publishes == 0, RUN.next_retry_at.is_(None), RUN.publish_at.is_not(None))
        .values(publish_at=seconds_from_now("lease"), publishes=1)
    )
)

#: Make rows due again that were published in vain.
PUBLISH_SOON = Statement(
    lambda: (
        update(task_run)
        .where(among(RUN.id, "ids"), RUN.publish_at.is_not(None))
        .values(publish_at=seconds_from_now("delay"), publishes=0)
    )
)

#: Make a waiting run claimable at once, without a message.
REQUEUE = Statement(
    lambda: (
        update(task_run)
        .where(_THIS, _WAITING)
        .values(state=constant(State.QUEUED), next_retry_at=None, publish_at=None, updated_at=now())
    )
)

#: Give back an attempt whose body never started.
RELEASE = Statement(
    lambda: (
        update(task_run)
        .where(_HELD)
        .values(
            state=constant(State.RETRYING),
            attempt=RUN.attempt - 1,
            next_retry_at=seconds_from_now("delay"),
            publish_at=seconds_from_now("delay"),
            updated_at=now(),
        )
    )
)

#: Put off an attempt: it does not count.
SNOOZE = Statement(
    lambda: (
        update(task_run)
        .where(_HELD)
        .values(
            state=constant(State.RETRYING),
            attempt=RUN.attempt - 1,
            snoozes=RUN.snoozes + 1,
            next_retry_at=_given_moment("at"),
            publish_at=_given_moment("at"),
            updated_at=now(),
        )
    )
)

#: Leave the row of a held run empty: it waits, without a due time, for a task under its id.
VACATE = Statement(
    lambda: (
        update(task_run)
        .where(_HELD)
        .values(
            state=constant(State.RETRYING),
            next_retry_at=RUN.deadline_at,
            publish_at=None,
            publishes=0,
            claim_token=None,
            updated_at=now(),
        )
    )
)

#: Write a new run into a row that was left empty.
MOVE_IN = Statement(
    lambda: (
        update(task_run)
        .where(
            _THIS,
            RUN.state == constant(State.RETRYING),
            RUN.publish_at.is_(None),
            RUN.claim_token.is_(None),
            RUN.deadline_at > now(),
        )
        .values(
            **{name: _given(name) for name in ("type", "queue", "payload", "options", "max_attempts")},
            fingerprint=_of_a_newer_payload(),
            state=constant(State.QUEUED),
            attempt=0,
            unknown_faults=0,
            next_retry_at=None,
            publish_at=seconds_from_now("lease"),
            publishes=1,
            updated_at=now(),
        )
        .returning(RUN.deadline_at)
    )
)

#: Write a row that waits for the ending of another.
SUBMIT_FOLLOWER = Statement(_submit_follower)

#: Give rows the ending of the run that they are the same as.
FOLLOW = Statement(_follow)

#: Take an owed ending to tell Celery.
TAKE_ENDING = Statement(
    lambda: (
        update(task_run)
        .where(_THIS, RUN.owed, RUN.publishes == bindparam("ticket"))
        .values(publishes=RUN.publishes + 1, publish_at=seconds_from_now("lease"))
        .returning(RUN.state, RUN.terminal_reason, RUN.result, RUN.last_error, RUN.error_type)
    )
)

#: Make due an ending whose teller is gone.
TELL_SOON = Statement(
    lambda: (
        update(task_run)
        .where(_THIS, RUN.claim_token == bindparam("token"), RUN.owed)
        .values(publish_at=now(), publishes=0)
    )
)

#: Nothing is owed any more.
TOLD = Statement(lambda: update(task_run).where(_THIS, RUN.owed).values(owed=_FALSE, publish_at=None))

#: Read a snapshot.
FIND = Statement(lambda: select(*(RUN[name] for name in SNAPSHOT)).where(_THIS, _MINE))

#: Read the attempts that did not succeed, oldest first.
HISTORY = Statement(
    lambda: (
        select(*(task_attempt.c[name] for name in _HISTORY[1:]))
        .where(task_attempt.c.run_id == bindparam("id"))
        .order_by(task_attempt.c.attempt)
    )
)

#: Read the encoded arguments and options.
PAYLOAD = Statement(lambda: select(RUN.payload, RUN.options).where(_THIS))

#: Give the run other arguments or options for its next attempt. A key goes on to know those of the submission.
REWRITE = Statement(
    lambda: (
        update(task_run)
        .where(_HELD)
        .values(
            payload=bindparam("payload"),
            options=bindparam("options"),
            queue=func.coalesce(_given("queue"), RUN.queue),
            fingerprint=_of_a_newer_payload(),
        )
    )
)
