"""What metrics count: faults of late, totals, and what happens to messages."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
    op.create_index("task_attempt_recent", "task_attempt", ["finished_at"])
    op.create_table(
        "task_tally",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("counted_to", moment, nullable=False),
        sa.Column("totals", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("namespace", name="task_tally_pkey"),
    )
    op.create_table(
        "task_count",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("times", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "event", "type", name="task_count_pkey"),
    )
    op.execute("UPDATE guard_meta SET schema_version = 2")
