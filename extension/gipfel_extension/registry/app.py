"""Puts the routes together, and serves them where the hub says."""

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler
from tornado.web import Application, StaticFileHandler

from .api import (
    AuditHandler,
    BaselinesHandler,
    NodeHandler,
    ReportsHandler,
    StepHandler,
    StepsHandler,
    WorstHandler,
)
from .handlers import PageHandler, Problem
from .pages import AuditPageHandler, NodePageHandler, OverviewHandler
from .service import Registry

_HERE = Path(__file__).parent
# The hub is asked again about a token after this many seconds: so long does a revoked one live.
_TRUST_S = 60
_NAME = r"([^/]{1,255})"


class NothingHandler(PageHandler):
    """Every other address: nothing is there, for nobody."""

    async def prepare(self) -> None:
        """Say so, without a login."""
        raise Problem(404, "There is nothing here.")


def make_app(registry: Registry, *, prefix: str) -> Application:
    """The web application below a prefix such as ``/services/gipfel-registry/``."""
    HubOAuth.instance().cache_max_age = _TRUST_S
    pages = Environment(
        loader=PackageLoader("gipfel_extension.registry"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["moment"] = _moment
    routes: list[tuple[Any, ...]] = [
        (r"", OverviewHandler),
        (r"nodes/" + _NAME + "/" + _NAME, NodePageHandler),
        (r"audit", AuditPageHandler),
        (r"oauth_callback", HubOAuthCallbackHandler),
        (r"static/(registry\.(?:css|js))", StaticFileHandler, {"path": str(_HERE / "static")}),
        (r"api/reports", ReportsHandler),
        (r"api/nodes/" + _NAME + "/" + _NAME, NodeHandler),
        (r"api/worst/" + _NAME, WorstHandler),
        (r"api/baselines/" + _NAME, BaselinesHandler),
        (r"api/steps", StepsHandler),
        (r"api/steps/(\d{1,18})", StepHandler),
        (r"api/audit", AuditHandler),
    ]
    return Application(
        [(prefix + path, *rest) for path, *rest in routes],
        default_handler_class=NothingHandler,
        registry=registry,
        pages=pages,
        prefix=prefix,
        # Only for the state of a login that is under way: a restart makes users begin it again.
        cookie_secret=os.urandom(32),
    )


def _moment(iso: str) -> str:
    """ISO time in UTC as people read it."""
    return iso.replace("T", " ").replace("+00:00", " UTC")
