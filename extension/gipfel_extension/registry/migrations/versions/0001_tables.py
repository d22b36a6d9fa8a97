"""Create the first version of the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "reports",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("received_ns", sa.BigInteger, nullable=False, index=True),
        sa.Column("reporter", sa.String(255), nullable=False, index=True),
        sa.Column("vouched", sa.Boolean, nullable=False),
        sa.Column("confirmed", sa.Boolean, nullable=False),
        sa.Column("cluster", sa.String(128), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("protocol", sa.String(200), nullable=False),
        sa.Column("started_ns", sa.BigInteger, nullable=False),
        sa.Column("ended_ns", sa.BigInteger, nullable=False),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.UniqueConstraint("reporter", "digest"),
    )
    op.create_table(
        "results",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column(
            "report_id",
            _ID,
            sa.ForeignKey("reports.id", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.Column("received_ns", sa.BigInteger, nullable=False, index=True),
        sa.Column("cluster", sa.String(128), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("check_name", sa.String(200), nullable=False),
        sa.Column("type", sa.String(200), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("measurement", sa.Double),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("gpu_model", sa.String(128), nullable=False),
        sa.Column("codes", sa.JSON, nullable=False),
        sa.Column("started_ns", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_results_node", "results", ["cluster", "node", "received_ns"])
    op.create_index("ix_results_model", "results", ["cluster", "gpu_model", "received_ns"])
    op.create_table(
        "cases",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("key", sa.String(16), nullable=False, unique=True),
        sa.Column("cluster", sa.String(128), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("opened_ns", sa.BigInteger, nullable=False),
        sa.Column("closed_ns", sa.BigInteger, index=True),
    )
    op.create_index("ix_cases_node", "cases", ["cluster", "node", "rule"])
    op.create_table(
        "steps",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("case_id", _ID, sa.ForeignKey("cases.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("text", sa.String(4000), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("decided_ns", sa.BigInteger),
        sa.Column("decided_by", sa.String(255), nullable=False),
        sa.Column("outcome", sa.String(1000), nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("at_ns", sa.BigInteger, nullable=False, index=True),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("cluster", sa.String(128), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("detail", sa.String(1000), nullable=False),
    )


def downgrade() -> None:
    """Drop all tables."""
    for name in ("audit", "steps", "cases", "results", "reports"):
        op.drop_table(name)
