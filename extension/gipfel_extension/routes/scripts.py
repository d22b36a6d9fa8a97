"""The panel's scripts, compressed and kept by the browser: their names hold a hash of their content."""

import gzip
from functools import cache
from pathlib import Path

from jupyter_core.paths import jupyter_path
from jupyter_server.base.handlers import JupyterHandler
from tornado import web

#: A year: another content has another name.
_KEPT = "private, max-age=31536000, immutable"


class ScriptsRouteHandler(JupyterHandler):
    """Answers in place of the lab's own route, which sends such a file whole, and again with every page."""

    @web.authenticated
    def get(self, name: str) -> None:
        """Answer with a script; compressed where the browser reads that."""
        path = _installed(name)
        if path is None:
            raise web.HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", _KEPT)
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(_compressed(path, path.stat().st_mtime_ns))
        else:
            self.finish(path.read_bytes())


def _installed(name: str) -> Path | None:
    """Return a script where the lab finds it too: the wheel has it as data, not in the package."""
    folders = (Path(folder) / "@gipfel" / "extension" / "static" for folder in jupyter_path("labextensions"))
    return next((path for folder in folders if (path := folder / name).is_file()), None)


@cache
def _compressed(path: Path, _: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)
