"""``gipfel/vetting``: run a vetting, follow its report, and choose or edit its protocol."""

import asyncio
import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ..server.vetting import (
    MAX_BYTES,
    ServerVetting,
    describe_protocol,
    list_protocols,
    protocol_path,
    read_protocol,
    save_protocol,
)
from ..vetting.history.site_registry import has_consent, set_consent
from .base import GipfelRouteHandler, below_root, route


class ProtocolReference(Frozen):
    """Reference to a protocol in the list; ``directory`` is the API path of the notebook's directory."""

    kind: Literal["shipped", "user", "notebook"]
    file: OneLine = Field(min_length=1, max_length=255)
    directory: OneLine = Field("", max_length=4096)


class VettingRequest(ProtocolReference):
    """Request to run a vetting; nodes vetted within ``skip_vetted`` skip their single-node checks."""

    skip_vetted: Literal["", "1 h", "24 h"] = ""


class VettingQuery(Frozen):
    """Query for the vetting of a run: the version that the page has, and the largest number of grid rows."""

    run: OneLine = Field("", max_length=200)
    known: OneLine = Field("", max_length=200)
    rows: int = Field(40, ge=1, le=5000)


class ProtocolText(Frozen):
    """Text of a protocol in the editor."""

    text: str = Field(max_length=MAX_BYTES)


class SavedProtocol(ProtocolText):
    """Protocol to save in the notebook's directory."""

    directory: OneLine = Field("", max_length=4096)
    name: OneLine = Field(min_length=1, max_length=120)
    replace: bool = False


class Consent(Frozen):
    """Consent to send results to the site's registry."""

    share: bool


class _VettingHandler(GipfelRouteHandler):
    @property
    def vetting(self) -> ServerVetting:
        """Vetting runs of this server."""
        found: ServerVetting = self.settings["gipfel_vetting"]
        return found

    def folder_of(self, directory: str) -> Path:
        """Return the directory of an API path.

        Raises
        ------
        GipfelError
            The path is not below the server's root directory, or is not a directory.
        """
        folder = below_root(self, directory)
        try:
            found = folder.is_dir()
        except OSError as error:  # the name is too long
            raise GipfelError(
                f"{directory[:80]} is not a valid directory: {error.strerror}.",
                "Open a notebook from the file browser.",
            ) from error
        if not found:
            raise GipfelError(f"There is no directory {directory}.", "Save the notebook first.")
        return folder


class VettingRouteHandler(_VettingHandler):
    """``GET, POST, DELETE``: newest vetting report of a run; start and stop of a vetting."""

    @route
    async def get(self) -> None:
        """Send the state, and the grid unless the page has this version."""
        query = self.query_as(VettingQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await self.vetting.view(folder, known=query.known, rows=query.rows))

    @route
    async def post(self) -> None:
        """Start a vetting on the nodes of this server's job."""
        request = self.body_as(VettingRequest)
        directory = await asyncio.to_thread(self.folder_of, request.directory)
        path = await asyncio.to_thread(protocol_path, request.kind, request.file, directory, os.environ)
        run, _ = await self.telemetry.ensure_started()
        await self.vetting.start(run.folder.path, path, skip_vetted=request.skip_vetted)
        self.set_status(201)
        self.finish({})

    @route
    async def delete(self) -> None:
        """Stop the vetting; its report has the results so far."""
        await self.vetting.stop()
        self.finish({})


class ProtocolsRouteHandler(_VettingHandler):
    """``GET, POST, PUT``: list of protocols, text of a protocol, check of a text, and saved protocols."""

    @route
    async def get(self) -> None:
        """Send the list; with ``kind`` and ``file`` send the text of one protocol."""
        directory = await asyncio.to_thread(self.folder_of, self.get_query_argument("directory", ""))
        kind = self.get_query_argument("kind", "")
        if not kind:
            found = await asyncio.to_thread(list_protocols, directory, os.environ)
            self.finish({"protocols": found, "registry": "GIPFEL_REGISTRY_URL" in os.environ})
            return
        file = self.get_query_argument("file", "")
        path = await asyncio.to_thread(protocol_path, kind, file, directory, os.environ)
        text = await asyncio.to_thread(read_protocol, path)
        self.finish({"text": text, **await asyncio.to_thread(describe_protocol, text)})

    @route
    async def post(self) -> None:
        """Send the checks and problems of a text, without saving it."""
        request = self.body_as(ProtocolText)
        self.finish(await asyncio.to_thread(describe_protocol, request.text))

    @route
    async def put(self) -> None:
        """Save a text in the notebook's directory."""
        request = self.body_as(SavedProtocol)
        directory = await asyncio.to_thread(self.folder_of, request.directory)
        path = await asyncio.to_thread(
            save_protocol, directory, request.name, request.text, replace=request.replace
        )
        self.finish({"kind": "notebook", "file": path.name})


class VettingConsentRouteHandler(_VettingHandler):
    """``GET, POST``: consent to send results of vettings to the site's registry."""

    @route
    async def get(self) -> None:
        """Send the saved consent."""
        self.finish({"share": await asyncio.to_thread(has_consent, os.environ)})

    @route
    async def post(self) -> None:
        """Save the consent."""
        consent = self.body_as(Consent)
        await asyncio.to_thread(lambda: set_consent(share=consent.share))
        self.finish({"share": await asyncio.to_thread(has_consent, os.environ)})
