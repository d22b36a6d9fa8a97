"""Database tables of the registry, and `open_database`, which migrates them. Times are UTC nanoseconds."""

from pathlib import Path
from typing import Any

import alembic.command
import alembic.util
from alembic.config import Config
from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    Engine,
    ForeignKey,
    Identity,
    Index,
    Integer,
    String,
    UniqueConstraint,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from gipfel_cluster.model import GipfelError, one_line

# SQLite auto-increments only columns of the type INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Base class of all tables."""

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)


class _OfNode:
    """Columns of a table whose rows are about a node."""

    cluster: Mapped[str] = mapped_column(String(128))
    node: Mapped[str] = mapped_column(String(255))


class ReportRow(Base):
    """Report of one vetting run, with the sender as authenticated by the hub.

    ``vouched``: the sender's token has the scope `vouch`, so that one report is enough evidence for a rule.
    ``confirmed``: the scheduler confirmed that the job belonged to the sender and had these nodes.
    """

    __tablename__ = "reports"
    __table_args__ = (UniqueConstraint("reporter", "digest"),)

    received_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    reporter: Mapped[str] = mapped_column(String(255), index=True)
    vouched: Mapped[bool]
    confirmed: Mapped[bool]
    cluster: Mapped[str] = mapped_column(String(128))
    job: Mapped[str] = mapped_column(String(64))
    protocol: Mapped[str] = mapped_column(String(200))
    started_ns: Mapped[int] = mapped_column(BigInteger)
    ended_ns: Mapped[int] = mapped_column(BigInteger)
    complete: Mapped[bool]
    versions: Mapped[dict[str, str]] = mapped_column(JSON)
    digest: Mapped[str] = mapped_column(String(64))


class ResultRow(_OfNode, Base):
    """Result of one check on one node."""

    __tablename__ = "results"
    __table_args__ = (
        Index("ix_results_node", "cluster", "node", "received_ns"),
        Index("ix_results_model", "cluster", "gpu_model", "received_ns"),
    )

    report_id: Mapped[int] = mapped_column(ForeignKey("reports.id", ondelete="CASCADE"), index=True)
    received_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    check: Mapped[str] = mapped_column("check_name", String(200))
    type: Mapped[str] = mapped_column(String(200))
    scope: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(String(512))
    verdict: Mapped[str] = mapped_column(String(16))
    severity: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(500))
    measurement: Mapped[float | None] = mapped_column(Double)
    unit: Mapped[str] = mapped_column(String(32))
    gpu_model: Mapped[str] = mapped_column(String(128))
    codes: Mapped[list[int]] = mapped_column(JSON)
    started_ns: Mapped[int] = mapped_column(BigInteger)


class CaseRow(_OfNode, Base):
    """Rule that applies to a node, until the case is closed; ``key`` is part of the drain reason in Slurm."""

    __tablename__ = "cases"
    __table_args__ = (Index("ix_cases_node", "cluster", "node", "rule"),)

    key: Mapped[str] = mapped_column(String(16), unique=True)
    rule: Mapped[str] = mapped_column(String(64))
    opened_ns: Mapped[int] = mapped_column(BigInteger)
    closed_ns: Mapped[int | None] = mapped_column(BigInteger, index=True)
    steps: Mapped[list["StepRow"]] = relationship(
        back_populates="case", order_by="StepRow.id", passive_deletes=True
    )


class StepRow(Base):
    """Recovery step that a rule proposed, with its decision and outcome."""

    __tablename__ = "steps"

    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    action: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(String(4000))
    state: Mapped[str] = mapped_column(String(16), index=True)
    created_ns: Mapped[int] = mapped_column(BigInteger)
    decided_ns: Mapped[int | None] = mapped_column(BigInteger)
    decided_by: Mapped[str] = mapped_column(String(255))
    outcome: Mapped[str] = mapped_column(String(1000))
    case: Mapped[CaseRow] = relationship(back_populates="steps")


class AuditRow(_OfNode, Base):
    """Action of the registry or of an operator."""

    __tablename__ = "audit"

    at_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    actor: Mapped[str] = mapped_column(String(255))
    event: Mapped[str] = mapped_column(String(32))
    detail: Mapped[str] = mapped_column(String(1000))


_MIGRATIONS = Path(__file__).parent / "migrations"
#: Key of PostgreSQL's advisory lock: "gipfel" in ASCII.
_LOCK = 0x67697066656C


def open_database(url: str) -> Engine:
    """Return a database engine, after migrating the tables to this version.

    Raises
    ------
    GipfelError
        The URL is not valid, the database can't be reached, its driver is missing, or its tables are of a
        newer version.
    """
    try:
        engine = _engine(url)
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # Two services that start at the same time must not both create the tables.
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            configuration = Config()
            configuration.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            configuration.attributes["connection"] = connection
            alembic.command.upgrade(configuration, "head")
    except (SQLAlchemyError, ImportError, OSError, ValueError, alembic.util.CommandError) as error:
        raise GipfelError(
            f"The registry's database can't be opened: {_without_password(error, url)}",
            "Check the URL in GIPFEL_REGISTRY_DATABASE or in the settings.",
        ) from None
    return engine


def _engine(url: str) -> Engine:
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        return create_engine(address, pool_pre_ping=True)
    if address.database and address.database != ":memory:":
        # Created here with mode 0600, so that other users can't read the results.
        path = Path(address.database)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    engine = create_engine(address, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")

    return engine


def _without_password(error: Exception, url: str) -> str:
    detail = one_line(str(error))
    try:
        password = make_url(url).password
    except SQLAlchemyError:
        return "the URL is not valid."
    return (detail.replace(str(password), "…") if password else detail)[:500]
