"""A limited retry rate keeps the stretches of time that are taken, in place of one mark."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("task_rate")
    op.create_table(
        "task_rate",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("taken_from", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("taken_until", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "type", "taken_from", name="task_rate_pkey"),
    )
    op.execute("UPDATE guard_meta SET schema_version = 3, compatible_from = 3")
