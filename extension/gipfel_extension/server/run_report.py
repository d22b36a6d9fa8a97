"""The report of a run as a page, made by ``gipfel report`` in a separate process."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.command import run_command

from ..telemetry.files import read_regular

_LIMIT_S = 300.0
_MAX_BYTES = 128 << 20
# Requests that wait for another's report; a page that was closed may still be among them.
_MAX_WAITING = 3


class RunReports:
    """Maker of reports; one at a time, since each may take a core for a minute."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._lock = asyncio.Lock()
        self._requests = 0

    async def page(self, run: Path, base_url: str = "") -> bytes:
        """Return the report of a run folder as HTML; with a server's base URL, it links the job page.

        Raises
        ------
        GipfelError
            The report can't be made, takes more than 5 minutes, or too many others are waiting.
        """
        if self._requests > _MAX_WAITING:
            raise GipfelError(
                "Too many reports are requested at a time.",
                f"Try again in a few minutes, or make it in a terminal: gipfel report {run.name}",
            )
        self._requests += 1
        try:
            return await self._page(run, base_url)
        finally:
            self._requests -= 1

    async def _page(self, run: Path, base_url: str) -> bytes:
        async with self._lock:
            with tempfile.TemporaryDirectory(prefix="gipfel-") as folder:
                output = Path(folder) / "report.html"
                await self._make(run, output, base_url)
                try:
                    return await asyncio.to_thread(read_regular, output, _MAX_BYTES)
                except OSError as error:
                    raise GipfelError(f"The report of {run.name} can't be read: {error.strerror}.") from error

    async def _make(self, run: Path, output: Path, base_url: str) -> None:
        environment = {"JUPYTERHUB_SERVICE_PREFIX": base_url, **self._environment}
        command = [sys.executable, "-m", "gipfel_extension.cli", "report", str(run), "-o", str(output)]
        try:
            done = await run_command(command, environment=environment, limit=_LIMIT_S)
        except TimeoutError:
            raise GipfelError(
                f"The report of {run.name} takes more than {_LIMIT_S:.0f} s.",
                f"Make it in a terminal: gipfel report {run.name}",
            ) from None
        if done.code:
            message = done.errors.strip().rpartition("\n")[2].removeprefix("gipfel: ")
            raise GipfelError(message or f"gipfel report ended with exit status {done.code}.")
