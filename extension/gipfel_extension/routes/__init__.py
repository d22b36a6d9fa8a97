"""Authenticated routes below ``/gipfel/``: thin, each in the file of its subject."""

from tornado.web import RequestHandler

from .leaving import ExtendRouteHandler, LeavingRouteHandler, StayRouteHandler
from .notebooks import NotebookRouteHandler, NotebooksRouteHandler
from .run import RunRouteHandler
from .saturation import SaturationRouteHandler, SaturationStreamRouteHandler
from .telemetry import SourceRouteHandler

ROUTES: tuple[tuple[str, type[RequestHandler]], ...] = (
    (r"gipfel/run", RunRouteHandler),
    (r"gipfel/leaving", LeavingRouteHandler),
    (r"gipfel/leaving/extend", ExtendRouteHandler),
    (r"gipfel/leaving/stay", StayRouteHandler),
    (r"gipfel/saturation", SaturationRouteHandler),
    (r"gipfel/saturation/stream", SaturationStreamRouteHandler),
    (r"gipfel/telemetry/source", SourceRouteHandler),
    (r"gipfel/notebooks", NotebooksRouteHandler),
    (r"gipfel/notebooks/([A-Za-z0-9][A-Za-z0-9_-]{0,99})", NotebookRouteHandler),
)

__all__ = ["ROUTES"]
