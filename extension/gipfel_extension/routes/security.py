"""Routes of scans and their kept verdicts, saved environments, the end of networks, and shared counts."""

import asyncio
import os
from pathlib import Path

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..server.network_end import end_network
from ..server.security import kept_verdicts, save_environment, scan_path, shared_security
from .base import GipfelRouteHandler, route

_MOST_PATHS = 500


class ScanRequest(Frozen):
    """A file or directory to scan, as a path relative to the server's root."""

    path: OneLine = Field(max_length=4096)


class SaveRequest(Frozen):
    """Directory to save an environment in, as a path relative to the server's root."""

    directory: OneLine = Field(min_length=1, max_length=1000)


class KeptRequest(Frozen):
    """Files whose cached verdicts are requested."""

    paths: tuple[OneLine, ...] = Field(max_length=_MOST_PATHS)


class EndRequest(Frozen):
    """Request to cut off the network access of programs behind this job's gates (egress proxies)."""

    by: OneLine = Field(min_length=1, max_length=100)
    reason: OneLine = Field("", max_length=300)


def _below_root(path: str, root_dir: str) -> Path:
    """Return the path of a file or directory in the file browser.

    Raises
    ------
    GipfelError
        The path does not exist, or is not below the server's root.
    """
    root = Path(root_dir).expanduser().resolve()
    try:
        found = (root / path.lstrip("/")).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise GipfelError(f"There is no file {path[:80]}.", "Refresh the file browser.") from error
    if not found.is_relative_to(root):
        raise GipfelError(f"{path[:80]} is outside of the server's root.", "Run `gipfel scan` in a terminal.")
    return found


class ScanRouteHandler(GipfelRouteHandler):
    """``POST``: scan a file or a directory; nothing in it is loaded or executed."""

    @route
    async def post(self) -> None:
        """Send the verdict and the findings."""
        request = self.body_as(ScanRequest)
        path = await asyncio.to_thread(_below_root, request.path, self.settings["server_root_dir"])
        self.finish(await scan_path(path, request.path, os.environ))


class SaveEnvironmentRouteHandler(GipfelRouteHandler):
    """``POST``: save the packages installed in this container as a directory from which to build an image."""

    @route
    async def post(self) -> None:
        """Send lists of what was saved and of what could not be saved."""
        request = self.body_as(SaveRequest)
        root = self.settings["server_root_dir"]
        parent, _, name = request.directory.strip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise GipfelError(f"{request.directory[:80]!r} is not a valid name.", "Give a new directory.")
        folder = await asyncio.to_thread(_below_root, parent, root)
        path = folder / name
        self.finish(await save_environment(path, request.directory.strip("/"), os.environ))


class KeptVerdictsRouteHandler(GipfelRouteHandler):
    """``POST``: the cached verdicts of files that were scanned before; nothing is scanned."""

    #: A file browser that refreshes does not count as use of the server.
    _track_activity = False

    @route
    async def post(self) -> None:
        """Send the verdicts by path."""
        request = self.body_as(KeptRequest)
        self.finish({"verdicts": await asyncio.to_thread(self._verdicts, request.paths)})

    def _verdicts(self, names: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, Path] = {}
        for name in names:
            try:
                found[name] = _below_root(name, self.settings["server_root_dir"])
            except GipfelError:
                continue
        return kept_verdicts(found, os.environ)


class SharedSecurityRouteHandler(GipfelRouteHandler):
    """``GET``: counts of scan verdicts, gates and refused connections, without names, for operators."""

    #: The hub's page does not count as use of the server.
    _track_activity = False

    @route
    async def get(self) -> None:
        """Send the counts."""
        run, _ = await self.telemetry.ensure_started()
        self.finish(await asyncio.to_thread(shared_security, run.folder.path, os.environ))


class EndNetworkRouteHandler(GipfelRouteHandler):
    """``POST``: cut off the network access of programs behind gates in this job."""

    @route
    async def post(self) -> None:
        """Send whether there was a gate."""
        request = self.body_as(EndRequest)
        run, _ = await self.telemetry.ensure_started()
        ended = await asyncio.to_thread(end_network, run.folder.path, request.by, request.reason)
        self.finish({"ended": ended})
