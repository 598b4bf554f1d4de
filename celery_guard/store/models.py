"""The tables: what is stored of a run's life."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    event,
    false,
    text,
)

from celery_guard.core.faults import Category
from celery_guard.core.states import ENDINGS, LIVE, Permit
from celery_guard.store.sql import Moment

__all__ = [
    "guard_meta",
    "metadata",
    "task_attempt",
    "task_count",
    "task_effect",
    "task_rate",
    "task_run",
    "task_tally",
    "task_worker",
]

metadata = MetaData(
    naming_convention={"pk": "%(table_name)s_pkey", "ck": "%(table_name)s_%(constraint_name)s_check"},
)


def _one_of(column: str, values: Any) -> str:
    return f"{column} IN ({', '.join(sorted(repr(str(value)) for value in values))})"


def _state_with_its_reason() -> str:
    """A live state has no reason, and a terminal one has one of its own."""
    endings = (f"{state}/{reason}" for state, reasons in ENDINGS.items() for reason in reasons)
    return _one_of("(state || coalesce('/' || terminal_reason, ''))", (*LIVE, *endings))


#: What holds for every run; where a column is NULL, what can't be told holds too.
SOUND = {
    "state": _state_with_its_reason(),
    "ending": "(finished_at IS NULL) = (terminal_reason IS NULL)",
    "attempt": "attempt >= 0 AND attempt <= max_attempts AND max_attempts >= 1",
    "error_category": _one_of("error_category", Category),
    "permit": _one_of("permit", Permit),
}

#: The same as a function, for PostgreSQL: it reads the text of each CHECK anew for every statement that writes, and a
#: function once per connection.
IS_SOUND = """
CREATE OR REPLACE FUNCTION task_run_is_sound(
    state text, terminal_reason text, finished_at timestamptz, attempt integer, max_attempts integer,
    error_category text, permit text
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN ({conditions});
END
$$
""".format(conditions=")\n        AND (".join(SOUND.values()))

#: One row is one submission's whole life.
task_run = Table(
    "task_run",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("namespace", String(255), nullable=False),
    Column("type", String(255), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("payload", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("terminal_reason", String(32)),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("unknown_faults", Integer, nullable=False, server_default=text("0")),
    Column("next_retry_at", Moment),
    Column("deadline_at", Moment, nullable=False),
    Column("publish_at", Moment),
    Column("publishes", Integer, nullable=False, server_default=text("0")),
    Column("owed", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("claim_token", String(64)),
    Column("worker_id", String(64)),
    Column("idempotency_scope", String(255)),
    Column("idempotency_key", String(255)),
    Column("fingerprint", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("result", Text),
    Column("last_error", Text),
    Column("error_category", String(16)),
    Column("error_type", String(255)),
    Column("parent_id", String(255)),
    Column("root_id", String(255)),
    Column("redrive_of", String(255)),
    Column("same_as", String(255)),
    Column("snoozes", Integer, nullable=False, server_default=text("0")),
    Column("meta", Text),
    Column("concurrency_group", String(511)),
    Column("permit", String(8)),
    *(CheckConstraint(condition, name=name).ddl_if("sqlite") for name, condition in SOUND.items()),
    CheckConstraint(
        "task_run_is_sound(state, terminal_reason, finished_at, attempt, max_attempts, error_category, permit)",
        name="is_sound",
    ).ddl_if("postgresql"),
    # the dispatcher: rows to publish, earliest first
    Index("task_run_to_publish", "namespace", "publish_at", postgresql_where=text("publish_at IS NOT NULL")),
    # rescue, audit: what a worker runs
    Index("task_run_running", "worker_id", postgresql_where=text("state = 'running'")),
    # the sweep: live rows by deadline
    Index("task_run_live", "namespace", "deadline_at", postgresql_where=text("finished_at IS NULL")),
    # rows that take over another's ending
    Index("task_run_follows", "namespace", postgresql_where=text("finished_at IS NULL AND same_as IS NOT NULL")),
    # permits: who holds one of a group, and who waits for one, oldest first
    Index(
        "task_run_permits",
        "namespace",
        "concurrency_group",
        "permit",
        "created_at",
        postgresql_where=text("permit IS NOT NULL AND state IN ('queued', 'running')"),
    ),
    # pruning: ended rows by age
    Index("task_run_ended", "namespace", "state", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    # one run per key
    Index(
        "task_run_key",
        "namespace",
        "idempotency_scope",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
)
for _moment, _ddl in (("before_create", IS_SOUND), ("after_drop", "DROP FUNCTION task_run_is_sound")):
    event.listen(task_run, _moment, DDL(_ddl).execute_if(dialect="postgresql"))  # type: ignore[no-untyped-call]

#: One row per attempt that did not succeed.
task_attempt = Table(
    "task_attempt",
    metadata,
    Column("run_id", String(255), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("worker_id", String(64)),
    Column("started_at", Moment),
    Column("finished_at", Moment, nullable=False),
    Column("category", String(16)),
    Column("rule", String(255), nullable=False),
    Column("error_type", String(255)),
    Column("error", Text),
    Column("traceback", Text),
    CheckConstraint(_one_of("category", Category), name="category"),
    # metrics: what failed of late
    Index("task_attempt_recent", "finished_at"),
)

#: A named, memoised piece of a run's work.
task_effect = Table(
    "task_effect",
    metadata,
    Column("run_id", String(255), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("result", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
)

#: One row per boot of a worker.
task_worker = Table(
    "task_worker",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("namespace", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("beat", Integer, nullable=False),
    Column("beat_at", Moment, nullable=False),
    Column("reserved", Text, nullable=False),
    Column("stopped_at", Moment),
    Index("task_worker_alive", "namespace", postgresql_where=text("stopped_at IS NULL")),
)
for _index in (*task_run.indexes, *task_worker.indexes):  # SQLite has the same partial indexes
    _index.dialect_options["sqlite"]["where"] = _index.dialect_options["postgresql"]["where"]

#: Per task whose retries are limited, the stretches of time in which every slot is taken, in microseconds since 1970.
task_rate = Table(
    "task_rate",
    metadata,
    Column("namespace", String(255), primary_key=True),
    Column("type", String(255), primary_key=True),
    Column("taken_from", BigInteger, primary_key=True, autoincrement=False),
    Column("taken_until", BigInteger, nullable=False),
)

#: One row per namespace whose metrics are read: what ended up to a moment, counted.
task_tally = Table(
    "task_tally",
    metadata,
    Column("namespace", String(255), primary_key=True),
    Column("counted_to", Moment, nullable=False),
    Column("totals", Text, nullable=False),
)

#: How often something happened to a task's messages that leaves no row of its own.
task_count = Table(
    "task_count",
    metadata,
    Column("namespace", String(255), primary_key=True),
    Column("event", String(32), primary_key=True),
    Column("type", String(255), primary_key=True),
    Column("times", BigInteger, nullable=False),
)

#: One row: which store this is, and who may use it.
guard_meta = Table(
    "guard_meta",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("store_id", String(64), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("compatible_from", Integer, nullable=False),
)
