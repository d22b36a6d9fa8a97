"""``gipfel/vetting``: run a vetting, follow its report, choose and change its protocol."""

import asyncio
import os
from pathlib import Path
from typing import Any, Literal

from jupyter_server.utils import ApiPath, to_os_path
from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line

from ..server.vetting import (
    MOST_BYTES,
    ServerVetting,
    described,
    offered_protocols,
    path_of,
    save_protocol,
    text_of,
)
from ..vetting.history import consents, set_consent
from .base import GipfelRouteHandler, route


class ProtocolPlace(Frozen):
    """A protocol of the list; ``directory`` is the server's path of the notebook's folder."""

    kind: Literal["shipped", "own", "beside"]
    file: Line = Field(min_length=1, max_length=255)
    directory: Line = Field("", max_length=4096)


class VettingRequest(ProtocolPlace):
    """Vetting to run; nodes that were vetted within ``skip_vetted`` don't run their own checks again."""

    skip_vetted: Literal["", "1 h", "24 h"] = ""


class VettingQuery(Frozen):
    """A run, how many rows of its grid, and the version that the page has."""

    run: Line = Field("", max_length=200)
    known: Line = Field("", max_length=200)
    rows: int = Field(40, ge=1, le=5000)


class ProtocolText(Frozen):
    """A protocol as it is typed."""

    text: str = Field(max_length=MOST_BYTES)


class SavedProtocol(ProtocolText):
    """A protocol to save beside a notebook."""

    directory: Line = Field("", max_length=4096)
    name: Line = Field(min_length=1, max_length=120)
    replace: bool = False


class Consent(Frozen):
    """Consent to send results to the site's registry."""

    share: bool


class _VettingHandler(GipfelRouteHandler):
    @property
    def vetting(self) -> ServerVetting:
        """Vetting that this server has started."""
        found: ServerVetting = self.settings["gipfel_vetting"]
        return found

    def folder_of(self, directory: str) -> Path:
        """Return the folder of one of the server's paths.

        Raises
        ------
        GipfelError
            It is not below the server's root folder, or none.
        """
        contents: Any = self.contents_manager
        root = Path(getattr(contents, "root_dir", ".")).resolve()
        if "\0" in directory or ".." in Path(directory).parts:
            raise GipfelError("This folder is not below the server's.", "Open a notebook in the lab.")
        folder = Path(to_os_path(ApiPath(directory), str(root)))
        try:
            found = folder.is_dir()
        except OSError as error:  # a name too long
            raise GipfelError(f"{directory[:80]} can't be a folder: {error.strerror}.") from error
        if not found:
            raise GipfelError(f"There is no folder {directory}.", "Is the notebook saved?")
        return folder


class VettingRouteHandler(_VettingHandler):
    """``GET, POST, DELETE``: newest report of a run, and the vetting that makes one."""

    @route
    async def get(self) -> None:
        """Answer its state, and the grid where the page does not know it yet."""
        given = {name: self.get_query_argument(name, None) for name in VettingQuery.model_fields}
        try:
            query = VettingQuery.model_validate({n: v for n, v in given.items() if v is not None})
        except ValidationError as error:
            raise GipfelError(one_line(f"The query is not valid: {error.errors()[0]['msg']}.")) from error
        folder = await self.telemetry.run_named(query.run)
        self.finish(await self.vetting.view(folder, known=query.known, rows=query.rows))

    @route
    async def post(self) -> None:
        """Start a run on the nodes of this server's job."""
        asked = self.body_as(VettingRequest)
        directory = await asyncio.to_thread(self.folder_of, asked.directory)
        path = await asyncio.to_thread(path_of, asked.kind, asked.file, directory, os.environ)
        run, _ = await self.telemetry.started()
        await self.vetting.start(run.folder.path, path, skip_vetted=asked.skip_vetted)
        self.set_status(201)
        self.finish({})

    @route
    async def delete(self) -> None:
        """End it; its report shows how far it got."""
        await self.vetting.stop()
        self.finish({})


class ProtocolsRouteHandler(_VettingHandler):
    """``GET, POST``: protocols to choose from, one's text, and new ones."""

    @route
    async def get(self) -> None:
        """Answer the list, or with ``kind`` and ``file`` the text of one."""
        directory = await asyncio.to_thread(self.folder_of, self.get_query_argument("directory", ""))
        kind = self.get_query_argument("kind", "")
        if not kind:
            found = await asyncio.to_thread(offered_protocols, directory, os.environ)
            self.finish({"protocols": found, "registry": "GIPFEL_REGISTRY_URL" in os.environ})
            return
        file = self.get_query_argument("file", "")
        path = await asyncio.to_thread(path_of, kind, file, directory, os.environ)
        text = await asyncio.to_thread(text_of, path)
        self.finish({"text": text, **await asyncio.to_thread(described, text)})

    @route
    async def post(self) -> None:
        """Answer what a text means; nothing is written."""
        asked = self.body_as(ProtocolText)
        self.finish(await asyncio.to_thread(described, asked.text))

    @route
    async def put(self) -> None:
        """Keep a text beside a notebook."""
        asked = self.body_as(SavedProtocol)
        directory = await asyncio.to_thread(self.folder_of, asked.directory)
        path = await asyncio.to_thread(
            save_protocol, directory, asked.name, asked.text, replace=asked.replace
        )
        self.finish({"kind": "beside", "file": path.name})


class VettingConsentRouteHandler(_VettingHandler):
    """``GET, POST``: consent to send results of vettings to the site's registry."""

    @route
    async def get(self) -> None:
        """Answer it."""
        self.finish({"share": await asyncio.to_thread(consents, os.environ)})

    @route
    async def post(self) -> None:
        """Save the consent."""
        asked = self.body_as(Consent)
        await asyncio.to_thread(lambda: set_consent(share=asked.share))
        self.finish({"share": await asyncio.to_thread(consents, os.environ)})
