"""``python -m gipfel_extension.registry``: the entry point with which JupyterHub starts the service.

Tornado application of the registry: its routes and templates.
"""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.ioloop import PeriodicCallback
from tornado.web import Application, StaticFileHandler

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import end_with_parent
from gipfel_cluster.scheduler.machine import SLURM_VARIABLES

from .handlers import (
    AuditHandler,
    BaselinesHandler,
    NodeHandler,
    PageHandler,
    ReportsHandler,
    RequestError,
    StepHandler,
    StepsHandler,
    WorstNodesHandler,
)
from .nodes import SlurmNodes
from .pages import AuditPageHandler, NodePageHandler, OverviewHandler
from .rules import load_rules
from .schema import open_database
from .service import Registry
from .settings import read_settings

_HERE = Path(__file__).parent
# Seconds for which the hub's answer about a token is cached; a revoked token stays valid for as long.
_TOKEN_CACHE_S = 60
_NAME = r"([^/]{1,255})"
# Times in the texts of steps and of the audit log.
_UTC_IN_TEXT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC")


class NotFoundHandler(PageHandler):
    """Handler of unknown paths."""

    async def prepare(self) -> None:
        """Answer 404, without a login."""
        raise RequestError(404, "This page does not exist.")


def make_app(registry: Registry, *, prefix: str) -> Application:
    """Return the web application for a prefix such as ``/services/gipfel-registry/``."""
    HubOAuth.instance().cache_max_age = _TOKEN_CACHE_S
    pages = Environment(
        loader=PackageLoader("gipfel_extension.registry"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"utc": _utc, "with_times": _with_times}
    routes: list[tuple[Any, ...]] = [
        (r"", OverviewHandler),
        (r"nodes/" + _NAME + "/" + _NAME, NodePageHandler),
        (r"audit", AuditPageHandler),
        (r"oauth_callback", HubOAuthCallbackHandler),
        (r"static/(registry\.(?:css|js))", StaticFileHandler, {"path": str(_HERE / "static")}),
        (r"api/reports", ReportsHandler),
        (r"api/nodes/" + _NAME + "/" + _NAME, NodeHandler),
        (r"api/worst/" + _NAME, WorstNodesHandler),
        (r"api/baselines/" + _NAME, BaselinesHandler),
        (r"api/steps", StepsHandler),
        (r"api/steps/(\d{1,18})", StepHandler),
        (r"api/audit", AuditHandler),
    ]
    return Application(
        [(prefix + path, *rest) for path, *rest in routes],
        default_handler_class=NotFoundHandler,
        registry=registry,
        pages=pages,
        prefix=prefix,
        # Used only for the state of a login in progress; after a restart, users repeat the login.
        cookie_secret=os.urandom(32),
    )


def _utc(iso: str) -> str:
    """Return an ISO time in UTC in a form for pages."""
    return iso.replace("T", " ").replace("+00:00", " UTC")


def _with_times(text: str) -> Markup:
    """Return the text as HTML whose times in UTC are elements that a page shows in its own time zone."""
    element = r'<time class="gipfel-local" datetime="\1T\2Z" data-show="moment">\g<0></time>'
    return Markup(_UTC_IN_TEXT.sub(element, str(escape(text))))  # noqa: S704 - the text is escaped


# Limit for the body of any request; a report of a sender with the scope `write` may be larger.
_MAX_BODY_BYTES = 1 << 16
_DELETE_EVERY_MS = 3600 * 1000
_SLURM_COMMANDS = ("PATH", "LANG", "LD_LIBRARY_PATH", *SLURM_VARIABLES)

_log = logging.getLogger("gipfel-registry")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the hub ends the service."""
    parser = argparse.ArgumentParser(prog="python -m gipfel_extension.registry", description=main.__doc__)
    parser.add_argument(
        "--config", type=Path, help="YAML file with settings; the registry's README lists its keys"
    )
    parser.add_argument("--with-parent", type=int, help="end when the parent process with this PID ends")
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
    """Open the database and serve on ``JUPYTERHUB_SERVICE_URL`` until SIGTERM or SIGINT.

    Raises
    ------
    GipfelError
        Settings, rules or database are not valid, the address is in use, or JupyterHub did not start this
        process.
    """
    url, prefix = environment.get("JUPYTERHUB_SERVICE_URL"), environment.get("JUPYTERHUB_SERVICE_PREFIX")
    if not url or not prefix or not environment.get("JUPYTERHUB_API_TOKEN"):
        raise GipfelError(
            "JUPYTERHUB_SERVICE_URL, JUPYTERHUB_SERVICE_PREFIX or JUPYTERHUB_API_TOKEN is not set.",
            "Configure this program as a service of JupyterHub, as in jupyterhub_config.py.",
        )
    settings = read_settings(config, environment)
    rules = load_rules(settings.rules)
    engine = open_database(settings.database)
    nodes = SlurmNodes({name: environment[name] for name in _SLURM_COMMANDS if name in environment})
    registry = Registry(engine, settings, rules, nodes)
    server = HTTPServer(make_app(registry, prefix=prefix), max_body_size=_MAX_BODY_BYTES)
    address = urlsplit(url)
    try:
        server.listen(address.port or 80, address.hostname or "127.0.0.1")
    except OSError as error:
        raise GipfelError(f"The registry can't listen on {url}: {error.strerror}.") from error
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    async def delete_old() -> None:
        try:
            await registry.delete_old()
        except SQLAlchemyError as error:
            _log.warning("Old results can't be deleted: %s", error)

    await delete_old()
    sweeper = PeriodicCallback(delete_old, _DELETE_EVERY_MS)
    sweeper.start()
    await ended.wait()
    sweeper.stop()
    server.stop()
    await registry.close()
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
