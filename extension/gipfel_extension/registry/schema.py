"""The tables of the registry; times are UTC nanoseconds, as in reports.

Opens the database and brings its tables up to date.
"""

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

# SQLite counts up only a column that is INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The base of all tables."""


class ReportRow(Base):
    """One report, and who sent it: the hub's word, not the report's.

    ``vouched``: the sender has the scope that makes one report enough for a rule. ``confirmed``: the
    scheduler said that the job was the sender's and had these nodes.
    """

    __tablename__ = "reports"
    __table_args__ = (UniqueConstraint("reporter", "digest"),)

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)
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
    results: Mapped[list["ResultRow"]] = relationship(back_populates="report", passive_deletes=True)


class ResultRow(Base):
    """One verdict on one node."""

    __tablename__ = "results"
    __table_args__ = (
        Index("ix_results_node", "cluster", "node", "received_ns"),
        Index("ix_results_model", "cluster", "gpu_model", "received_ns"),
    )

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)
    report_id: Mapped[int] = mapped_column(ForeignKey("reports.id", ondelete="CASCADE"), index=True)
    received_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    cluster: Mapped[str] = mapped_column(String(128))
    node: Mapped[str] = mapped_column(String(255))
    check: Mapped[str] = mapped_column("check_name", String(200))
    type: Mapped[str] = mapped_column(String(200))
    scope: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str] = mapped_column(String(512))
    verdict: Mapped[str] = mapped_column(String(16))
    severity: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(500))
    figure: Mapped[float | None] = mapped_column(Double)
    unit: Mapped[str] = mapped_column(String(32))
    gpu_model: Mapped[str] = mapped_column(String(128))
    codes: Mapped[list[int]] = mapped_column(JSON)
    started_ns: Mapped[int] = mapped_column(BigInteger)
    report: Mapped[ReportRow] = relationship(back_populates="results")


class CaseRow(Base):
    """One rule that applies to one node, until it is closed; ``key`` is in the reason that Slurm shows."""

    __tablename__ = "cases"
    __table_args__ = (Index("ix_cases_node", "cluster", "node", "rule"),)

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)
    key: Mapped[str] = mapped_column(String(16), unique=True)
    cluster: Mapped[str] = mapped_column(String(128))
    node: Mapped[str] = mapped_column(String(255))
    rule: Mapped[str] = mapped_column(String(64))
    opened_ns: Mapped[int] = mapped_column(BigInteger)
    closed_ns: Mapped[int | None] = mapped_column(BigInteger, index=True)
    steps: Mapped[list["StepRow"]] = relationship(
        back_populates="case", order_by="StepRow.id", passive_deletes=True
    )


class StepRow(Base):
    """One step of recovery that a rule proposed, and what became of it."""

    __tablename__ = "steps"

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)
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


class AuditRow(Base):
    """One thing that the registry or an operator did."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(_Id, Identity(), primary_key=True)
    at_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    actor: Mapped[str] = mapped_column(String(255))
    event: Mapped[str] = mapped_column(String(32))
    cluster: Mapped[str] = mapped_column(String(128))
    node: Mapped[str] = mapped_column(String(255))
    words: Mapped[str] = mapped_column(String(1000))


_MIGRATIONS = Path(__file__).parent / "migrations"
#: "gipfel" in ASCII; one number for all registries on one database server is enough.
_LOCK = 0x67697066656C


def open_database(url: str) -> Engine:
    """An engine whose tables are those of this version.

    Raises
    ------
    GipfelError
        The URL is none, the database can't be reached, its driver is missing, or a newer version wrote it.
    """
    try:
        engine = _engine(url)
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # Two services that start at once must not both make the tables.
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            configuration = Config()
            configuration.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            configuration.attributes["connection"] = connection
            alembic.command.upgrade(configuration, "head")
    except (SQLAlchemyError, ImportError, OSError, ValueError, alembic.util.CommandError) as error:
        raise GipfelError(
            f"The registry's database can't be opened: {_without_password(error, url)}",
            "Check its address in GIPFEL_REGISTRY_DATABASE or the settings.",
        ) from None
    return engine


def _engine(url: str) -> Engine:
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        return create_engine(address, pool_pre_ping=True)
    if address.database and address.database != ":memory:":
        # Made by us, so that nobody else reads who tested which node.
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
    words = one_line(str(error))
    try:
        password = make_url(url).password
    except SQLAlchemyError:
        return "its address is none."
    return (words.replace(str(password), "…") if password else words)[:500]
