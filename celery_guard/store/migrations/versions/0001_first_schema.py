"""First schema: runs, attempts, effects, workers."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ENDINGS = (
    "'cancelled/cancelled', 'dead/failed_due_deadline', 'dead/failed_due_max_attempts', 'dead/failed_due_worker_loss',"
    " 'failed/failed_non_retryable', 'queued', 'retrying', 'running', 'succeeded/succeeded'"
)
CATEGORIES = "'non_retryable', 'retryable', 'unknown'"
CHECKS = {
    "state": f"(state || coalesce('/' || terminal_reason, '')) IN ({ENDINGS})",
    "ending": "(finished_at IS NULL) = (terminal_reason IS NULL)",
    "attempt": "attempt >= 0 AND attempt <= max_attempts AND max_attempts >= 1",
    "error_category": f"error_category IN ({CATEGORIES})",
    "permit": "permit IN ('granted', 'wanted')",
}

#: One function in place of five CHECKs: PostgreSQL reads the text of each CHECK anew for every statement that writes.
IS_SOUND = """
CREATE OR REPLACE FUNCTION task_run_is_sound(
    state text, terminal_reason text, finished_at timestamptz, attempt integer, max_attempts integer,
    error_category text, permit text
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN ({conditions});
END
$$
""".format(conditions=")\n        AND (".join(CHECKS.values()))


def upgrade() -> None:
    moment = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
    checks = CHECKS
    if op.get_context().dialect.name == "postgresql":
        op.execute(IS_SOUND)
        arguments = "state, terminal_reason, finished_at, attempt, max_attempts, error_category, permit"
        checks = {"is_sound": f"task_run_is_sound({arguments})"}
    op.create_table(
        "task_run",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("queue", sa.String(255), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("terminal_reason", sa.String(32)),
        sa.Column("attempt", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("unknown_faults", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("next_retry_at", moment),
        sa.Column("deadline_at", moment, nullable=False),
        sa.Column("publish_at", moment),
        sa.Column("publishes", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("owed", sa.Boolean(create_constraint=False), nullable=False, server_default=sa.false()),
        sa.Column("claim_token", sa.String(64)),
        sa.Column("worker_id", sa.String(64)),
        sa.Column("idempotency_scope", sa.String(255)),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
        sa.Column("started_at", moment),
        sa.Column("finished_at", moment),
        sa.Column("result", sa.Text),
        sa.Column("last_error", sa.Text),
        sa.Column("error_category", sa.String(16)),
        sa.Column("error_type", sa.String(255)),
        sa.Column("parent_id", sa.String(255)),
        sa.Column("root_id", sa.String(255)),
        sa.Column("redrive_of", sa.String(255)),
        sa.Column("same_as", sa.String(255)),
        sa.Column("snoozes", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("meta", sa.Text),
        sa.Column("concurrency_group", sa.String(511)),
        sa.Column("permit", sa.String(8)),
        sa.PrimaryKeyConstraint("id", name="task_run_pkey"),
        *(sa.CheckConstraint(condition, name=f"task_run_{name}_check") for name, condition in checks.items()),
    )
    _partial_index("task_run_to_publish", "task_run", ["namespace", "publish_at"], "publish_at IS NOT NULL")
    _partial_index("task_run_running", "task_run", ["worker_id"], "state = 'running'")
    _partial_index("task_run_live", "task_run", ["namespace", "deadline_at"], "finished_at IS NULL")
    _partial_index("task_run_follows", "task_run", ["namespace"], "finished_at IS NULL AND same_as IS NOT NULL")
    _partial_index(
        "task_run_permits",
        "task_run",
        ["namespace", "concurrency_group", "permit", "created_at"],
        "permit IS NOT NULL AND state IN ('queued', 'running')",
    )
    _partial_index("task_run_ended", "task_run", ["namespace", "state", "finished_at"], "finished_at IS NOT NULL")
    _partial_index(
        "task_run_key",
        "task_run",
        ["namespace", "idempotency_scope", "idempotency_key"],
        "idempotency_key IS NOT NULL",
        unique=True,
    )
    op.create_table(
        "task_attempt",
        sa.Column("run_id", sa.String(255), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("worker_id", sa.String(64)),
        sa.Column("started_at", moment),
        sa.Column("finished_at", moment, nullable=False),
        sa.Column("category", sa.String(16)),
        sa.Column("rule", sa.String(255), nullable=False),
        sa.Column("error_type", sa.String(255)),
        sa.Column("error", sa.Text),
        sa.Column("traceback", sa.Text),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="task_attempt_pkey"),
        sa.CheckConstraint(f"category IN ({CATEGORIES})", name="task_attempt_category_check"),
    )
    op.create_table(
        "task_effect",
        sa.Column("run_id", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name="task_effect_pkey"),
    )
    op.create_table(
        "task_rate",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("last_slot_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "type", name="task_rate_pkey"),
    )
    op.create_table(
        "task_worker",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("beat", sa.Integer, nullable=False),
        sa.Column("beat_at", moment, nullable=False),
        sa.Column("reserved", sa.Text, nullable=False),
        sa.Column("stopped_at", moment),
        sa.PrimaryKeyConstraint("id", name="task_worker_pkey"),
    )
    _partial_index("task_worker_alive", "task_worker", ["namespace"], "stopped_at IS NULL")
    meta = op.create_table(
        "guard_meta",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("store_id", sa.String(64), nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("compatible_from", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="guard_meta_pkey"),
    )
    op.bulk_insert(meta, [{"id": 1, "store_id": uuid4().hex, "schema_version": 1, "compatible_from": 1}])


def _partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
