"""``python -m gipfel_extension.registry``: the service, as JupyterHub starts it."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.ioloop import PeriodicCallback

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.liveness import end_with_parent
from gipfel_cluster.scheduler.machine import SLURM_VARIABLES

from .app import make_app
from .nodes import SlurmNodes
from .rules import load_rules
from .schema import open_database
from .service import Registry
from .settings import read_settings

# Of what anybody may send; a report of somebody with the scope may be larger.
_MOST_BODY_BYTES = 1 << 16
_FORGET_EVERY_MS = 3600 * 1000
_SLURM_COMMANDS = ("PATH", "LANG", "LD_LIBRARY_PATH", *SLURM_VARIABLES)

_log = logging.getLogger("gipfel-registry")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the hub ends the service."""
    parser = argparse.ArgumentParser(prog="python -m gipfel_extension.registry", description=main.__doc__)
    parser.add_argument("--config", type=Path, help="a YAML file; the registry's README lists its keys")
    parser.add_argument("--with-parent", type=int, help="end with the parent process, which has this id")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if given.with_parent:
        end_with_parent(given.with_parent)
    try:
        asyncio.run(serve(given.config, os.environ))
    except GipfelError as error:
        _log.error("%s", error)
        return 2
    return 0


async def serve(config: Path | None, environment: Mapping[str, str]) -> None:
    """Open the database and serve where ``JUPYTERHUB_SERVICE_URL`` says, until SIGTERM or SIGINT.

    Raises
    ------
    GipfelError
        Settings, rules or database are not usable, the address is taken, or this is no service of a hub.
    """
    url, prefix = environment.get("JUPYTERHUB_SERVICE_URL"), environment.get("JUPYTERHUB_SERVICE_PREFIX")
    if not url or not prefix or not environment.get("JUPYTERHUB_API_TOKEN"):
        raise GipfelError(
            "This is a service of a hub: JUPYTERHUB_SERVICE_URL, _SERVICE_PREFIX and _API_TOKEN are not set.",
            "Let JupyterHub start it, as jupyterhub_config.py shows.",
        )
    settings = read_settings(config, environment)
    rules = load_rules(settings.rules)
    engine = open_database(settings.database)
    nodes = SlurmNodes({name: environment[name] for name in _SLURM_COMMANDS if name in environment})
    registry = Registry(engine, settings, rules, nodes)
    server = HTTPServer(make_app(registry, prefix=prefix), max_body_size=_MOST_BODY_BYTES)
    address = urlsplit(url)
    try:
        server.listen(address.port or 80, address.hostname or "127.0.0.1")
    except OSError as error:
        raise GipfelError(f"The registry can't listen on {url}: {error.strerror}.") from error
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    async def forget() -> None:
        try:
            await registry.forget()
        except SQLAlchemyError as error:
            _log.warning("Old results could not be deleted: %s", error)

    await forget()
    sweeper = PeriodicCallback(forget, _FORGET_EVERY_MS)
    sweeper.start()
    await ended.wait()
    sweeper.stop()
    server.stop()
    await registry.close()
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
