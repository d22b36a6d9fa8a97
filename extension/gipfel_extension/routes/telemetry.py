"""``gipfel/telemetry/source``: start and stop the simulated source."""

import asyncio
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.runs import runs_root

from .base import GipfelRouteHandler, route


class SourceRequest(Frozen):
    """``synthetic:NAME`` or ``replay:FILE``; a file's path is absolute or below the server's root folder."""

    source: Line


class SourceRouteHandler(GipfelRouteHandler):
    """One simulated source per server, in a recorder process of its own."""

    @route
    async def post(self) -> None:
        """Start it, in place of one that runs; 201."""
        source = self.body_as(SourceRequest).source
        kind, _, name = source.partition(":")
        if kind == "replay":
            file = await asyncio.to_thread(own_file, name, self.settings["server_root_dir"])
            source = f"replay:{file}"
        elif kind != "synthetic" or not name:
            raise GipfelError(
                f"{source!r} is no simulated source.",
                "Use synthetic:training, synthetic:idle or replay:FILE.",
            )
        await self.telemetry.simulate(source)
        self.set_status(201)
        await self._answer()

    @route
    async def delete(self) -> None:
        """End it; also when there is none."""
        await self.telemetry.stop_simulation()
        await self._answer()

    async def _answer(self) -> None:
        _, broadcast = await self.telemetry.started()
        self.finish(dict(broadcast.status))


def own_file(path: str, root_dir: str) -> Path:
    """The file, where it lies in one of the user's folders: the server's root, home, or the run folders.

    Raises
    ------
    GipfelError
        It lies elsewhere or is no file.
    """
    root = Path(root_dir).expanduser()
    try:
        file = (root / Path(path).expanduser()).resolve()
        found = file.is_file()
    except (OSError, RuntimeError) as error:  # a name too long; a user whom nobody knows
        raise GipfelError(f"{path[:80]} can't be a file's path.", "Give an absolute path.") from error
    folders = [root.resolve(), Path.home().resolve(), runs_root().resolve()]
    if not any(file.is_relative_to(folder) for folder in folders):
        raise GipfelError(f"{path} lies outside your folders.", f"Copy it below {folders[0]}.")
    if not found:
        raise GipfelError(f"There is no file {path}.", "Give the path of a recorded segment.")
    return file
