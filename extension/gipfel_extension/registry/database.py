"""Opens the database and brings its tables up to date."""

from pathlib import Path
from typing import Any

import alembic.command
import alembic.util
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from gipfel_cluster.model import GipfelError, one_line

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
